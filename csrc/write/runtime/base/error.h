// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Takes the place of csrc/base/error.h. A program returns a status, so its errors have no texts.

#include <fmt/format.h>

#include <stdexcept>

namespace torchalgo {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] inline void fail() { throw std::logic_error("torchalgo"); }
}  // namespace detail

}  // namespace torchalgo

#define TORCHALGO_ASSERT(condition) \
  do {                              \
    if (!(condition)) [[unlikely]]  \
      ::torchalgo::detail::fail();  \
  } while (false)

#define TORCHALGO_CHECK(condition, ...)                                 \
  do {                                                                  \
    TORCHALGO_ASSERT(condition);                                        \
    if constexpr (false) static_cast<void>(::fmt::format(__VA_ARGS__)); \
  } while (false)
