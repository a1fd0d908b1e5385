// SPDX-License-Identifier: BSD-3-Clause
#include "ops/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace torchalgo {
namespace {

constexpr std::array<DType, 5> kDTypes = {DType::kF64, DType::kF32, DType::kTf32, DType::kF16,
                                          DType::kBf16};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_number(std::string_view name) { return std::all_of(name.begin(), name.end(), is_digit); }

// Reads a text from left to right; each step throws at the first character that does not fit.
class ChoiceParser {
 public:
  explicit ChoiceParser(std::string_view text) : text_(text) {}

  Choice read() {
    Choice choice;
    skip_spaces();
    if (at_end() || is_rest("auto")) return choice;
    do {
      choice.push_back(read_entry());
    } while (take(';'));
    expect(at_end(), "';' or the end");
    return choice;
  }

 private:
  ChoiceEntry read_entry() {
    skip_spaces();
    const std::size_t start = at_;
    read_word("a name such as cudnn9.conv.e22, a number, or free");
    ChoiceEntry entry;
    if (next() == ':') {
      entry.dtype = read_dtype(text_.substr(start, at_ - start), start);
      ++at_;
      skip_spaces();
    }
    entry.name = entry.dtype ? read_name() : read_name_from(start);
    skip_spaces();
    return entry;
  }

  DType read_dtype(std::string_view word, std::size_t start) {
    const auto it = std::find_if(kDTypes.begin(), kDTypes.end(),
                                 [&](DType dtype) { return to_string(dtype) == word; });
    if (it == kDTypes.end()) at_ = start;
    expect(it != kDTypes.end(), "one of f64, f32, tf32, f16, bf16 before ':'");
    return *it;
  }

  std::string read_name() {
    const std::size_t start = at_;
    read_word("a name such as cudnn9.conv.e22, a number, or free");
    return read_name_from(start);
  }

  // The first word of the name is read already.
  std::string read_name_from(std::size_t start) {
    const std::string_view first = text_.substr(start, at_ - start);
    if (is_number(first) || first == kFree) return std::string(first);
    if (first == "auto") at_ = start;
    expect(first != "auto", "a name: auto stands alone");
    expect(next() == '.', "'.' and the algorithm, as in cpu.direct");
    while (take('.')) read_word("a word");
    if (take('{')) read_knobs();
    if (take('@')) read_word("a word after '@'");
    return std::string(text_.substr(start, at_ - start));
  }

  void read_knobs() {
    do {
      read_word("KNOB=value");
      expect(take('='), "'=' and a value");
      take('-');
      read_word("a value");
    } while (take(','));
    expect(take('}'), "',' or '}'");
  }

  void read_word(std::string_view expected) {
    expect(!at_end() && is_word(text_[at_]), expected);
    while (!at_end() && is_word(text_[at_])) ++at_;
  }

  void expect(bool condition, std::string_view expected) const {
    TORCHALGO_CHECK(condition,
                    "TA4101 torchalgo: '{}' is no choice of an algorithm: expected {} at {}", text_,
                    expected, at_end() ? "the end" : fmt::format("character {}", at_ + 1));
  }

  void skip_spaces() {
    while (!at_end() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  [[nodiscard]] bool is_rest(std::string_view word) const {
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with(word) && rest.find_first_not_of(' ', word.size()) == rest.npos;
  }
  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char next() const { return at_end() ? '\0' : text_[at_]; }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The name alone says on which device it runs, even if this build lacks the algorithm.
bool applies(const ChoiceEntry& entry, DeviceKind kind, DType dtype) {
  if (entry.dtype && *entry.dtype != dtype) return false;
  const auto is_of = [&](std::string_view provider) { return entry.name.starts_with(provider); };
  if (is_of("cpu.")) return kind == DeviceKind::kCpu;
  if (is_of("cudnn") || is_of("cuda.") || is_number(entry.name)) return kind == DeviceKind::kCuda;
  return true;
}

}  // namespace

Choice parse_choice(std::string_view text) { return ChoiceParser(text).read(); }

std::string to_string(const Choice& choice) {
  if (choice.empty()) return "auto";
  std::string text;
  for (const ChoiceEntry& entry : choice) {
    if (!text.empty()) text += ';';
    if (entry.dtype) text += fmt::format("{}:", to_string(*entry.dtype));
    text += entry.name;
  }
  return text;
}

std::optional<std::string> requested(const Choice& choice, Direction direction, DeviceKind kind,
                                     DType dtype) {
  for (const ChoiceEntry& entry : choice) {
    if (!applies(entry, kind, dtype)) continue;
    if (!is_number(entry.name)) return entry.name;
    return fmt::format("cudnn_legacy.{}.{}", to_string(direction), entry.name);
  }
  return std::nullopt;
}

}  // namespace torchalgo
