// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/errata.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <utility>

namespace torchalgo::cudnn {
namespace {

// Returns the rules for the engines that PyTorch refuses: aten/src/ATen/native/cudnn/Conv_v8.cpp.
// cuDNN's heuristics do not propose the first two engines, but an enumeration finds them.
const std::vector<Erratum>& known_errata() {
  static const std::vector<Erratum> errata = {
      {"pytorch#163539", "ConvFwd", 23, 90800, 91500},
      {"pytorch#171747", "ConvBwdData", 23},
      {"pytorch#188318", "ConvFwd", 5, 92301, 92400, "sm_86"},
      // The cuBLASLt kernel of these engines reads outside its memory. The reports name no
      // operation.
      {.id = "pytorch#191701", .engine = 58, .isa = "sm_120"},
      {.id = "pytorch#191701", .engine = 63, .isa = "sm_120"},
  };
  return errata;
}

// Returns the tags that cuDNN's frontend gives the operations, joined in the order of the graph.
std::string_view operation_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kConv:
      return "ConvFwd";
    case Pattern::kConvBias:
      return "ConvFwd_ADD";
    case Pattern::kConvBiasRelu:
      return "ConvFwd_ADD_RELU_FWD";
    case Pattern::kConvBiasAdd:
      return "ConvFwd_ADD_ADD";
    case Pattern::kConvBiasAddRelu:
      return "ConvFwd_ADD_ADD_RELU_FWD";
    case Pattern::kConvBackwardData:
      return "ConvBwdData";
    case Pattern::kConvBackwardFilter:
      return "ConvBwdFilter";
    case Pattern::kConvRelu:
      return "ConvFwd_RELU_FWD";
    case Pattern::kConvBiasSilu:
      return "ConvFwd_ADD_SWISH_FWD";
    case Pattern::kConvBiasGelu:
      return "ConvFwd_ADD_GELU_FWD";
  }
  return {};
}

struct UserErrata {
  std::mutex mutex;
  std::shared_ptr<const std::vector<Erratum>> rules = std::make_shared<std::vector<Erratum>>();
};

UserErrata& user_errata() {
  static UserErrata errata;
  return errata;
}

const Erratum* find(const std::vector<Erratum>& errata, Pattern pattern, std::int64_t engine,
                    std::size_t version, std::string_view isa) {
  const auto number = static_cast<std::int64_t>(version);
  for (const Erratum& erratum : errata) {
    if (erratum.engine == engine && number >= erratum.first_version &&
        number < erratum.end_version && (erratum.isa.empty() || erratum.isa == isa) &&
        (erratum.operation.empty() || erratum.operation == operation_of(pattern))) {
      return &erratum;
    }
  }
  return nullptr;
}

}  // namespace

void set_errata(std::vector<Erratum> rules) {
  auto shared = std::make_shared<const std::vector<Erratum>>(std::move(rules));
  const std::lock_guard lock(user_errata().mutex);
  user_errata().rules = std::move(shared);
}

std::optional<std::string> errata_refusal(Pattern pattern, std::int64_t engine, std::size_t version,
                                          std::string_view isa) {
  if (const Erratum* known = find(known_errata(), pattern, engine, version, isa)) {
    return fmt::format("is known to compute wrong results or to fail ({})", known->id);
  }
  const auto rules = [] {
    const std::lock_guard lock(user_errata().mutex);
    return user_errata().rules;
  }();
  if (const Erratum* rule = find(*rules, pattern, engine, version, isa)) {
    return fmt::format("the rule '{}' of CUDNN_ERRATA_JSON_FILE refuses it", rule->id);
  }
  return std::nullopt;
}

}  // namespace torchalgo::cudnn
