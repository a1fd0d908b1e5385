// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// The values of an expression that fits a pattern.
struct Match {
  script::Value whole;
  std::map<std::string_view, script::Value> named;
};

/// A form of expressions. It adds the names of a value that fits to the match.
using Pattern = std::function<bool(script::Value value, Match& match)>;

/// Fits a tensor. A name that occurs twice in a pattern is the same tensor.
[[nodiscard]] Pattern tensor(const char* name);

/// Fits a constant number, also as a tensor of rank 0: tracing makes one of a number.
[[nodiscard]] Pattern any_number(const char* name);

/// Fits a constant number that differs by less than `tolerance`, or by nothing.
[[nodiscard]] Pattern number(double wanted, double tolerance = 0);

/// Fits the result of the op `kind` with exactly these inputs. Nothing else may read it, except if
/// it is the whole expression.
[[nodiscard]] Pattern op(const char* kind, std::vector<Pattern> inputs);

/// Fits what fits one of `patterns`. The first one that fits decides.
[[nodiscard]] Pattern either(std::vector<Pattern> patterns);

/// Fits a sum or a product, with its operands in any order.
[[nodiscard]] Pattern sum(const Pattern& a, const Pattern& b);
[[nodiscard]] Pattern product(const Pattern& a, const Pattern& b);

/// Returns the match of an expression, or nullopt if it does not fit.
[[nodiscard]] std::optional<Match> match(const Pattern& pattern, script::Value value);

}  // namespace torchalgo
