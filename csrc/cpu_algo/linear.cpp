// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/linear.h"

#include <fmt/format.h>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

// The name of the variant that copies the weights, and the most columns for which the copy pays
// off. Packed weights lie in pages of 2 MiB. Read from memory, rows of 960 columns are 1.4 to 2
// times as fast, rows of 2048 columns 1.2 times. Longer rows gain too, but VGG-16 would hold 494 MB
// twice to save 3 % of its time.
constexpr const char* kPanels = "cpu.linear.panels";
constexpr std::int64_t kMostPanelColumns = 2048;

Offer offer_all(const Problem& problem, const Device&) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr) return {{}, "needs a linear layer"};
  const auto form = as_bias_add_activation(linear->epilogue);
  if (!form || form->add) return {{}, "needs an epilogue bias, activation"};
  Offer offer = offer_f32("cpu.linear", linear->dtype, {Layout::kNchw});
  if (offer.refusal.empty() && linear->c <= kMostPanelColumns)
    offer.primitives.push_back({kPanels, Layout::kNchw, Layout::kNchw});
  return offer;
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr || (linear->n >= 1 && linear->n <= kMostLinearInputs))
    return offer_all(problem, device);
  return {{},
          fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                      kMostLinearInputs, linear->n)};
}

}  // namespace

Algorithm linear(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.linear";
  algorithm.rounding = 1;
  algorithm.version = 3;
  algorithm.offer = offer;
  algorithm.offer_all = offer_all;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
    const auto& linear = std::get<LinearProblem>(problem);
    PlainKernel kernel = bind_linear(linear, primitive.name == kPanels, isa);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  algorithm.packs_for_all_sizes = true;
  return algorithm;
}

}  // namespace torchalgo::cpu
