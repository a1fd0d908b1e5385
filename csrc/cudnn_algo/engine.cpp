// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/engine.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "ir/primitive.h"

namespace torchalgo::cudnn {
namespace {

// Removes the number at the start of `text` and returns it. Returns nullopt if there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

// Parses "KNOB=v,...". Returns nullopt unless every part is a knob.
std::optional<Knobs> parse_knobs(std::string_view text) {
  Knobs knobs;
  while (true) {
    const std::size_t equals = text.find('=');
    if (equals == text.npos) return std::nullopt;
    const auto type = parse_knob_name(text.substr(0, equals));
    text.remove_prefix(equals + 1);
    const auto value = take_number(text);
    if (!type || !value) return std::nullopt;
    knobs.push_back({*type, *value});
    if (text.empty()) return knobs;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
  }
}

// Returns the pattern of the algorithm at the start of `name`, or nullopt. `name` keeps the text
// after ".e".
std::optional<Pattern> take_pattern(std::string_view& name) {
  for (const PatternInfo& pattern : kPatterns) {
    if (!name.starts_with(pattern.algorithm)) continue;
    const std::string_view rest = name.substr(pattern.algorithm.size());
    if (!rest.starts_with(".e")) continue;
    name = rest.substr(2);
    return pattern.pattern;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Pattern> pattern_of(const ConvProblem& conv) {
  const auto epilogue = as_bias_add_activation(conv.epilogue);
  if (!epilogue) return std::nullopt;
  std::optional<PostOp::Kind> activation;
  if (epilogue->activation) activation = epilogue->activation->kind;
  for (const PatternInfo& pattern : kPatterns) {
    if (pattern.direction == conv.direction && pattern.bias == epilogue->bias &&
        pattern.add == epilogue->add && pattern.activation == activation) {
      return pattern.pattern;
    }
  }
  return std::nullopt;
}

std::string to_string(const EngineSpec& spec) {
  std::string name = fmt::format("{}.e{}", info(spec.pattern).algorithm, spec.engine);
  if (spec.weights == Layout::kNhwc) name += kKrscVariant;
  if (spec.knobs.empty()) return name;
  char separator = '{';
  for (const Knob& knob : spec.knobs) {
    fmt::format_to(std::back_inserter(name), "{}{}={}", separator, knob_name(knob.type),
                   knob.value);
    separator = ',';
  }
  return name + '}';
}

std::optional<EngineSpec> parse_engine_spec(std::string_view name) {
  std::string_view rest = name;
  const auto pattern = take_pattern(rest);
  if (!pattern) return std::nullopt;
  const auto engine = take_number(rest);
  if (!engine || *engine < 0) return std::nullopt;
  EngineSpec spec{*pattern, *engine, Layout::kNchw, {}};
  if (rest.starts_with(kKrscVariant)) {
    spec.weights = Layout::kNhwc;
    rest.remove_prefix(kKrscVariant.size());
  }
  if (!rest.empty()) {
    if (rest.size() < 2 || rest.front() != '{' || rest.back() != '}') return std::nullopt;
    const auto knobs = parse_knobs(rest.substr(1, rest.size() - 2));
    if (!knobs) return std::nullopt;
    spec.knobs = *knobs;
  }
  // Each configuration has one spelling. "e007", and knobs that are repeated or out of order, are
  // refused.
  if (sort_by_name(spec.knobs) != spec.knobs || to_string(spec) != name) return std::nullopt;
  for (std::size_t i = 1; i < spec.knobs.size(); ++i) {
    if (spec.knobs[i].type == spec.knobs[i - 1].type) return std::nullopt;
  }
  return spec;
}

}  // namespace torchalgo::cudnn
