// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The few functions of fmt that the sources in this folder call, for names and for errors that a
// program whose steps were checked never has. So the folder needs no library.

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace fmt {
namespace detail {

template <class Value>
std::string text_of(const Value& value) {
  if constexpr (std::is_convertible_v<Value, std::string_view>) {
    return std::string(std::string_view(value));
  } else if constexpr (std::is_same_v<Value, char>) {
    return std::string(1, value);
  } else if constexpr (std::is_floating_point_v<Value>) {  // the fewest digits, as fmt writes them
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
  } else {
    return std::to_string(value);
  }
}

}  // namespace detail

/// Replaces each "{...}" by an argument. What the braces say about its form has no effect.
template <class... Arguments>
std::string format(std::string_view text, const Arguments&... arguments) {
  std::string result;
  const auto add = [&](const std::string& argument) {
    const std::size_t open = text.find('{');
    if (open == text.npos) return;
    result.append(text.substr(0, open)).append(argument);
    text.remove_prefix(text.find('}') + 1);
  };
  (add(detail::text_of(arguments)), ...);
  return result.append(text);
}

template <class Iterator, class End>
std::string join(Iterator begin, End end, std::string_view separator) {
  std::string result;
  for (Iterator it = begin; it != end; ++it) {
    if (it != begin) result.append(separator);
    result.append(detail::text_of(*it));
  }
  return result;
}

template <class Range>
std::string join(const Range& range, std::string_view separator) {
  return join(range.begin(), range.end(), separator);
}

template <class... Arguments>
void print(std::FILE* file, std::string_view text, const Arguments&... arguments) {
  std::fputs(format(text, arguments...).c_str(), file);
}

}  // namespace fmt
