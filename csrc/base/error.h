// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace torchalgo {

/// A call that cannot be served: bad arguments, a foreign file, a failed library. The text names
/// the function, the value given, the value expected and the way out. Becomes torchalgo.Error in
/// Python.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken promise inside torchalgo; no input of a user reaches it.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] inline void fail_assert(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("torchalgo: internal error, please report it: {} ({}:{})",
                                  condition, file, line));
}
}  // namespace detail

}  // namespace torchalgo

/// Throws torchalgo::Error with a formatted text unless `condition` holds.
#define TORCHALGO_CHECK(condition, ...)                     \
  do {                                                      \
    if (!(condition)) [[unlikely]] {                        \
      throw ::torchalgo::Error(::fmt::format(__VA_ARGS__)); \
    }                                                       \
  } while (false)

/// Holds in every build; a failure is a bug of torchalgo.
#define TORCHALGO_ASSERT(condition)                                     \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::torchalgo::detail::fail_assert(#condition, __FILE__, __LINE__); \
    }                                                                   \
  } while (false)
