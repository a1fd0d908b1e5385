// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/pattern.h"

#include <cmath>
#include <utility>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Value;

namespace {

bool name_value(const char* name, Value value, Match& match) {
  const auto [it, is_new] = match.named.try_emplace(name, value);
  return is_new || it->second == value;
}

}  // namespace

Pattern tensor(const char* name) {
  return
      [=](Value value, Match& match) { return is_tensor(value) && name_value(name, value, match); };
}

Pattern any_number(const char* name) {
  return [=](Value value, Match& match) {
    return constant_scalar(value).has_value() && name_value(name, value, match);
  };
}

Pattern number(double wanted, double tolerance) {
  return [=](Value value, Match&) {
    const auto found = constant_scalar(value);
    return found && (*found == wanted || std::abs(*found - wanted) < tolerance);
  };
}

Pattern op(const char* kind, std::vector<Pattern> inputs) {
  return [kind, inputs = std::move(inputs)](Value value, Match& match) {
    const script::Node node = value.node();
    if (!node.is(kind) || node.input_count() != inputs.size()) return false;
    if (value != match.whole && !has_one_reader(value)) return false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i](node.input(i), match)) return false;
    }
    return true;
  };
}

Pattern either(std::vector<Pattern> patterns) {
  return [patterns = std::move(patterns)](Value value, Match& match) {
    for (const Pattern& pattern : patterns) {
      Match trial = match;
      if (!pattern(value, trial)) continue;
      match = std::move(trial);
      return true;
    }
    return false;
  };
}

Pattern sum(const Pattern& a, const Pattern& b) {
  const Pattern factor = number(1);  // of the second operand
  return either({op("aten::add", {a, b, factor}), op("aten::add", {b, a, factor})});
}

Pattern product(const Pattern& a, const Pattern& b) {
  return either({op("aten::mul", {a, b}), op("aten::mul", {b, a})});
}

std::optional<Match> match(const Pattern& pattern, Value value) {
  Match found{value, {}};
  return pattern(value, found) ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace torchalgo
