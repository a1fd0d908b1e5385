// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "cpu_algo/kernels/interleave.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kMostGroups = 32;  // their list lies on the stack, as run allocates nothing

struct InterleaveKernels {
  decltype(&kernels::default_isa::run_interleave_pixels) pixels, pixels_bf16;
  decltype(&kernels::default_isa::run_interleave_blocks) blocks;
};

/// The sizes of a shuffle. Its input is one tensor, or one tensor per group.
struct Shuffle {
  DType dtype;
  std::int64_t n, channels, pixels;  // channels of a group
  std::int64_t groups;
  bool is_concat;
};

std::optional<Shuffle> shuffle_of(const Problem& problem) {
  if (const auto* one = std::get_if<ShuffleProblem>(&problem)) {
    return Shuffle{one->dtype, one->n, one->c / one->groups, one->h * one->w, one->groups, false};
  }
  const auto* many = std::get_if<ConcatProblem>(&problem);
  if (many == nullptr || static_cast<std::int64_t>(many->c.size()) != many->groups) return {};
  if (std::any_of(many->c.begin(), many->c.end(), [&](auto c) { return c != many->c[0]; }))
    return {};
  return Shuffle{many->dtype, many->n, many->c[0], many->h * many->w, many->groups, true};
}

Offer offer_shuffle(const Problem& problem, const Device&) {
  const std::optional<Shuffle> shuffle = shuffle_of(problem);
  if (!shuffle) return {{}, "needs a channel shuffle, of one tensor or of each group's"};
  if (shuffle->groups < 2 || shuffle->groups > kMostGroups) {
    return {{}, fmt::format("needs 2 to {} groups, got {}", kMostGroups, shuffle->groups)};
  }
  const bool are_groups_blocks =
      shuffle->is_concat || shuffle->channels % block_size(Layout::kNChw16c) == 0;
  if (shuffle->groups == 2 && are_groups_blocks) {
    return offer_f32("cpu.shuffle", shuffle->dtype,
                     {Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
  }
  return offer_f32("cpu.shuffle", shuffle->dtype, {Layout::kNhwc, Layout::kNhwcBf16});
}

void run_shuffle(const InterleaveKernels& run, const Shuffle& shuffle, Layout layout,
                 const RunArgs& args, const Threads& threads) {
  const std::int64_t block = block_size(layout);
  const std::int64_t own_blocks = (shuffle.channels + block - 1) / block;
  std::array<const float*, kMostGroups> sources;
  kernels::Interleave interleave = {};
  interleave.sources = sources.data();
  interleave.count = shuffle.groups;
  interleave.channels = shuffle.channels;
  interleave.pixels = shuffle.pixels;
  interleave.pitch = shuffle.is_concat ? shuffle.channels : shuffle.channels * shuffle.groups;
  interleave.blocks = shuffle.is_concat ? own_blocks : own_blocks * shuffle.groups;
  interleave.dst = args.dst;
  const std::int64_t group =
      is_blocked(layout) ? own_blocks * block * shuffle.pixels : shuffle.channels;
  for (std::int64_t j = 0; j < shuffle.groups; ++j) {
    sources[static_cast<std::size_t>(j)] = shuffle.is_concat
                                               ? args.src[static_cast<std::size_t>(j)]
                                               : advance(args.src[0], layout, j * group);
  }
  const std::int64_t channels = shuffle.channels * shuffle.groups;
  if (is_blocked(layout)) {
    const LaneShape shape = lane_shape(layout, shuffle.n, channels);
    parallel_for(threads, shape.groups, grain_of(shuffle.pixels * block), run.blocks, interleave);
  } else {
    const auto pixels = is_typed(layout) ? run.pixels_bf16 : run.pixels;
    parallel_for(threads, shuffle.n * shuffle.pixels, grain_of(channels), pixels, interleave);
  }
}

}  // namespace

Algorithm shuffle(const std::string& isa) {
  const InterleaveKernels run = {TORCHALGO_PICK_KERNEL(isa, run_interleave_pixels),
                                 TORCHALGO_PICK_KERNEL(isa, run_interleave_pixels_bf16),
                                 TORCHALGO_PICK_KERNEL(isa, run_interleave_blocks)};
  const auto bind = [run](const Problem& problem, const Primitive& primitive, const Device&) {
    return PlainKernel{.run = [run, shuffle = *shuffle_of(problem), layout = primitive.src](
                                  const RunArgs& args, const Threads& threads) {
      run_shuffle(run, shuffle, layout, args, threads);
    }};
  };
  return with_bf16_if_fast(
      {.name = "cpu.shuffle", .version = 2, .rounding = 1, .offer = offer_shuffle, .bind = bind});
}

}  // namespace torchalgo::cpu
