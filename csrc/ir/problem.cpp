// SPDX-License-Identifier: BSD-3-Clause
#include "ir/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ir/arithmetic.h"

namespace torchalgo {
namespace {

using Sizes = std::vector<std::int64_t>;

// Returns the size of a convolution's result. `zeros` is the sum of those on both sides of the
// image.
std::int64_t conv_extent(std::int64_t size, std::int64_t filter, std::int64_t stride,
                         std::int64_t zeros, std::int64_t dilation) {
  const std::int64_t span = size + zeros - dilation * (filter - 1) - 1;
  return span < 0 ? 0 : span / stride + 1;
}

// Returns the size of a pooling's result by torch's rule: with ceil_mode the last window must start
// inside the image or its left padding.
std::int64_t pool_extent(std::int64_t size, std::int64_t window, std::int64_t stride,
                         std::int64_t pad, std::int64_t dilation, bool ceil_mode) {
  const std::int64_t span = size + 2 * pad - dilation * (window - 1) - 1;
  if (span < 0 && !(ceil_mode && span + stride > 0)) return 0;
  std::int64_t count = (span + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (count - 1) * stride >= size + pad) --count;
  return count;
}

// Most kinds of operations read one tensor [n, c, h, w], have a result of the same sizes and no
// weights. The others have overloads of the functions `sizes_of`, `inputs_of`, `set_sizes` and
// `weights_of`.
Sizes sizes_of(const auto& p) { return {p.n, p.c, p.h, p.w}; }
std::vector<Sizes> inputs_of(const auto& p) { return {{p.n, p.c, p.h, p.w}}; }
Sizes weights_of(const auto&) { return {}; }

Sizes src_sizes(const ConvProblem& p) {
  return p.is_3d ? Sizes{p.n, p.c, p.d, p.h, p.w} : Sizes{p.n, p.c, p.h, p.w};
}

Sizes sizes_of(const ConvProblem& p) {
  switch (p.direction) {
    case Direction::kForward:
      return conv_dst_sizes(p);
    case Direction::kBackwardData:
      return src_sizes(p);
    case Direction::kBackwardFilter:
      return weight_sizes(p);
  }
  return {};
}

Sizes sizes_of(const PoolProblem& p) {
  if (p.kind == PoolKind::kAdaptiveAverage) return {p.n, p.c, p.p, p.q};
  return {p.n, p.c, pool_extent(p.h, p.r, p.stride_h, p.pad_h, p.dilation_h, p.ceil_mode),
          pool_extent(p.w, p.s, p.stride_w, p.pad_w, p.dilation_w, p.ceil_mode)};
}

Sizes sizes_of(const ConcatProblem& p) {
  return {p.n, std::accumulate(p.c.begin(), p.c.end(), std::int64_t{0}), p.h, p.w};
}
Sizes sizes_of(const SliceProblem& p) { return {p.n, p.k, p.h, p.w}; }
Sizes sizes_of(const PixelShuffleProblem& p) {
  return {p.n, p.c / (p.factor * p.factor), p.h * p.factor, p.w * p.factor};
}
Sizes sizes_of(const ResizeProblem& p) { return {p.n, p.c, p.p, p.q}; }
Sizes sizes_of(const LinearProblem& p) { return {p.n, p.k}; }
Sizes sizes_of(const TransformProblem& p) {
  return p.is_3d ? Sizes{p.n, p.c, p.d, p.h, p.w} : Sizes{p.n, p.c, p.h, p.w};
}
Sizes sizes_of(const BatchNormProblem& p) {
  const bool is_image = p.step == BatchNormStep::kNormalize || p.step == BatchNormStep::kGradient;
  return is_image ? Sizes{p.n, p.c, p.h, p.w} : Sizes{2, p.c, 1, 1};
}
Sizes sizes_of(const PoolGradientProblem& p) { return {p.pool.n, p.pool.c, p.pool.h, p.pool.w}; }
Sizes sizes_of(const ChannelSumsProblem& p) { return {p.per_image ? p.n : 1, p.c, 1, 1}; }

// Returns the sizes of a tensor of an attention, which may have no dimension of heads.
Sizes of_heads(const AttentionProblem& p, std::int64_t rows, std::int64_t columns) {
  return p.heads > 0 ? Sizes{p.n, p.heads, rows, columns} : Sizes{p.n, rows, columns};
}
Sizes sizes_of(const AttentionProblem& p) { return of_heads(p, p.queries, p.width); }
Sizes sizes_of(const ConvChainProblem& p) { return result_sizes(p.layers.back()); }

std::vector<Sizes> inputs_of(const ConvProblem& p) {
  switch (p.direction) {
    case Direction::kForward:
      return {src_sizes(p)};
    case Direction::kBackwardData:
      return {conv_dst_sizes(p)};
    case Direction::kBackwardFilter:
      return {src_sizes(p), conv_dst_sizes(p)};
  }
  return {};
}

std::vector<Sizes> inputs_of(const EltwiseProblem& p) {
  const Sizes whole = {p.n, p.c, p.h, p.w};
  if (p.kind == EltwiseKind::kActivation) return {whole};
  return {whole, p.channelwise ? Sizes{p.n, p.c, 1, 1} : whole};
}
std::vector<Sizes> inputs_of(const ConcatProblem& p) {
  std::vector<Sizes> inputs;
  for (const std::int64_t c : p.c) inputs.push_back({p.n, c, p.h, p.w});
  return inputs;
}
std::vector<Sizes> inputs_of(const LinearProblem& p) { return {{p.n, p.c}}; }
std::vector<Sizes> inputs_of(const TransformProblem& p) { return {sizes_of(p)}; }
std::vector<Sizes> inputs_of(const BatchNormProblem& p) {
  const Sizes image = {p.n, p.c, p.h, p.w}, pairs = {2, p.c, 1, 1};
  switch (p.step) {
    case BatchNormStep::kMoments:
      return {image};
    case BatchNormStep::kNormalize:
      return {image, pairs};
    case BatchNormStep::kGradientSums:
      return {image, image, pairs};
    case BatchNormStep::kGradient:
      return {image, image, pairs, pairs};
  }
  return {};
}
std::vector<Sizes> inputs_of(const ActivationGradientProblem& p) {
  return {{p.n, p.c, p.h, p.w}, {p.n, p.c, p.h, p.w}};
}
std::vector<Sizes> inputs_of(const PoolGradientProblem& p) {
  std::vector<Sizes> inputs = {sizes_of(p.pool)};
  if (p.pool.kind == PoolKind::kMax) inputs.push_back(sizes_of(p));
  return inputs;
}
std::vector<Sizes> inputs_of(const ChannelSumsProblem& p) {
  return std::vector<Sizes>(p.has_product ? 2 : 1, {p.n, p.c, p.h, p.w});
}
std::vector<Sizes> inputs_of(const AttentionProblem& p) {
  std::vector<Sizes> inputs = {of_heads(p, p.queries, p.depth), of_heads(p, p.keys, p.depth),
                               of_heads(p, p.keys, p.width)};
  if (!p.bias.empty()) inputs.push_back(p.bias);
  return inputs;
}
std::vector<Sizes> inputs_of(const ConvChainProblem& p) {
  return std::visit([](const auto& first) { return inputs_of(first); }, p.layers.front());
}

void set_sizes(ConvProblem& p, const std::vector<Sizes>& in) {
  const std::size_t rank = p.is_3d ? 5 : 4;
  TORCHALGO_CHECK(in[0].size() == rank && in[0][1] == inputs_of(p)[0][1],
                  "TA4301 {}: expected an input of rank {} with {} channels, got sizes [{}]",
                  to_string(p), rank, inputs_of(p)[0][1], fmt::join(in[0], ", "));
  if (p.direction == Direction::kForward) {
    p.n = in[0][0];
    if (p.is_3d) p.d = in[0][2];
    p.h = in[0][rank - 2];
    p.w = in[0][rank - 1];
    return;
  }
  // The result of a transposed convolution grows with its input. It keeps the output padding for
  // which it was planned.
  const Sizes old = inputs_of(p)[0];
  p.n = in[0][0];
  if (p.is_3d) p.d += (in[0][2] - old[2]) * p.stride_d;
  p.h += (in[0][rank - 2] - old[rank - 2]) * p.stride_h;
  p.w += (in[0][rank - 1] - old[rank - 1]) * p.stride_w;
}

template <typename P>
void set_nchw(P& p, const Sizes& sizes) {
  TORCHALGO_CHECK(sizes.size() == 4 && sizes[1] == p.c,
                  "TA4301 {}: expected an input of rank 4 with {} channels, got sizes [{}]",
                  to_string(Problem(p)), p.c, fmt::join(sizes, ", "));
  p.n = sizes[0];
  p.h = sizes[2];
  p.w = sizes[3];
}

void set_sizes(auto& p, const std::vector<Sizes>& in) { set_nchw(p, in[0]); }
void set_sizes(EltwiseProblem& p, const std::vector<Sizes>& in) {
  if (in[0].size() == 4) p.c = in[0][1];  // no weights fix the channels
  set_nchw(p, in[0]);
}
void set_sizes(ConcatProblem& p, const std::vector<Sizes>& in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    TORCHALGO_CHECK(in[i].size() == 4 && in[i][1] == p.c[i] && in[i][0] == in[0][0] &&
                        in[i][2] == in[0][2] && in[i][3] == in[0][3],
                    "TA4301 {}: input {} has sizes [{}], the first input has [{}]; expected equal "
                    "sizes but for the channels",
                    to_string(p), i, fmt::join(in[i], ", "), fmt::join(in[0], ", "));
  }
  p.n = in[0][0];
  p.h = in[0][2];
  p.w = in[0][3];
}
void set_sizes(ResizeProblem& p, const std::vector<Sizes>& in) {
  set_nchw(p, in[0]);
  if (p.scale_h > 0) {
    p.p = p.h * p.scale_h;
    p.q = p.w * p.scale_w;
  }
}
void set_sizes(LinearProblem& p, const std::vector<Sizes>& in) {
  TORCHALGO_CHECK(in[0].size() == 2 && in[0][1] == p.c,
                  "TA4301 {}: expected an input of sizes [n, {}], got [{}]", to_string(p), p.c,
                  fmt::join(in[0], ", "));
  p.n = in[0][0];
}
void set_sizes(TransformProblem& p, const std::vector<Sizes>& in) {
  const std::size_t rank = p.is_3d ? 5 : 4;
  TORCHALGO_CHECK(in[0].size() == rank && in[0][1] == p.c,
                  "TA4301 {}: expected an input of rank {} with {} channels, got sizes [{}]",
                  to_string(p), rank, p.c, fmt::join(in[0], ", "));
  p.n = in[0][0];
  if (p.is_3d) p.d = in[0][2];
  p.h = in[0][rank - 2];
  p.w = in[0][rank - 1];
}

void set_sizes(ActivationGradientProblem& p, const std::vector<Sizes>& in) {
  if (in[0].size() == 4) p.c = in[0][1];  // no weights fix the channels
  set_nchw(p, in[0]);
}
void set_sizes(PoolGradientProblem& p, const std::vector<Sizes>& in) {
  // The sizes of the result do not follow from those of the gradient.
  const std::vector<Sizes> expected = inputs_of(p);
  TORCHALGO_CHECK(in == expected || (in.size() == 2 && in[1].size() == 4 && in[1][1] == p.pool.c),
                  "TA4301 {}: expected inputs of rank 4 with {} channels, got [{}] first",
                  to_string(p), p.pool.c, fmt::join(in[0], ", "));
  if (in.size() == 2) set_nchw(p.pool, in[1]);
}
void set_sizes(AttentionProblem& p, const std::vector<Sizes>& in) {
  const std::size_t rank = p.heads > 0 ? 4 : 3;
  TORCHALGO_CHECK(in[0].size() == rank && in[2].size() == rank,
                  "TA4301 {}: expected queries and values of rank {}, got sizes [{}] and [{}]",
                  to_string(p), rank, fmt::join(in[0], ", "), fmt::join(in[2], ", "));
  p.n = in[0][0];
  if (p.heads > 0) p.heads = in[0][1];
  p.queries = in[0][rank - 2];
  p.depth = in[0][rank - 1];
  p.keys = in[2][rank - 2];
  p.width = in[2][rank - 1];
  if (in.size() > 3) p.bias = in[3];
  TORCHALGO_CHECK(can_broadcast_bias(p),
                  "TA4301 {}: a bias of sizes [{}] does not broadcast to {} queries and {} keys",
                  to_string(p), fmt::join(p.bias, ", "), p.queries, p.keys);
}
void set_sizes(ConvChainProblem& p, const std::vector<Sizes>& in) {
  std::vector<Sizes> src = in;
  for (Problem& layer : p.layers) {
    std::visit([&](auto& own) { set_sizes(own, src); }, layer);
    src = {result_sizes(layer)};
  }
}

Sizes weights_of(const ConvProblem& p) {
  if (p.is_3d) return {p.k, p.c / p.groups, p.t, p.r, p.s};
  return {p.k, p.c / p.groups, p.r, p.s};
}
Sizes weights_of(const ScaleShiftProblem& p) { return {p.c}; }
Sizes weights_of(const LayerNormProblem& p) { return {p.c}; }
Sizes weights_of(const GroupNormProblem& p) { return {p.c}; }
Sizes weights_of(const LinearProblem& p) { return {p.k, p.c}; }
Sizes weights_of(const BatchNormProblem& p) {
  const bool has_scale = p.step == BatchNormStep::kNormalize ||
                         p.step == BatchNormStep::kGradient || p.activation.has_value();
  return has_scale ? Sizes{p.c} : Sizes{};
}
Sizes weights_of(const ConvChainProblem&) { TORCHALGO_ASSERT(false); }

template <typename P>
concept HasEpilogue = requires(P p) {
  p.epilogue;
};

// Returns the problem's epilogue, or null if this kind of problem has none.
const Epilogue* find_epilogue(const Problem& problem) {
  return std::visit(
      []<typename P>(const P& p) -> const Epilogue* {
        if constexpr (HasEpilogue<P>) {
          return &p.epilogue;
        } else if constexpr (std::is_same_v<P, ConvChainProblem>) {
          return find_epilogue(p.layers.back());
        } else {
          return nullptr;
        }
      },
      problem);
}

}  // namespace

std::vector<std::int64_t> conv_dst_sizes(const ConvProblem& p) {
  const auto rows = conv_extent(p.h, p.r, p.stride_h, 2 * p.pad_h + p.extra_h, p.dilation_h);
  const auto columns = conv_extent(p.w, p.s, p.stride_w, 2 * p.pad_w + p.extra_w, p.dilation_w);
  if (!p.is_3d) return {p.n, p.k, rows, columns};
  return {p.n, p.k, conv_extent(p.d, p.t, p.stride_d, 2 * p.pad_d, p.dilation_d), rows, columns};
}

double scale_of(const AttentionProblem& attention) {
  return attention.scale.value_or(1 / std::sqrt(static_cast<double>(attention.depth)));
}

bool can_broadcast_bias(const AttentionProblem& p) {
  const Sizes scores = of_heads(p, p.queries, p.keys);
  if (p.bias.size() > scores.size()) return false;
  for (std::size_t i = 1; i <= p.bias.size(); ++i) {
    const std::int64_t size = p.bias[p.bias.size() - i];
    if (size != 1 && size != scores[scores.size() - i]) return false;
  }
  return true;
}

std::vector<std::int64_t> result_sizes(const Problem& problem) {
  return std::visit([](const auto& p) { return sizes_of(p); }, problem);
}

std::vector<std::vector<std::int64_t>> input_sizes(const Problem& problem) {
  auto inputs = std::visit([](const auto& p) { return inputs_of(p); }, problem);
  if (has(epilogue_of(problem), PostOp::kAdd)) inputs.push_back(result_sizes(problem));
  return inputs;
}

Problem with_input_sizes(const Problem& problem,
                         const std::vector<std::vector<std::int64_t>>& sizes) {
  const std::size_t expected = input_sizes(problem).size();
  TORCHALGO_CHECK(sizes.size() == expected, "TA4301 {}: expected {} inputs, got {}",
                  to_string(problem), expected, sizes.size());
  for (const auto& each : sizes) {
    TORCHALGO_CHECK(each.empty() || std::ranges::max(each) <= kMostNumber,
                    "TA4301 {}: an input has sizes [{}], expected at most {}", to_string(problem),
                    fmt::join(each, ", "), kMostNumber);
  }
  Problem result = problem;
  std::visit([&](auto& p) { set_sizes(p, sizes); }, result);
  const std::string refusal = refuse_sizes(result);
  TORCHALGO_CHECK(refusal.empty(), "TA4301 {} on an input of sizes [{}]: {}", to_string(problem),
                  fmt::join(sizes[0], ", "), refusal);
  const auto fitting = input_sizes(result);
  for (std::size_t i = 0; i < expected; ++i) {
    TORCHALGO_CHECK(fitting[i] == sizes[i], "TA4301 {}: input {} has sizes [{}], expected [{}]",
                    to_string(problem), i, fmt::join(sizes[i], ", "), fmt::join(fitting[i], ", "));
  }
  for (const std::int64_t size : result_sizes(result)) {
    TORCHALGO_CHECK(size >= 1,
                    "TA4301 {}: an input of sizes [{}] is too small: the result would be empty",
                    to_string(problem), fmt::join(sizes[0], ", "));
  }
  return result;
}

std::vector<Problem> layers_of(const Problem& problem) {
  const auto* chain = std::get_if<ConvChainProblem>(&problem);
  return chain == nullptr ? std::vector{problem} : chain->layers;
}

bool is_chain_head(const Problem& problem) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  if (eltwise != nullptr) return eltwise->kind == EltwiseKind::kMul && eltwise->channelwise;
  const auto* pool = std::get_if<PoolProblem>(&problem);
  if (pool != nullptr)
    return pool->kind == PoolKind::kAdaptiveAverage && pool->p == 1 && pool->q == 1;
  return std::holds_alternative<ScaleShiftProblem>(problem);
}

bool is_lone_activation(const Problem& problem) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  return eltwise != nullptr && eltwise->kind == EltwiseKind::kActivation;
}

bool is_convolution(const Problem& problem) {
  return std::holds_alternative<ConvProblem>(problem) ||
         std::holds_alternative<ConvChainProblem>(problem);
}

ConvChainProblem with_next(const Problem& problem, const ConvProblem& next) {
  TORCHALGO_ASSERT((is_convolution(problem) || is_chain_head(problem)) &&
                   next.direction == Direction::kForward &&
                   !has(epilogue_of(problem), PostOp::kAdd) && !next.is_3d &&
                   next.dtype == dtype_of(problem) && src_sizes(next) == result_sizes(problem));
  ConvChainProblem chain{layers_of(problem)};
  chain.layers.emplace_back(next);
  return chain;
}

std::vector<std::int64_t> weight_sizes(const Problem& problem) {
  return std::visit([](const auto& p) { return weights_of(p); }, problem);
}

std::vector<std::int64_t> bias_sizes(const Problem& problem) {
  Sizes weights = weight_sizes(problem);
  if (weights.size() == 1) return weights;
  return has(epilogue_of(problem), PostOp::kBias) ? Sizes{result_sizes(problem).at(1)} : Sizes{};
}

DType dtype_of(const Problem& problem) {
  return std::visit(
      []<typename P>(const P& p) {
        if constexpr (std::is_same_v<P, ConvChainProblem>) {
          return dtype_of(p.layers.front());
        } else if constexpr (std::is_same_v<P, PoolGradientProblem>) {
          return p.pool.dtype;
        } else {
          return p.dtype;
        }
      },
      problem);
}

const Epilogue& epilogue_of(const Problem& problem) {
  static const Epilogue kNone;
  const Epilogue* found = find_epilogue(problem);
  return found == nullptr ? kNone : *found;
}

Problem with_epilogue(const Problem& problem, Epilogue epilogue) {
  Problem result = problem;
  auto* own = const_cast<Epilogue*>(find_epilogue(result));
  TORCHALGO_ASSERT(own != nullptr || epilogue.empty());
  if (own != nullptr) *own = std::move(epilogue);
  return result;
}

bool has(const Epilogue& epilogue, const PostOp& op) {
  return std::find(epilogue.begin(), epilogue.end(), op) != epilogue.end();
}

std::optional<BiasAddActivation> as_bias_add_activation(const Epilogue& epilogue) {
  BiasAddActivation form;
  auto op = epilogue.begin();
  if (op != epilogue.end() && *op == PostOp::kBias) form.bias = true, ++op;
  if (op != epilogue.end() && *op == PostOp::kAdd) form.add = true, ++op;
  if (op != epilogue.end() && is_activation(*op)) form.activation = *op++;
  if (op != epilogue.end()) return std::nullopt;
  return form;
}

}  // namespace torchalgo
