// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/scale_shift.h"

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>

#include "base/error.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

Offer offer_scale_shift(const Problem& problem, const Device&) {
  const auto* scale_shift = std::get_if<ScaleShiftProblem>(&problem);
  if (scale_shift == nullptr) return {{}, "needs a scale-shift"};
  if (!only_activation(scale_shift->epilogue)) {
    return {{}, "needs at most one activation to follow"};
  }
  return offer_f32("cpu.scale_shift", scale_shift->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

/// Scale and shift, zero in the pad lanes: a pad lane of src then gives zero.
Packed pack_scale_shift(const Problem& problem, const Primitive& primitive,
                        const Weights& weights) {
  const std::int64_t c = std::get<ScaleShiftProblem>(problem).c;
  TORCHALGO_CHECK(weights.weights.numel() == c && weights.bias.numel() == c,
                  "scale_shift: got {} scales and {} shifts, expected {} of each ({})",
                  weights.weights.numel(), weights.bias.numel(), c, to_string(problem));
  const std::int64_t block = block_size(primitive.src);
  const std::int64_t pad = (c + block - 1) / block * block - c;
  const auto padded = [pad](const at::Tensor& tensor) {
    return at::constant_pad_nd(tensor.reshape({-1}).to(at::kFloat), {0, pad}).contiguous();
  };
  return {padded(weights.weights), padded(weights.bias)};
}

std::int64_t packed_bytes(const Problem& problem, const Primitive& primitive) {
  const std::int64_t c = std::get<ScaleShiftProblem>(problem).c;
  const std::int64_t block = block_size(primitive.src);
  return 2 * ((c + block - 1) / block * block) * std::int64_t{sizeof(float)};
}

}  // namespace

Algorithm scale_shift(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.scale_shift";
  row.version = 4;
  row.offer = offer_scale_shift;
  row.pack = pack_scale_shift;
  row.packed_bytes = packed_bytes;
  row.run = [kernel = TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
             clear_pad_lanes = TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)](const Call& call) {
    const auto& problem = std::get<ScaleShiftProblem>(call.problem);
    const auto activation = only_activation(problem.epilogue);
    TORCHALGO_ASSERT(activation.has_value());
    const LaneShape shape = lane_shape(call.primitive.src, problem.n, problem.c);
    const std::int64_t pixels = problem.h * problem.w;
    const kernels::ScaleShift affine = {floats(call.src[0]),
                                        floats(call.packed[0]),
                                        floats(call.packed[1]),
                                        call.dst.mutable_data_ptr<float>(),
                                        pixels,
                                        shape.lanes,
                                        shape.groups / problem.n,
                                        *activation};
    at::parallel_for(0, shape.groups * pixels, grain_of(shape.lanes),
                     [&](std::int64_t begin, std::int64_t end) { kernel(affine, begin, end); });
    if (!kernels::keeps_zero(*activation)) {
      zero_pad_lanes(clear_pad_lanes, call, problem.n, problem.c, pixels);
    }
    return call.dst;
  };
  return row;
}

}  // namespace torchalgo::cpu
