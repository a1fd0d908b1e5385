// SPDX-License-Identifier: BSD-3-Clause
#include "ir/fusion_and_chains.h"

#include <utility>
#include <vector>

namespace torchalgo {
namespace {

// Returns the type in memory. A tf32 convolution stores f32, so the operations after it are f32.
DType stored(const Problem& problem) {
  const DType dtype = dtype_of(problem);
  return dtype == DType::kTf32 ? DType::kF32 : dtype;
}

bool is_forward_2d(const ConvProblem& conv) {
  return conv.direction == Direction::kForward && !conv.is_3d;
}

bool is_depthwise(const ConvProblem& conv) {
  return conv.groups > 1 && conv.groups == conv.c && conv.k == conv.c;
}

// Returns true if `next` may run in the same call as `before`. There are three cases. A 1x1
// convolution can apply an operation on single elements when it reads its input. After a global
// pooling there is little to compute, so the call overhead matters most. Two other convolutions
// gain if one is depthwise: it computes little, and the tensor between the two is larger than the
// input and the result.
bool may_chain(const Problem& before, const ConvProblem& next) {
  constexpr std::size_t kMostLayers = 3;
  if (is_chain_head(before))
    return is_forward_2d(next) && is_pointwise(next) && dtype_of(before) == next.dtype;
  if (!is_convolution(before) || has(epilogue_of(before), PostOp::kAdd)) return false;
  const std::vector<Problem> layers = layers_of(before);
  if (layers.size() >= kMostLayers) return false;
  const auto& last = std::get<ConvProblem>(layers.back());
  if (!is_forward_2d(next) || last.dtype != next.dtype) return false;
  if (is_chain_head(layers[0])) {
    return std::holds_alternative<PoolProblem>(layers[0]) && is_pointwise(next);
  }
  return is_forward_2d(last) && is_depthwise(last) != is_depthwise(next);
}

bool is_normalize(const Problem& problem) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  return norm != nullptr && norm->step == BatchNormStep::kNormalize;
}

bool takes_activation(const Problem& problem) {
  if (const auto* eltwise = std::get_if<EltwiseProblem>(&problem)) {
    return eltwise->kind != EltwiseKind::kActivation;
  }
  return is_convolution(problem) || std::holds_alternative<LinearProblem>(problem) ||
         std::holds_alternative<ScaleShiftProblem>(problem) ||
         std::holds_alternative<GroupNormProblem>(problem) || is_normalize(problem);
}

std::optional<Fusion> fuse_eltwise(const Problem& before, const EltwiseProblem& next) {
  Epilogue epilogue = epilogue_of(before);
  const bool is_done = !epilogue.empty() && is_activation(epilogue.back());
  if (is_done || !takes_activation(before)) return std::nullopt;
  if (next.kind == EltwiseKind::kActivation) {
    epilogue.push_back(next.epilogue[0]);
    return Fusion{with_epilogue(before, std::move(epilogue))};
  }
  const bool is_residual =
      next.kind == EltwiseKind::kAdd && !next.channelwise && next.epilogue.empty() &&
      (is_convolution(before) || is_normalize(before)) && !has(epilogue, PostOp::kAdd);
  if (!is_residual) return std::nullopt;
  epilogue.push_back(PostOp::kAdd);
  return Fusion{with_epilogue(before, std::move(epilogue)), true};
}

}  // namespace

std::optional<Fusion> fuse(const Problem& before, const Problem& next) {
  if (stored(before) != stored(next)) return std::nullopt;
  if (const auto* conv = std::get_if<ConvProblem>(&next)) {
    return may_chain(before, *conv) ? std::optional(Fusion{with_next(before, *conv)})
                                    : std::nullopt;
  }
  if (const auto* eltwise = std::get_if<EltwiseProblem>(&next)) {
    return fuse_eltwise(before, *eltwise);
  }
  const auto* concat = std::get_if<ConcatProblem>(&before);
  const auto* shuffle = std::get_if<ShuffleProblem>(&next);
  if (concat == nullptr || shuffle == nullptr || concat->groups > 1) return std::nullopt;
  ConcatProblem shuffled = *concat;
  shuffled.groups = shuffle->groups;
  return Fusion{shuffled};
}

}  // namespace torchalgo
