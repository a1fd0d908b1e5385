// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace torchalgo {

/// An error of the caller or of a library: bad arguments, a file that torchalgo did not write, a
/// library call that failed. The text begins with a code of docs/errors.md. It names the function,
/// the given value, the expected value and the remedy. Python sees it as torchalgo.Error.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bug inside torchalgo. No input of a user can cause it.
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

/// Throws InternalError unless `condition` holds, in every build. A failure is a bug of torchalgo.
#define TORCHALGO_ASSERT(condition)                                     \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::torchalgo::detail::fail_assert(#condition, __FILE__, __LINE__); \
    }                                                                   \
  } while (false)
