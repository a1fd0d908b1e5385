// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/layer_norm.h"

#include <algorithm>

#include "cpu_algo/kernels/layer_norm.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kFloatsPerThread = 16384;  // fewer cost less than to start a thread

kernels::LayerNorm sizes_of(const LayerNormProblem& norm, Layout layout) {
  kernels::LayerNorm sizes = {};
  sizes.lanes = layout == Layout::kNchw ? 1 : layout == Layout::kNhwc ? norm.c : block_size(layout);
  sizes.groups = ceil_div(norm.c, sizes.lanes);
  sizes.pixels = norm.h * norm.w;
  sizes.channels = norm.c;
  sizes.epsilon = static_cast<float>(norm.epsilon);
  return sizes;
}

}  // namespace

StandaloneKernel bind_layer_norm(const LayerNormProblem& norm, Layout layout,
                                 std::string_view isa) {
  const kernels::LayerNorm sizes = sizes_of(norm, layout);
  const std::int64_t grain = std::max<std::int64_t>(1, kFloatsPerThread / norm.c);
  return {.weight_floats = norm.c,
          .bias_floats = norm.c,
          .pack =
              [c = norm.c](const PlainWeights& plain, float* scale, float* shift, const Threads&) {
                std::copy_n(plain.weights, c, scale);
                std::copy_n(plain.bias, c, shift);
              },
          .run =
              [=, pixels = norm.n * sizes.pixels, run = TORCHALGO_PICK_KERNEL(isa, run_layer_norm)](
                  const RunArgs& args, const Threads& threads) {
                kernels::LayerNorm call = sizes;
                call.src = args.src;
                call.scale = args.weights;
                call.shift = args.bias;
                call.dst = args.dst;
                parallel_for(threads, pixels, grain,
                             [&](std::int64_t begin, std::int64_t end) { run(call, begin, end); });
              }};
}

}  // namespace torchalgo::cpu
