// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/channel_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::size_t kMaxSources = 128;  // their list lies on the stack, as run allocates nothing

Offer offer_concat(const Problem& problem, const Device&) {
  const auto* concat = std::get_if<ConcatProblem>(&problem);
  if (concat == nullptr) return {{}, "needs a concatenation"};
  if (concat->groups > 1) return {{}, "leaves channels as they are"};
  if (concat->c.size() > kMaxSources) {
    return {{}, fmt::format("needs at most {} tensors, got {}", kMaxSources, concat->c.size())};
  }
  return offer_f32("cpu.concat", concat->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

/// Returns true if each source starts at a block of dst, so that whole blocks can be copied.
bool starts_on_blocks(const ConcatProblem& problem, std::int64_t block) {
  return std::all_of(problem.c.begin(), problem.c.end() - 1,
                     [block](std::int64_t c) { return c % block == 0; });
}

void run_concat(const PartKernels& run, const ConcatProblem& problem, Layout layout,
                const RunArgs& args, const Threads& threads) {
  const std::int64_t block = block_size(layout);
  std::array<kernels::ConcatSource, kMaxSources> sources;
  kernels::Concat concat = {};
  concat.sources = sources.data();
  concat.source_count = static_cast<std::int64_t>(problem.c.size());
  concat.dst = args.dst;
  concat.channels = std::accumulate(problem.c.begin(), problem.c.end(), std::int64_t{0});
  concat.pixels = problem.h * problem.w;
  for (std::size_t i = 0; i < problem.c.size(); ++i) {
    const std::int64_t run_elements = untyped(layout) == Layout::kNhwc
                                          ? problem.c[i]
                                          : element_count(layout, 1, problem.c[i], concat.pixels);
    sources[i] = {args.src[i],
                  problem.c[i],
                  run_elements,
                  run_elements,
                  0,
                  (problem.c[i] + block - 1) / block};
    concat.row += run_elements;
  }
  const bool by_blocks = is_blocked(layout) && !starts_on_blocks(problem, block);
  run_parts(run, concat, layout, problem.n, by_blocks, threads);
}

}  // namespace

Algorithm concat(const std::string& isa) {
  const auto bind = [run = part_kernels(isa)](const Problem& problem, const Primitive& primitive,
                                              const Device&) {
    return PlainKernel{
        .run = [run, concat = std::get<ConcatProblem>(problem), layout = primitive.src](
                   const RunArgs& args, const Threads& threads) {
          run_concat(run, concat, layout, args, threads);
        }};
  };
  return with_bf16_if_fast(
      {.name = "cpu.concat", .rounding = 1, .offer = offer_concat, .bind = bind});
}

}  // namespace torchalgo::cpu
