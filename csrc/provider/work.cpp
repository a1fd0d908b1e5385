// SPDX-License-Identifier: BSD-3-Clause
#include "provider/work.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <vector>

#include "provider/weights.h"

namespace torchalgo {
namespace {

double product(const std::vector<std::int64_t>& sizes) {
  double result = 1;
  for (const std::int64_t size : sizes) result *= static_cast<double>(size);
  return result;
}

// A window that slides over one dimension.
struct Window {
  std::int64_t size, count, filter, stride, pad, dilation;

  template <typename Visit>
  void for_each_tap(const Visit& visit) const {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t f = 0; f < filter; ++f) {
        const std::int64_t at = i * stride - pad + f * dilation;
        if (at >= 0 && at < size) visit(at);
      }
    }
  }
  // Pairs of a position and a tap that meet an element.
  [[nodiscard]] double taps() const {
    double count = 0;
    for_each_tap([&](std::int64_t) { ++count; });
    return count;
  }
  // Elements that some tap meets.
  [[nodiscard]] double touched() const {
    std::vector<bool> is_met(static_cast<std::size_t>(size), false);
    for_each_tap([&](std::int64_t at) { is_met[static_cast<std::size_t>(at)] = true; });
    return static_cast<double>(std::count(is_met.begin(), is_met.end(), true));
  }
};

std::vector<Window> windows_of(const ConvProblem& p) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(p);
  std::vector<Window> windows = {
      {p.h, dst[dst.size() - 2], p.r, p.stride_h, p.pad_h, p.dilation_h},
      {p.w, dst[dst.size() - 1], p.s, p.stride_w, p.pad_w, p.dilation_w}};
  if (p.is_3d) windows.push_back({p.d, dst[2], p.t, p.stride_d, p.pad_d, p.dilation_d});
  return windows;
}

std::vector<Window> windows_of(const PoolProblem& p) {
  const std::vector<std::int64_t> dst = result_sizes(p);
  return {{p.h, dst[2], p.r, p.stride_h, p.pad_h, p.dilation_h},
          {p.w, dst[3], p.s, p.stride_w, p.pad_w, p.dilation_w}};
}

double touched(double planes, const std::vector<Window>& windows) {
  for (const Window& window : windows) planes *= window.touched();
  return planes;
}

// Elements of the first data input of a layer that count.
double elements_read(const Problem& problem) {
  if (const auto* conv = std::get_if<ConvProblem>(&problem)) {
    if (conv->direction != Direction::kBackwardData) {
      return touched(static_cast<double>(conv->n * conv->c), windows_of(*conv));
    }
  }
  if (const auto* pool = std::get_if<PoolProblem>(&problem)) {
    if (pool->kind != PoolKind::kAdaptiveAverage) {
      return touched(static_cast<double>(pool->n * pool->c), windows_of(*pool));
    }
  }
  const double all = product(input_sizes(problem)[0]);
  const bool reads_a_part = std::holds_alternative<ResizeProblem>(problem) ||
                            std::holds_alternative<SliceProblem>(problem);
  return reads_a_part ? std::min(all, product(result_sizes(problem))) : all;
}

double direct_flops(const Problem& layer) {
  if (const auto* conv = std::get_if<ConvProblem>(&layer)) {
    double flops =
        2.0 * static_cast<double>(conv->n * conv->k) * static_cast<double>(conv->c / conv->groups);
    for (const Window& window : windows_of(*conv)) flops *= window.taps();
    return flops;
  }
  return std::holds_alternative<LinearProblem>(layer) ? flop_count(layer) : 0;
}

}  // namespace

double least_bytes(const Problem& problem) {
  const std::vector<std::vector<std::int64_t>> inputs = input_sizes(problem);
  double elements = elements_read(layers_of(problem).front()) + product(result_sizes(problem));
  for (std::size_t i = 1; i < inputs.size(); ++i) elements += product(inputs[i]);
  const auto* conv = std::get_if<ConvProblem>(&problem);
  const bool makes_weights = conv != nullptr && conv->direction == Direction::kBackwardFilter;
  for (const Problem& layer : layers_of(problem)) {
    const std::vector<std::int64_t> weights = weight_sizes(layer);
    if (!weights.empty() && !makes_weights) elements += product(weights);
  }
  return elements * static_cast<double>(c10::elementSize(scalar_type(dtype_of(problem))));
}

Work direct_work(const Problem& problem, const Primitive&) {
  Work work{0, least_bytes(problem)};
  for (const Problem& layer : layers_of(problem)) work.flops += direct_flops(layer);
  return work;
}

}  // namespace torchalgo
