// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cudnn_algo/legacy.h"

namespace torchalgo::cudnn {
namespace {

using Refusal = std::optional<std::string>;

// The families of algorithms. Each direction has its own numbers for them.
enum class Family : std::uint8_t {
  kImplicitGemm,        // forward 0; the atomic ones backward
  kPrecomputed,         // 1 in every direction
  kExplicitGemm,        // forward 2
  kAtomicsWithIndices,  // backward filter 3
  kFft,
  kFftTiling,
  kWinograd,
  kWinogradNonfused,
  kNeverImplemented
};

Family family_of(const LegacySpec& spec) {
  using enum Family;
  static constexpr Family kForward[] = {
      kImplicitGemm, kPrecomputed, kExplicitGemm, kNeverImplemented,
      kFft,          kFftTiling,   kWinograd,     kWinogradNonfused};
  static constexpr Family kBackwardData[] = {kImplicitGemm, kPrecomputed, kFft,
                                             kFftTiling,    kWinograd,    kWinogradNonfused};
  static constexpr Family kBackwardFilter[] = {
      kImplicitGemm,     kPrecomputed,      kFft,      kAtomicsWithIndices,
      kNeverImplemented, kWinogradNonfused, kFftTiling};
  switch (spec.direction) {
    case Direction::kForward:
      return kForward[spec.number];
    case Direction::kBackwardData:
      return kBackwardData[spec.number];
    case Direction::kBackwardFilter:
      break;
  }
  return kBackwardFilter[spec.number];
}

bool has_unit_dilation(const ConvProblem& p) {
  return p.dilation_d == 1 && p.dilation_h == 1 && p.dilation_w == 1;
}

bool has_unit_stride(const ConvProblem& p) {
  return p.stride_d == 1 && p.stride_h == 1 && p.stride_w == 1;
}

bool is_all(const Layouts& layouts, Layout layout) {
  return layouts.src == layout && layouts.weights == layout && layouts.dst == layout;
}

// Returns 90 for "sm_90", and 0 for a text of any other form.
int compute_capability(std::string_view isa) {
  int number = 0;
  if (isa.starts_with("sm_")) std::from_chars(isa.data() + 3, isa.data() + isa.size(), number);
  return number;
}

Refusal refuse_dtype(DType dtype, bool takes_bf16, bool takes_f64) {
  const bool is_refused =
      (dtype == DType::kBf16 && !takes_bf16) || (dtype == DType::kF64 && !takes_f64);
  if (!is_refused) return std::nullopt;
  return fmt::format("is not documented for {}", to_string(dtype));
}

Refusal refuse_fft(const ConvProblem& p, const Layouts& layouts, bool is_tiled) {
  const bool is_1d = p.h == 1 && p.r == 1 && !p.is_3d;
  if (auto refusal = refuse_dtype(p.dtype, false, is_tiled && is_1d)) return refusal;
  if (!is_all(layouts, Layout::kNchw)) return "needs all tensors in nchw";
  if (!has_unit_stride(p)) return "needs stride 1";
  if (!has_unit_dilation(p)) return "needs dilation 1";
  if (!is_tiled) {
    if (p.is_3d) return "is for 2-D only";
    if (p.h + 2 * p.pad_h > 256 || p.w + 2 * p.pad_w > 256) {
      return fmt::format("needs padded images up to 256x256, got {}x{}", p.h + 2 * p.pad_h,
                         p.w + 2 * p.pad_w);
    }
  }
  const std::int64_t limit = p.is_3d ? 16 : is_1d ? 256 : 32;
  if (is_tiled && std::max({p.t, p.r, p.s}) > limit) {
    return fmt::format("needs a filter up to {} in each direction", limit);
  }
  if (p.r <= p.pad_h || p.s <= p.pad_w || p.t <= p.pad_d) {
    return "needs a filter larger than the padding";
  }
  return std::nullopt;
}

Refusal refuse_winograd(const ConvProblem& p, bool is_fused) {
  if (auto refusal = refuse_dtype(p.dtype, !is_fused, false)) return refusal;
  const bool is_3x3 = p.r == 3 && p.s == 3 && !p.is_3d;
  const bool is_5x5 = p.r == 5 && p.s == 5 && !p.is_3d;
  if (!is_3x3 && (is_fused || !is_5x5)) {
    return fmt::format("needs a {} filter, got {}x{}{}", is_fused ? "3x3" : "3x3 or 5x5", p.r, p.s,
                       p.is_3d ? " of a 3-D convolution" : "");
  }
  if (!has_unit_stride(p)) return "needs stride 1";
  if (!has_unit_dilation(p)) return "needs dilation 1";
  return std::nullopt;
}

Refusal refuse_family(const ConvProblem& p, Family family, const Layouts& layouts) {
  switch (family) {
    case Family::kImplicitGemm:
      return std::nullopt;
    case Family::kPrecomputed:
      return has_unit_dilation(p) ? Refusal() : "needs dilation 1";
    case Family::kExplicitGemm:
      if (p.is_3d) return "is for 2-D only";
      if (auto refusal = refuse_dtype(p.dtype, false, true)) return refusal;
      return has_unit_dilation(p) ? Refusal() : "needs dilation 1";
    case Family::kAtomicsWithIndices:
      if (auto refusal = refuse_dtype(p.dtype, false, true)) return refusal;
      if (!is_all(layouts, Layout::kNchw)) return "needs all tensors in nchw";
      return has_unit_dilation(p) ? Refusal() : "needs dilation 1";
    case Family::kFft:
    case Family::kFftTiling:
      return refuse_fft(p, layouts, family == Family::kFftTiling);
    case Family::kWinograd:
    case Family::kWinogradNonfused:
      return refuse_winograd(p, family == Family::kWinograd);
    case Family::kNeverImplemented:
      break;
  }
  return "was never implemented";
}

bool ends_with_hopper(Family family) {
  return family == Family::kFft || family == Family::kFftTiling || family == Family::kWinograd ||
         family == Family::kWinogradNonfused;
}

}  // namespace

std::optional<std::string> documented_refusal(const ConvProblem& conv, const LegacySpec& spec,
                                              const Layouts& layouts, std::string_view isa) {
  const Family family = family_of(spec);
  if (ends_with_hopper(family) && compute_capability(isa) >= 90) {
    return fmt::format("is not supported on Hopper and later (this is {})", isa);
  }
  if (auto refusal = refuse_family(conv, family, layouts)) return refusal;
  if (layouts.weights == Layout::kNhwc) {
    const bool is_first_two = family == Family::kImplicitGemm || family == Family::kPrecomputed;
    if (!is_first_two) return "takes weights in kcrs only";
    if (!is_all(layouts, Layout::kNhwc)) return "takes weights in krsc only if all is in nhwc";
  }
  return std::nullopt;
}

std::optional<std::int64_t> documented_workspace(const ConvProblem& conv, const LegacySpec& spec) {
  const std::int64_t filter = conv.t * conv.r * conv.s;
  switch (family_of(spec)) {
    case Family::kImplicitGemm:
      return 0;
    case Family::kPrecomputed:  // a table of offsets, one per element of a filter
      return (spec.direction == Direction::kBackwardData ? conv.k : conv.c) / conv.groups * filter *
             std::int64_t{4};
    case Family::kExplicitGemm: {
      const auto dst = conv_dst_sizes(conv);
      const std::int64_t bytes = conv.dtype == DType::kF64 ? 8 : conv.dtype == DType::kF16 ? 2 : 4;
      std::int64_t positions = 1;
      for (std::size_t i = 2; i < dst.size(); ++i) positions *= dst[i];
      return conv.n * conv.c * filter * positions * bytes;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace torchalgo::cudnn
