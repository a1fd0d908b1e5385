// SPDX-License-Identifier: BSD-3-Clause
#include "ir/arithmetic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace torchalgo {
namespace {

using Terms = std::optional<double>;

// The number of terms that counts for an operation that rounds a few times but has no long sum.
constexpr double kFewTerms = 4;

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
  // Returns the number of pairs of a position and a tap that read an element, not padding.
  [[nodiscard]] double taps() const {
    double pairs = 0;
    for_each_tap([&](std::int64_t) { ++pairs; });
    return pairs;
  }
  // Returns the number of elements that at least one tap reads.
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

bool is_exact(const PostOp& op) { return op == PostOp::kRelu || op == PostOp::kRelu6; }

// The defaults are those of an operation that moves its first input: it computes nothing, reads all
// of it and rounds nothing. Other kinds of operations have overloads.
double flops_of(const auto&) { return 0; }
double read_by(const auto& p) { return product(input_sizes(p)[0]); }
Terms terms_of(const auto&) { return std::nullopt; }

double flops_of(const ConvProblem& p) {
  const double filter = static_cast<double>(p.c / p.groups * p.t * p.r * p.s);
  return 2.0 * product(conv_dst_sizes(p)) * filter;
}
double flops_of(const PoolProblem& p) {
  return p.kind == PoolKind::kAdaptiveAverage
             ? static_cast<double>(p.n * p.c) * static_cast<double>(p.h * p.w)
             : product(result_sizes(p)) * static_cast<double>(p.r * p.s);
}
double flops_of(const EltwiseProblem& p) { return product(result_sizes(p)); }
double flops_of(const ScaleShiftProblem& p) { return 2.0 * product(result_sizes(p)); }
double flops_of(const LayerNormProblem& p) { return 7.0 * product(result_sizes(p)); }
double flops_of(const GroupNormProblem& p) { return 7.0 * product(result_sizes(p)); }
double flops_of(const ResizeProblem& p) { return 8.0 * product(result_sizes(p)); }
double flops_of(const LinearProblem& p) {
  return 2.0 * product(result_sizes(p)) * static_cast<double>(p.c);
}
double flops_of(const BatchNormProblem& p) { return 5.0 * product({p.n, p.c, p.h, p.w}); }
double flops_of(const ActivationGradientProblem& p) { return product(result_sizes(p)); }
double flops_of(const PoolGradientProblem& p) { return flops_of(p.pool); }
double flops_of(const ChannelSumsProblem& p) {
  return (p.has_product ? 2.0 : 1.0) * product({p.n, p.c, p.h, p.w});
}
double flops_of(const AttentionProblem& p) {
  const double heads = product({p.n, std::max<std::int64_t>(p.heads, 1)});
  if (p.kind == AttentionKind::kLinear)
    return 2.0 * heads * product({p.queries + p.keys, p.depth, p.width + 1});
  return 2.0 * heads * product({p.queries, p.keys, p.depth + p.width});
}
double flops_of(const ConvChainProblem& p) {
  double flops = 0;
  for (const Problem& layer : p.layers) flops += flop_count(layer);
  return flops;
}

double read_by(const ConvProblem& p) {
  if (p.direction == Direction::kBackwardData) return product(conv_dst_sizes(p));
  return touched(static_cast<double>(p.n * p.c), windows_of(p));
}
double read_by(const PoolProblem& p) {
  if (p.kind == PoolKind::kAdaptiveAverage) return product({p.n, p.c, p.h, p.w});
  return touched(static_cast<double>(p.n * p.c), windows_of(p));
}
double read_by(const SliceProblem& p) { return product({p.n, p.k, p.h, p.w}); }
double read_by(const ResizeProblem& p) {
  return product({p.n, p.c}) * std::min(product({p.h, p.w}), product({p.p, p.q}));
}
double read_by(const ConvChainProblem& p) { return elements_read(p.layers.front()); }

Terms terms_of(const ConvProblem& p) {
  const bool has_weights = p.direction != Direction::kBackwardFilter;
  const std::vector<std::int64_t> sizes = has_weights ? weight_sizes(p) : conv_dst_sizes(p);
  const double taps = product({sizes.begin() + 2, sizes.end()});
  switch (p.direction) {
    case Direction::kForward:
      return taps * static_cast<double>(p.c / p.groups);
    case Direction::kBackwardData:
      return taps * static_cast<double>(p.k / p.groups);
    case Direction::kBackwardFilter:
      return taps * static_cast<double>(p.n);
  }
  return std::nullopt;
}
Terms terms_of(const PoolProblem& p) {
  switch (p.kind) {
    case PoolKind::kMax:
      return std::nullopt;
    case PoolKind::kAverage:
      return static_cast<double>(p.r * p.s);
    case PoolKind::kAdaptiveAverage:
      return static_cast<double>((p.h / p.p + 1) * (p.w / p.q + 1));
  }
  return std::nullopt;
}
Terms terms_of(const EltwiseProblem& p) {
  const bool only_compares = p.kind == EltwiseKind::kActivation &&
                             std::all_of(p.epilogue.begin(), p.epilogue.end(), is_exact);
  return only_compares ? Terms() : kFewTerms;
}
Terms terms_of(const ScaleShiftProblem&) { return kFewTerms; }
Terms terms_of(const LayerNormProblem& p) { return static_cast<double>(p.c); }
Terms terms_of(const GroupNormProblem& p) { return product({p.c / p.groups, p.h, p.w}); }
Terms terms_of(const ResizeProblem& p) {
  return p.kind == ResizeKind::kNearest ? Terms() : kFewTerms;
}
Terms terms_of(const LinearProblem& p) { return static_cast<double>(p.c); }
Terms terms_of(const BatchNormProblem& p) {
  const bool has_sums = p.step == BatchNormStep::kMoments || p.step == BatchNormStep::kGradientSums;
  return has_sums ? product({p.n, p.h, p.w}) : kFewTerms;
}
Terms terms_of(const ActivationGradientProblem& p) {
  return is_exact(p.activation) ? Terms() : kFewTerms;
}
Terms terms_of(const PoolGradientProblem& p) {
  // Each element is in few windows, unless they overlap much.
  return kFewTerms + static_cast<double>(p.pool.r * p.pool.s);
}
Terms terms_of(const ChannelSumsProblem& p) { return product({p.per_image ? 1 : p.n, p.h, p.w}); }
Terms terms_of(const AttentionProblem& p) {
  // The exponential makes a relative error of what is an absolute error of a score. So a scale
  // above 1 / sqrt(depth), which makes scores larger, counts as if there were more terms.
  const auto depth = static_cast<double>(p.depth), keys = static_cast<double>(p.keys);
  if (p.kind == AttentionKind::kLinear) return depth + keys;
  return keys + depth * std::max(1.0, scale_of(p) * scale_of(p) * depth);
}
Terms terms_of(const ConvChainProblem&) { TORCHALGO_ASSERT(false); }

std::int64_t largest_number(const ConvProblem& p) {
  return std::max({p.n,     p.c,       p.d,        p.h,          p.w,          p.k,         p.t,
                   p.r,     p.s,       p.stride_d, p.stride_h,   p.stride_w,   p.pad_d,     p.pad_h,
                   p.pad_w, p.extra_h, p.extra_w,  p.dilation_d, p.dilation_h, p.dilation_w});
}
std::int64_t largest_number(const PoolProblem& p) {
  return std::max({p.n, p.c, p.h, p.w, p.r, p.s, p.stride_h, p.stride_w, p.pad_h, p.pad_w,
                   p.dilation_h, p.dilation_w, p.p, p.q});
}
std::int64_t largest_number(const PoolGradientProblem& p) { return largest_number(p.pool); }
std::int64_t largest_number(const auto&) { return 0; }

// Returns the sizes of all tensors of a layer, and those of the image with the zeros around it.
std::vector<std::vector<std::int64_t>> tensors_of(const Problem& layer) {
  std::vector<std::vector<std::int64_t>> tensors = input_sizes(layer);
  tensors.push_back(result_sizes(layer));
  tensors.push_back(weight_sizes(layer));
  if (const auto* p = std::get_if<ConvProblem>(&layer)) {
    tensors.push_back({p->n, p->c, p->d + 2 * p->pad_d, p->h + 2 * p->pad_h + p->extra_h,
                       p->w + 2 * p->pad_w + p->extra_w});
  }
  return tensors;
}

}  // namespace

std::string refuse_sizes(const Problem& problem) {
  for (const Problem& layer : layers_of(problem)) {
    const auto largest = std::visit([](const auto& p) { return largest_number(p); }, layer);
    if (largest > kMostNumber)
      return fmt::format("needs numbers of at most {}, got {}", kMostNumber, largest);
    for (const std::vector<std::int64_t>& sizes : tensors_of(layer)) {
      if (product(sizes) > kMostElements)
        return fmt::format("needs tensors of at most 2^40 elements, got [{}]",
                           fmt::join(sizes, ", "));
    }
    if (const double flops = flop_count(layer); flops > kMostFlops)
      return fmt::format("needs at most 2^58 operations, got {:.1e}", flops);
  }
  return {};
}

std::int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kTf32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
  }
  return 0;
}

double flop_count(const Problem& problem) {
  return std::visit([](const auto& p) { return flops_of(p); }, problem);
}

double least_flop_count(const Problem& problem) {
  double flops = 0;
  for (const Problem& layer : layers_of(problem)) {
    if (std::holds_alternative<LinearProblem>(layer) ||
        std::holds_alternative<AttentionProblem>(layer)) {
      flops += flop_count(layer);
    }
    if (const auto* conv = std::get_if<ConvProblem>(&layer)) {
      double taps = 1;
      for (const Window& window : windows_of(*conv)) taps *= window.taps();
      flops += 2.0 * product({conv->n, conv->k, conv->c / conv->groups}) * taps;
    }
  }
  return flops;
}

double elements_read(const Problem& problem) {
  return std::visit([](const auto& p) { return read_by(p); }, problem);
}

std::optional<double> terms_per_element(const Problem& problem) {
  return std::visit([](const auto& p) { return terms_of(p); }, problem);
}

}  // namespace torchalgo
