// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

namespace torchalgo {

inline constexpr std::size_t kCodeLength = 7;  // "TA1234 "

/// Returns true if a code of docs/errors.md and a space stand at position `at` of `text`.
[[nodiscard]] inline bool has_code_at(std::string_view text, std::size_t at) {
  const std::string_view word = text.substr(at, kCodeLength);
  if (word.size() < kCodeLength || !word.starts_with("TA") || word.back() != ' ') return false;
  if (at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0) return false;
  for (const char digit : word.substr(2, 4)) {
    if (digit < '0' || digit > '9') return false;
  }
  return true;
}

/// Returns the text of an error without its codes, for a text that is not shown as an error.
[[nodiscard]] inline std::string without_code(std::string text) {
  for (std::size_t at = text.find("TA"); at != std::string::npos; at = text.find("TA", at)) {
    if (has_code_at(text, at)) {
      text.erase(at, kCodeLength);
    } else {
      ++at;
    }
  }
  return text;
}

/// Returns the text of an error that wraps the text of another, with one code in front.
///
/// The code is that of the wrapped error, which names the cause. If the wrapped text has no code,
/// the code of the wrapping text remains.
[[nodiscard]] inline std::string with_inner_code(std::string text) {
  std::string code;
  for (std::size_t at = text.find("TA"); at != std::string::npos; at = text.find("TA", at + 1)) {
    if (has_code_at(text, at)) code = text.substr(at, kCodeLength);
  }
  return code + without_code(std::move(text));
}

}  // namespace torchalgo
