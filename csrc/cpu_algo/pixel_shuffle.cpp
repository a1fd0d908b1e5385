// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pixel_shuffle.h"

#include <functional>
#include <utility>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct Kernels {
  decltype(&kernels::default_isa::run_pixel_shuffle) run, run_bf16, to_planes;
};

kernels::ChannelStrides strides_of(Layout layout, std::int64_t c, std::int64_t pixels) {
  const std::int64_t image = element_count(layout, 1, c, pixels);
  if (is_blocked(layout)) return {image, block_size(layout), block_size(layout) * pixels};
  return {image, c, block_size(Layout::kNChw16c)};
}

PlainKernel bind_pixel_shuffle(const Kernels& kernels, const Problem& problem,
                               const Primitive& primitive, const Device&) {
  const auto& shuffle = std::get<PixelShuffleProblem>(problem);
  const std::int64_t ways = shuffle.factor * shuffle.factor, channels = shuffle.c / ways;
  const std::int64_t pixels = shuffle.h * shuffle.w;
  const kernels::PixelShuffle sizes = {nullptr,
                                       nullptr,
                                       strides_of(primitive.src, shuffle.c, pixels),
                                       strides_of(primitive.dst, channels, pixels * ways),
                                       shuffle.h,
                                       shuffle.w,
                                       channels,
                                       shuffle.factor,
                                       element_count(primitive.dst, 1, channels, 1)};
  const auto kernel = primitive.dst == Layout::kNchw ? kernels.to_planes
                      : is_typed(primitive.src)      ? kernels.run_bf16
                                                     : kernels.run;
  const std::int64_t rows = shuffle.n * shuffle.h, grain = grain_of(shuffle.w * shuffle.c);
  return {.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::PixelShuffle part = sizes;
    part.src = args.src[0];
    part.dst = args.dst;
    parallel_for(threads, rows, grain, kernel, part);
  }};
}

// The result often leaves the network, which is why it may be in nchw or nhwc.
Offer offer_pixel_shuffle(const Problem& problem, const Device&) {
  const auto* shuffle = std::get_if<PixelShuffleProblem>(&problem);
  if (shuffle == nullptr) return {{}, "needs a pixel shuffle"};
  Offer offer = offer_f32("cpu.pixel_shuffle", shuffle->dtype,
                          {Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
  if (!offer.refusal.empty()) return offer;
  for (const auto& [src, dst] :
       {std::pair(Layout::kNhwc, Layout::kNchw), std::pair(Layout::kNChw16c, Layout::kNchw),
        std::pair(Layout::kNChw16c, Layout::kNhwc)}) {
    offer.primitives.push_back({"cpu.pixel_shuffle", src, dst});
  }
  return offer;
}

}  // namespace

Algorithm pixel_shuffle(const std::string& isa) {
  const Kernels kernels = {TORCHALGO_PICK_KERNEL(isa, run_pixel_shuffle),
                           TORCHALGO_PICK_KERNEL(isa, run_pixel_shuffle_bf16),
                           TORCHALGO_PICK_KERNEL(isa, run_pixel_shuffle_planes)};
  return with_bf16_if_fast({.name = "cpu.pixel_shuffle",
                            .rounding = 1,
                            .offer = offer_pixel_shuffle,
                            .bind = std::bind_front(bind_pixel_shuffle, kernels)});
}

}  // namespace torchalgo::cpu
