// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cudnn_algo/engine.h"

namespace torchalgo::cudnn {

/// An engine that is known to compute wrong results or to fail on some machines.
struct Erratum {
  std::string id;  // identifies its description
  /// cuDNN frontend's name of a graph, such as "ConvFwd_ADD_RELU_FWD". Empty for any graph.
  std::string operation = {};
  std::int64_t engine = 0;
  std::int64_t first_version = 0;  // 90800 = 9.8.0
  std::int64_t end_version =
      std::numeric_limits<std::int64_t>::max();  // first version that is not affected
  std::string isa = {};                          // "sm_86", or empty for any GPU
  bool operator==(const Erratum&) const = default;
};

/// Sets the rules of the user, in place of those set before. Python reads them from the file that
/// the environment variable CUDNN_ERRATA_JSON_FILE names.
void set_errata(std::vector<Erratum> rules);

/// Returns the reason why an engine is not offered: a rule of the table in errata.cpp, or of
/// set_errata(). Returns nullopt if no rule applies.
[[nodiscard]] std::optional<std::string> errata_refusal(Pattern pattern, std::int64_t engine,
                                                        std::size_t version, std::string_view isa);

}  // namespace torchalgo::cudnn
