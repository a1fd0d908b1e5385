// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/eltwise.h"

#include <ATen/Parallel.h>

#include "base/error.h"
#include "cpu_algo/kernels/scale_shift.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct EltwiseKernels {
  decltype(&kernels::default_isa::run_add) flat;  // tensors of one shape
  decltype(&kernels::default_isa::run_scale_shift) channelwise;
  decltype(&kernels::default_isa::clear_pad_lanes) clear_pad_lanes;
};

Offer offer_eltwise(std::string_view name, EltwiseKind kind, const Problem& problem) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  if (eltwise == nullptr || eltwise->kind != kind) {
    return {{},
            kind == EltwiseKind::kAdd   ? "needs an addition of two tensors"
            : kind == EltwiseKind::kMul ? "needs a product of two tensors"
                                        : "needs an activation"};
  }
  if (!only_activation(eltwise->epilogue)) return {{}, "needs at most one activation to follow"};
  return offer_f32(name, eltwise->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

void run_flat(const EltwiseKernels& run, const Call& call, kernels::Activation activation) {
  const kernels::Eltwise eltwise = {floats(call.src[0]),
                                    call.src.size() > 1 ? floats(call.src[1]) : nullptr,
                                    call.dst.mutable_data_ptr<float>(), activation};
  at::parallel_for(0, call.dst.numel(), grain_of(1),
                   [&](std::int64_t begin, std::int64_t end) { run.flat(eltwise, begin, end); });
}

/// The second tensor is a scale or a shift that differs from image to image.
void run_channelwise(const EltwiseKernels& run, const Call& call, const EltwiseProblem& problem,
                     kernels::Activation activation) {
  const LaneShape shape = lane_shape(call.primitive.src, problem.n, problem.c);
  const bool is_scale = problem.kind == EltwiseKind::kMul;
  const float* const second = floats(call.src[1]);
  kernels::ScaleShift affine = {};
  affine.src = floats(call.src[0]);
  affine.scale = is_scale ? second : nullptr;
  affine.shift = is_scale ? nullptr : second;
  affine.dst = call.dst.mutable_data_ptr<float>();
  affine.pixels = problem.h * problem.w;
  affine.lanes = shape.lanes;
  affine.periods = shape.groups;
  affine.activation = activation;
  at::parallel_for(
      0, shape.groups * affine.pixels, grain_of(shape.lanes),
      [&](std::int64_t begin, std::int64_t end) { run.channelwise(affine, begin, end); });
}

at::Tensor run_eltwise(const EltwiseKernels& run, const Call& call) {
  const auto& problem = std::get<EltwiseProblem>(call.problem);
  const auto activation = only_activation(problem.epilogue);
  TORCHALGO_ASSERT(activation.has_value());
  if (problem.channelwise && problem.kind != EltwiseKind::kActivation) {
    run_channelwise(run, call, problem, *activation);
  } else {
    run_flat(run, call, *activation);
  }
  if (!kernels::keeps_zero(*activation)) {
    zero_pad_lanes(run.clear_pad_lanes, call, problem.n, problem.c, problem.h * problem.w);
  }
  return call.dst;
}

Algorithm make_row(std::string_view name, EltwiseKind kind, const EltwiseKernels& run) {
  Algorithm row;
  row.name = name;
  row.version = 3;
  row.offer = [name, kind](const Problem& problem, const Device&) {
    return offer_eltwise(name, kind, problem);
  };
  row.run = [run](const Call& call) { return run_eltwise(run, call); };
  return row;
}

}  // namespace

Algorithm add(const std::string& isa) {
  return make_row("cpu.add", EltwiseKind::kAdd,
                  {TORCHALGO_PICK_KERNEL(isa, run_add), TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
                   TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)});
}

Algorithm mul(const std::string& isa) {
  return make_row("cpu.mul", EltwiseKind::kMul,
                  {TORCHALGO_PICK_KERNEL(isa, run_mul), TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
                   TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)});
}

Algorithm activation(const std::string& isa) {
  return make_row(
      "cpu.activation", EltwiseKind::kActivation,
      {TORCHALGO_PICK_KERNEL(isa, run_activation), TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
       TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)});
}

}  // namespace torchalgo::cpu
