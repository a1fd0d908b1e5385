// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/eltwise.h"

#include <functional>

#include "base/error.h"
#include "cpu_algo/kernels/scale_shift.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct EltwiseKernels {
  decltype(&kernels::default_isa::run_add) flat;  // tensors of one shape
  decltype(&kernels::default_isa::run_scale_shift) channelwise;
  ClearPadLanes clear_pad_lanes;  // null for layouts without pad lanes
};

Offer offer_eltwise(std::string_view name, EltwiseKind kind, const Problem& problem,
                    const Device&) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  if (eltwise == nullptr || eltwise->kind != kind) {
    return {{},
            kind == EltwiseKind::kAdd   ? "needs an addition of two tensors"
            : kind == EltwiseKind::kMul ? "needs a product of two tensors"
            : kind == EltwiseKind::kSub ? "needs a difference of two tensors"
                                        : "needs an activation"};
  }
  if (!only_activation(eltwise->epilogue)) return {{}, "needs at most one activation to follow"};
  // A difference of rounded values may be no more than their rounding errors.
  if (kind == EltwiseKind::kSub)
    return offer_f32(name, eltwise->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  return offer_f32(name, eltwise->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

// The sizes and kernels of an operation. The tensors are arguments of the run.
struct EltwisePlan {
  EltwiseKernels kernels;
  kernels::Activation activation = {};
  bool is_channelwise = false, is_scale = false;
  Layout layout = Layout::kNchw;
  LaneShape shape = {};
  std::int64_t n = 1, c = 1, pixels = 1;

  [[nodiscard]] std::int64_t floats() const { return shape.groups * pixels * shape.lanes; }
};

EltwisePlan plan_eltwise(const EltwiseKernels& kernels, const EltwiseProblem& problem,
                         Layout layout) {
  const auto activation = only_activation(problem.epilogue);
  TORCHALGO_ASSERT(activation.has_value());
  return {kernels,
          *activation,
          problem.channelwise && problem.kind != EltwiseKind::kActivation,
          problem.kind == EltwiseKind::kMul,
          layout,
          lane_shape(layout, problem.n, problem.c),
          problem.n,
          problem.c,
          problem.h * problem.w};
}

void run_flat(const EltwisePlan& plan, const RunArgs& args, const Threads& threads) {
  const kernels::Eltwise eltwise = {args.src[0], args.src.size() > 1 ? args.src[1] : nullptr,
                                    args.dst, plan.activation};
  parallel_for(threads, plan.floats(), grain_of(1), plan.kernels.flat, eltwise);
}

/// Runs an operation whose second tensor holds one scale or shift per channel of each image.
void run_channelwise(const EltwisePlan& plan, const RunArgs& args, const Threads& threads) {
  kernels::ScaleShift affine = {};
  affine.src = args.src[0];
  affine.scale = plan.is_scale ? args.src[1] : nullptr;
  affine.shift = plan.is_scale ? nullptr : args.src[1];
  affine.dst = args.dst;
  affine.pixels = plan.pixels;
  affine.lanes = plan.shape.lanes;
  affine.periods = plan.shape.groups;
  affine.activation = plan.activation;
  parallel_for(threads, plan.shape.groups * affine.pixels, grain_of(plan.shape.lanes),
               plan.kernels.channelwise, affine);
}

void run_eltwise(const EltwisePlan& plan, const RunArgs& args, const Threads& threads) {
  if (plan.is_channelwise) {
    run_channelwise(plan, args, threads);
  } else {
    run_flat(plan, args, threads);
  }
  if (!kernels::keeps_zero(plan.activation)) {
    zero_pad_lanes(plan.kernels.clear_pad_lanes, args.dst, plan.layout, plan.n, plan.c, plan.pixels,
                   threads);
  }
}

using RunFlat = decltype(EltwiseKernels::flat);

Algorithm make_row(std::string_view name, EltwiseKind kind, const std::string& isa,
                   const EltwiseKernels& kernels, RunFlat flat_bf16) {
  const auto bind = [=](const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto channelwise_bf16 =
        TORCHALGO_PICK_BF16_KERNEL(bf16_isa_beside(isa, device), isa, run_channelwise_bf16);
    const EltwiseKernels kernels_bf16 = {flat_bf16, channelwise_bf16, nullptr};
    const EltwisePlan plan = plan_eltwise(is_typed(primitive.src) ? kernels_bf16 : kernels,
                                          std::get<EltwiseProblem>(problem), primitive.src);
    return PlainKernel{.run = [plan](const RunArgs& args, const Threads& threads) {
      run_eltwise(plan, args, threads);
    }};
  };
  return with_bf16_if_fast({.name = name,
                            .version = 3,
                            .rounding = 1,
                            .offer = std::bind_front(offer_eltwise, name, kind),
                            .bind = bind});
}

Offer offer_gradient(const Problem& problem, const Device&) {
  const auto* gradient = std::get_if<ActivationGradientProblem>(&problem);
  if (gradient == nullptr) return {{}, "needs the gradient of an activation"};
  return offer_f32("cpu.bwd_activation", gradient->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

Algorithm make_gradient(const EltwiseKernels& kernels, RunFlat flat_bf16) {
  const auto bind = [=](const Problem& problem, const Primitive& primitive, const Device&) {
    const auto& gradient = std::get<ActivationGradientProblem>(problem);
    EltwisePlan plan = {.kernels = kernels};
    if (is_typed(primitive.src)) plan.kernels.flat = flat_bf16;
    plan.activation = *only_activation({gradient.activation});
    plan.shape = lane_shape(primitive.src, gradient.n, gradient.c);
    plan.pixels = gradient.h * gradient.w;
    // Pad lanes stay zero, because they are zero in the gradient.
    return PlainKernel{.run = [plan](const RunArgs& args, const Threads& threads) {
      run_flat(plan, args, threads);
    }};
  };
  return with_bf16_if_fast(
      {.name = "cpu.bwd_activation", .rounding = 1, .offer = offer_gradient, .bind = bind});
}

}  // namespace

// cpu.add, cpu.mul, cpu.sub, cpu.activation and cpu.bwd_activation.
Algorithms eltwise(const std::string& isa) {
  const auto with = [&](RunFlat flat) {
    return EltwiseKernels{flat, TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
                          TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)};
  };
  return {make_row("cpu.add", EltwiseKind::kAdd, isa, with(TORCHALGO_PICK_KERNEL(isa, run_add)),
                   TORCHALGO_PICK_KERNEL(isa, run_add_bf16)),
          make_row("cpu.mul", EltwiseKind::kMul, isa, with(TORCHALGO_PICK_KERNEL(isa, run_mul)),
                   TORCHALGO_PICK_KERNEL(isa, run_mul_bf16)),
          make_row("cpu.sub", EltwiseKind::kSub, isa, with(TORCHALGO_PICK_KERNEL(isa, run_sub)),
                   nullptr),
          make_row("cpu.activation", EltwiseKind::kActivation, isa,
                   with(TORCHALGO_PICK_KERNEL(isa, run_activation)),
                   TORCHALGO_PICK_KERNEL(isa, run_activation_bf16)),
          make_gradient(with(TORCHALGO_PICK_KERNEL(isa, run_activation_gradient)),
                        TORCHALGO_PICK_KERNEL(isa, run_activation_gradient_bf16))};
}

}  // namespace torchalgo::cpu
