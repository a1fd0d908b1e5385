// SPDX-License-Identifier: BSD-3-Clause
// Computes convolutions with large filters as products in the frequency domain, with torch's own
// FFT. The padded image is cut into overlapping tiles of T x T pixels. A tile gives the T - r + 1
// rows and T - s + 1 columns of results whose windows lie in it. All output channels share the
// transform of a tile (overlap-save; Vasilache et al. 2015, arXiv:1412.7580).

#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/fft_irfft2.h>
#include <ATen/ops/fft_rfft2.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "provider/epilogue.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kLeastTaps = 49;  // 7x7; with fewer a tile's transforms cost more
constexpr std::int64_t kSizes[] = {16, 24, 32, 48, 64, 96, 128};

// How a problem is cut into tiles of size x size pixels.
struct Tiling {
  std::int64_t size;
  std::int64_t frequencies;  // of a real transform: size rows of size / 2 + 1 columns
  std::int64_t m_h, m_w;     // results of a tile
  std::int64_t count_h, count_w;
  std::int64_t p, q;

  Tiling(const ConvProblem& conv, std::int64_t size)
      : size(size),
        frequencies(size * (size / 2 + 1)),
        m_h(size - conv.r + 1),
        m_w(size - conv.s + 1) {
    const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
    p = dst[2];
    q = dst[3];
    count_h = ceil_div(p, m_h);
    count_w = ceil_div(q, m_w);
  }
};

std::string refusal_of(const ConvProblem& conv) {
  std::string refusal = refuse_conv(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r * conv.s < kLeastTaps)
    return fmt::format("needs a filter of at least 7x7, got {}x{}", conv.r, conv.s);
  if (conv.stride_h != 1 || conv.stride_w != 1)
    return fmt::format("needs stride 1, got {}x{}", conv.stride_h, conv.stride_w);
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  return refuse_dilation(conv);
}

// Offers tile sizes whose results are at least half as large as the filter; smaller tiles would
// waste too much work.
Offer offer_all(const Problem& problem, const Device&) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  const std::int64_t taps = std::max(conv->r, conv->s);
  Offer offer;
  for (const std::int64_t size : kSizes) {
    if (2 * size < 3 * taps) continue;
    offer.primitives.push_back({fmt::format("cpu.fft.t{}", size), Layout::kNchw, Layout::kNchw, 0});
  }
  if (offer.primitives.empty()) {
    offer.refusal = fmt::format("needs a filter of at most {} rows and columns, got {}x{}",
                                2 * *std::rbegin(kSizes) / 3, conv->r, conv->s);
  }
  return offer;
}

// Offers no larger size beside one that holds the whole image.
Offer offer(const Problem& problem, const Device& device) {
  Offer offer = offer_all(problem, device);
  if (!offer.refusal.empty()) return offer;
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t image =
      std::max(conv.h + 2 * conv.pad_h + conv.extra_h, conv.w + 2 * conv.pad_w + conv.extra_w);
  const auto enough = std::ranges::find_if(
      offer.primitives, [&](const Primitive& each) { return variant_number(each) >= image; });
  if (enough != offer.primitives.end()) offer.primitives.erase(enough + 1, offer.primitives.end());
  return offer;
}

at::Tensor tensor_at(const float* data, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(data), sizes, at::kFloat);
}

// Packs one conjugated matrix [c, k] per frequency. Conjugated weights compute a correlation, as a
// convolution layer does.
void pack(const ConvProblem& conv, const Tiling& tiling, const float* weights, float* packed) {
  const at::Tensor plain = tensor_at(weights, {conv.k, conv.c, conv.r, conv.s});
  const at::Tensor matrices = at::fft_rfft2(plain, at::IntArrayRef{tiling.size, tiling.size})
                                  .conj()
                                  .permute({2, 3, 1, 0})
                                  .reshape({tiling.frequencies, conv.c, conv.k});
  tensor_at(packed, {tiling.frequencies, conv.c, conv.k, 2})
      .copy_(at::view_as_real(matrices.resolve_conj()));
}

// Counts the products of the transforms. A complex product takes at least 3 multiplications and 3
// additions.
Work least_work(const ConvProblem& conv, const Tiling& tiling) {
  const double products = static_cast<double>(tiling.frequencies * conv.n * tiling.count_h) *
                          static_cast<double>(tiling.count_w * conv.c * conv.k);
  return {6 * products, least_bytes(conv)};
}

// Returns the transforms of the tiles of `src`: [n, c, count_h, count_w, T, T / 2 + 1].
at::Tensor transform_tiles(const ConvProblem& conv, const Tiling& tiling, const at::Tensor& src) {
  const std::int64_t rows = (tiling.count_h - 1) * tiling.m_h + tiling.size;
  const std::int64_t columns = (tiling.count_w - 1) * tiling.m_w + tiling.size;
  const at::Tensor padded = at::constant_pad_nd(
      src, {conv.pad_w, columns - conv.w - conv.pad_w, conv.pad_h, rows - conv.h - conv.pad_h});
  return at::fft_rfft2(
      padded.unfold(2, tiling.size, tiling.m_h).unfold(3, tiling.size, tiling.m_w));
}

// Computes one matrix product over the channels for each frequency.
at::Tensor multiply(const ConvProblem& conv, const Tiling& tiling, const at::Tensor& spectrum,
                    const at::Tensor& weights) {
  const std::int64_t tiles = conv.n * tiling.count_h * tiling.count_w;
  const at::Tensor a =
      spectrum.permute({4, 5, 0, 2, 3, 1}).reshape({tiling.frequencies, tiles, conv.c});
  return at::bmm(a, weights)
      .view({tiling.size, tiling.size / 2 + 1, conv.n, tiling.count_h, tiling.count_w, conv.k})
      .permute({2, 5, 3, 4, 0, 1});
}

void run(const ConvProblem& conv, const Tiling& tiling, const RunArgs& args) {
  const at::Tensor src = tensor_at(args.src[0], {conv.n, conv.c, conv.h, conv.w});
  const at::Tensor weights = at::view_as_complex(
      tensor_at(args.weights[0].weights, {tiling.frequencies, conv.c, conv.k, 2}));
  const at::Tensor product = multiply(conv, tiling, transform_tiles(conv, tiling, src), weights);
  const std::int64_t rows = tiling.count_h * tiling.m_h;
  const std::int64_t columns = tiling.count_w * tiling.m_w;
  at::Tensor dst = tensor_at(args.dst, {conv.n, conv.k, tiling.p, tiling.q});
  dst.copy_(at::fft_irfft2(product, at::IntArrayRef{tiling.size, tiling.size})
                .narrow(4, 0, tiling.m_h)
                .narrow(5, 0, tiling.m_w)
                .permute({0, 1, 2, 4, 3, 5})
                .reshape({conv.n, conv.k, rows, columns})
                .narrow(2, 0, tiling.p)
                .narrow(3, 0, tiling.q));
  const float* const bias = args.weights[0].bias;
  apply_epilogue(dst, conv.epilogue, bias == nullptr ? at::Tensor() : tensor_at(bias, {conv.k}),
                 args.residual == nullptr ? at::Tensor() : tensor_at(args.residual, dst.sizes()));
}

// Its run allocates: torch's operations make their own tensors.
PlainKernel bind(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& conv = std::get<ConvProblem>(problem);
  const Tiling tiling(conv, variant_number(primitive));
  return {.packed = {{2 * tiling.frequencies * conv.c * conv.k, 0}},
          .packing = primitive.name,
          .pack = [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                      const Threads&) { pack(conv, tiling, model[0].weights, to[0].weights); },
          .run = [=](const RunArgs& args, const Threads&) { run(conv, tiling, args); },
          .least_work = [=] { return least_work(conv, tiling); }};
}

}  // namespace

}  // namespace torchalgo::cpu

namespace torchalgo::aten {

// Makes cpu.fft, the algorithm for large filters in nchw.
Algorithm fft() {
  return cpu::with_backward_data({.name = "cpu.fft",
                                  .rounding = 4,
                                  .numerics = {"fft"},
                                  .offer = cpu::offer,
                                  .offer_all = cpu::offer_all,
                                  .bind = cpu::bind});
}

}  // namespace torchalgo::aten
