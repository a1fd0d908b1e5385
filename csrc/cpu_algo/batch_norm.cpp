// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

using kernels::BatchShape;

// The kernels for tensors of one type. Numbers per channel are floats in any case.
struct Kernels {
  decltype(&kernels::default_isa::measure_groups) measure;
  decltype(&kernels::default_isa::combine_moments) combine_moments;
  decltype(&kernels::default_isa::add_up_gradients) add_up;
  decltype(&kernels::default_isa::combine_gradients) combine_gradients;
  decltype(&kernels::default_isa::run_normalize) normalize;
};

BatchShape shape_of(std::int64_t n, std::int64_t c, std::int64_t pixels, Layout layout) {
  const LaneShape image = lane_shape(layout, 1, c);
  BatchShape shape = {n, image.groups, pixels, image.lanes, c, 1, 1};
  shape.part_size = std::min(pixels, shape.lanes == 1 ? kernels::kPlanePart : kernels::kPixelPart);
  shape.parts = (pixels + shape.part_size - 1) / shape.part_size;
  return shape;
}

std::int64_t padded_channels(const BatchShape& shape) { return shape.blocks * shape.lanes; }

std::int64_t partial_count(const BatchShape& shape) { return shape.images * shape.parts; }

std::int64_t floats_of(const BatchShape& shape) {
  return shape.images * shape.pixels * padded_channels(shape);
}

template <class Step, class Call>
void run_in_parallel(const Threads& threads, Step step, const Call& call, std::int64_t tasks,
                     std::int64_t floats) {
  parallel_for(threads, tasks, grain_of(floats / tasks), step, call);
}

void find_moments(const Kernels& kernels, const BatchShape& shape, const RunArgs& args,
                  const Threads& threads) {
  auto* const moments = static_cast<kernels::Moments*>(args.workspace);
  kernels::GroupNorm parts = {};
  parts.src = args.src[0];
  parts.moments = moments;
  parts.blocks = shape.blocks;
  parts.pixels = shape.pixels;
  parts.lanes = shape.lanes;
  parts.channels = parts.groups = shape.channels;
  parts.parts = shape.parts;
  parts.part_size = shape.part_size;
  run_in_parallel(threads, kernels.measure, parts, partial_count(shape) * strips_of(parts),
                  floats_of(shape));
  run_in_parallel(threads, kernels.combine_moments, kernels::BatchMoments{shape, moments, args.dst},
                  padded_channels(shape), partial_count(shape) * padded_channels(shape));
}

// Runs `sums`, which has all but the tensors.
void find_sums(const Kernels& kernels, const kernels::GradientSums& sums, const RunArgs& args,
               const Threads& threads) {
  const BatchShape& shape = sums.shape;
  kernels::GradientSums call = sums;
  call.diff = args.src[0];
  if (call.kind != kernels::SumKind::kPlain) call.x = args.src[1];
  if (args.src.size() > 2) call.moments = args.src[2];
  call.partial = static_cast<float*>(args.workspace);
  call.dst = args.dst;
  run_in_parallel(threads, kernels.add_up, call, partial_count(shape) * strips_of(shape),
                  floats_of(shape));
  run_in_parallel(threads, kernels.combine_gradients, call, call.sets * padded_channels(shape),
                  partial_count(shape) * padded_channels(shape));
}

std::int64_t bytes_of_partial_sums(const BatchShape& shape, kernels::SumKind kind) {
  return partial_count(shape) * kernels::sums_per_channel(kind) * padded_channels(shape) *
         std::int64_t{sizeof(float)};
}

// Returns the activation of an epilogue [+add][+clamp], or nullopt for any other epilogue.
std::optional<kernels::Activation> clamp_of_epilogue(const Epilogue& epilogue) {
  Epilogue rest = epilogue;
  if (!rest.empty() && rest.front() == PostOp::kAdd) rest.erase(rest.begin());
  const auto activation = only_activation(rest);
  return activation && kernels::is_clamp(*activation) ? activation : std::nullopt;
}

// Returns `clamp`, the one behind a batch norm whose gradient is computed. Writes its factors, [2,
// padded channels]. They equal those of kNormalize bit for bit, so the gradient stops where the
// clamp has stopped the value.
kernels::ClampBehind clamp_behind(const std::optional<kernels::Activation>& clamp,
                                  const BatchNormProblem& norm, const BatchShape& shape,
                                  const RunArgs& args, float* factors) {
  if (!clamp) return {};
  const float* const moments = args.src[2];
  const std::int64_t padded = padded_channels(shape);
  std::fill(factors, factors + 2 * padded, 0.0F);
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    const double inverse = 1.0 / std::sqrt(moments[padded + c] + norm.epsilon);
    factors[c] = static_cast<float>(inverse * args.weights[0].weights[c]);
    factors[padded + c] = args.weights[0].bias[c];
  }
  return {factors, *clamp};
}

// Writes the factors of kNormalize or kGradient, [4, padded channels], see kernels::Normalize.
void write_factors(const BatchNormProblem& norm, const BatchShape& shape, const RunArgs& args,
                   float* factors) {
  const bool is_gradient = norm.step == BatchNormStep::kGradient;
  const float* const moments = args.src[is_gradient ? 2 : 1];
  const float* const sums = is_gradient ? args.src[3] : nullptr;
  const float* const scale = args.weights[0].weights;
  const float* const shift = args.weights[0].bias;
  const double share = 1.0 / static_cast<double>(shape.images * shape.pixels);
  const std::int64_t padded = padded_channels(shape);
  std::fill(factors, factors + 4 * padded, 0.0F);
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    const double inverse = 1.0 / std::sqrt(moments[padded + c] + norm.epsilon);
    const double factor = inverse * scale[c];
    factors[c] = moments[c];
    if (is_gradient) {
      factors[padded + c] = static_cast<float>(-factor * inverse * share * sums[padded + c]);
      factors[2 * padded + c] = static_cast<float>(-factor * share * sums[c]);
      factors[3 * padded + c] = static_cast<float>(factor);
    } else {
      factors[padded + c] = static_cast<float>(factor);
      factors[2 * padded + c] = shift[c];
      factors[3 * padded + c] = 1;
    }
  }
}

void normalize(const Kernels& kernels, const BatchNormProblem& norm, const BatchShape& shape,
               const kernels::Activation& activation,
               const std::optional<kernels::Activation>& behind, const RunArgs& args,
               const Threads& threads) {
  auto* const factors = static_cast<float*>(args.workspace);
  write_factors(norm, shape, args, factors);
  kernels::Normalize call = {};
  call.shape = shape;
  if (norm.step == BatchNormStep::kGradient) {
    call.x = args.src[1];
    call.other = args.src[0];
  } else {
    call.x = args.src[0];
    call.other = args.residual;
  }
  call.factors = factors;
  call.dst = args.dst;
  call.activation = activation;
  call.clamp = clamp_behind(behind, norm, shape, args, factors + 4 * padded_channels(shape));
  run_in_parallel(threads, kernels.normalize, call, shape.images * shape.blocks * shape.pixels,
                  floats_of(shape));
}

std::int64_t workspace_bytes(const BatchNormProblem& norm, const BatchShape& shape) {
  constexpr auto kFloat = std::int64_t{sizeof(float)};
  const std::int64_t of_clamp = norm.activation ? 2 * padded_channels(shape) * kFloat : 0;
  switch (norm.step) {
    case BatchNormStep::kMoments:
      return partial_count(shape) * shape.channels * std::int64_t{sizeof(kernels::Moments)};
    case BatchNormStep::kGradientSums:
      return bytes_of_partial_sums(shape, kernels::SumKind::kBatchNorm) + of_clamp;
    case BatchNormStep::kNormalize:
    case BatchNormStep::kGradient:
      return 4 * padded_channels(shape) * kFloat + of_clamp;
  }
  return 0;
}

BatchShape shape_of(const BatchNormProblem& norm, Layout layout) {
  return shape_of(norm.n, norm.c, norm.h * norm.w, layout);
}

// Returns the offer of `name` for an operation on images. If its result is numbers per channel,
// these keep the problem's type.
Offer offer_of_images(std::string_view name, DType dtype, bool has_channelwise_result) {
  Offer offer =
      offer_f32(name, dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
  for (Primitive& primitive : offer.primitives)
    if (has_channelwise_result) primitive.dst = untyped(primitive.dst);
  return offer;
}

Offer offer_batch_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  if (norm == nullptr) return {{}, "needs a step of a batch norm"};
  const auto behind = norm->activation ? Epilogue{*norm->activation} : norm->epilogue;
  if (!clamp_of_epilogue(behind)) {
    return {{}, "needs at most an addition and then a ReLU or a clamp to follow"};
  }
  const bool has_channelwise_result =
      norm->step == BatchNormStep::kMoments || norm->step == BatchNormStep::kGradientSums;
  Offer offer = offer_of_images("cpu.batch_norm", norm->dtype, has_channelwise_result);
  for (Primitive& primitive : offer.primitives) {
    primitive.workspace_bytes = workspace_bytes(*norm, shape_of(*norm, primitive.src));
  }
  return offer;
}

PlainKernel bind_batch_norm(const Kernels& of_f32, const Kernels& of_bf16, const Problem& problem,
                            const Primitive& primitive, const Device&) {
  const Kernels& kernels = is_typed(primitive.src) ? of_bf16 : of_f32;
  const auto& norm = std::get<BatchNormProblem>(problem);
  const BatchShape shape = shape_of(norm, primitive.src);
  const auto activation = clamp_of_epilogue(norm.epilogue);
  TORCHALGO_ASSERT(activation.has_value());
  const auto behind = norm.activation ? clamp_of_epilogue({*norm.activation}) : std::nullopt;
  const auto kind = norm.activation ? kernels::SumKind::kClamped : kernels::SumKind::kBatchNorm;
  kernels::GradientSums sums = {.shape = shape, .kind = kind, .sets = 1};
  sums.epsilon = norm.epsilon;
  return {.workspace_bytes = workspace_bytes(norm, shape),
          .run = [=](const RunArgs& args, const Threads& threads) {
            switch (norm.step) {
              case BatchNormStep::kMoments:
                find_moments(kernels, shape, args, threads);
                break;
              case BatchNormStep::kGradientSums: {
                kernels::GradientSums call = sums;
                auto* const partial = static_cast<char*>(args.workspace);
                auto* const factors =
                    reinterpret_cast<float*>(partial + bytes_of_partial_sums(shape, sums.kind));
                call.clamp = clamp_behind(behind, norm, shape, args, factors);
                find_sums(kernels, call, args, threads);
                break;
              }
              case BatchNormStep::kNormalize:
              case BatchNormStep::kGradient:
                normalize(kernels, norm, shape, *activation, behind, args, threads);
                break;
            }
          }};
}

kernels::GradientSums plan_channel_sums(const ChannelSumsProblem& problem, Layout layout) {
  return {.shape = shape_of(problem.n, problem.c, problem.h * problem.w, layout),
          .kind = problem.has_product ? kernels::SumKind::kProducts : kernels::SumKind::kPlain,
          .sets = problem.per_image ? problem.n : 1};
}

Offer offer_channel_sums(const Problem& problem, const Device&) {
  const auto* channels = std::get_if<ChannelSumsProblem>(&problem);
  if (channels == nullptr) return {{}, "needs sums of channels"};
  Offer offer = offer_of_images("cpu.channel_sums", channels->dtype, true);
  for (Primitive& primitive : offer.primitives) {
    const kernels::GradientSums sums = plan_channel_sums(*channels, primitive.src);
    primitive.workspace_bytes = bytes_of_partial_sums(sums.shape, sums.kind);
  }
  return offer;
}

PlainKernel bind_channel_sums(const Kernels& of_f32, const Kernels& of_bf16, const Problem& problem,
                              const Primitive& primitive, const Device&) {
  const Kernels& kernels = is_typed(primitive.src) ? of_bf16 : of_f32;
  const kernels::GradientSums sums =
      plan_channel_sums(std::get<ChannelSumsProblem>(problem), primitive.src);
  return {.workspace_bytes = bytes_of_partial_sums(sums.shape, sums.kind),
          .run = [=](const RunArgs& args, const Threads& threads) {
            find_sums(kernels, sums, args, threads);
          }};
}

}  // namespace

// cpu.batch_norm and cpu.channel_sums.
Algorithms batch_norm(const std::string& isa) {
  const Kernels of_f32 = {
      TORCHALGO_PICK_KERNEL(isa, measure_groups), TORCHALGO_PICK_KERNEL(isa, combine_moments),
      TORCHALGO_PICK_KERNEL(isa, add_up_gradients), TORCHALGO_PICK_KERNEL(isa, combine_gradients),
      TORCHALGO_PICK_KERNEL(isa, run_normalize)};
  Kernels of_bf16 = of_f32;
  of_bf16.measure = TORCHALGO_PICK_KERNEL(isa, measure_groups_bf16);
  of_bf16.add_up = TORCHALGO_PICK_KERNEL(isa, add_up_gradients_bf16);
  of_bf16.normalize = TORCHALGO_PICK_KERNEL(isa, run_normalize_bf16);
  return {with_bf16_if_fast({.name = "cpu.batch_norm",
                             .version = 2,
                             .rounding = 1,
                             .offer = offer_batch_norm,
                             .bind = std::bind_front(bind_batch_norm, of_f32, of_bf16)}),
          with_bf16_if_fast({.name = "cpu.channel_sums",
                             .version = 2,
                             .rounding = 1,
                             .offer = offer_channel_sums,
                             .bind = std::bind_front(bind_channel_sums, of_f32, of_bf16)})};
}

}  // namespace torchalgo::cpu
