// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu_algo/conv.h"
#include "cpu_algo/rounding.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;
// Weights that a thread should have at least: some 10 us of reading, or its start costs more than
// it saves.
constexpr std::int64_t kLeastWeights = 65536;

}  // namespace

void run_linear(LinearRun run, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task, const Threads& threads) {
  const std::int64_t floats_per_task = std::max<std::int64_t>(1, linear.c * rows_per_task);
  parallel_for(threads, tasks, kLeastWeights / floats_per_task + 1,
               [&](std::int64_t begin, std::int64_t end) { run(linear, begin, end); });
}

void pack_linear_panels(std::int64_t k, std::int64_t c, const float* weights, float* panels) {
  constexpr std::int64_t kRows = kernels::kLinearPanel;
  const std::int64_t blocks = channel_blocks(c);
  std::fill_n(panels, linear_panel_floats(k, c), 0.0F);
  for (std::int64_t row = 0; row < k; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = block * kBlock;
      std::copy(weights + row * c + first, weights + row * c + std::min(first + kBlock, c),
                panels + ((row / kRows * blocks + block) * kRows + row % kRows) * kBlock);
    }
  }
}

std::int64_t linear_panel_floats(std::int64_t k, std::int64_t c) {
  return linear_panel_count(k) * kernels::kLinearPanel * channel_blocks(c) * kBlock;
}

namespace {

// The variants that copy the weights, as f32, bf16 or f16, and the most columns for which the copy
// in f32 pays off. Packed weights lie in pages of 2 MiB. Read from memory, rows of 960 columns are
// 1.4 to 2 times as fast, rows of 2048 columns 1.2 times. Longer rows gain too, but VGG-16 would
// hold 494 MB twice to save 3 % of its time. With half the bytes, rows of any length take 0.5 to
// 0.55 of the time.
constexpr const char* kPlain = "cpu.linear";
constexpr const char* kPanels = "cpu.linear.panels";
constexpr const char* kBf16 = "cpu.linear.wbf16";
constexpr const char* kF16 = "cpu.linear.wf16";
constexpr std::int64_t kMostPanelColumns = 2048;

// Returns the nearest f16 of x * scale. A NaN stays a NaN, and a finite number stays finite, if
// `scale` is that of the row of x, and still if it is divided by the scale later.
std::uint16_t to_f16(float x, float scale) {
  const float scaled = std::bit_cast<float>(keep_finite(x, 0x7f7fe000)) * scale;
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(scaled);
  constexpr std::uint32_t kBias = (127 - 15) << 23, kHalf = 0x3f000000;
  const std::uint32_t normal = (magnitude - kBias + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Below 2^-14 the numbers of f16 are the multiples of 2^-24, as those of f32 from 0.5 to 1.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(0.5F + scaled) - kHalf;
  const std::uint32_t finite = magnitude < kBias + (1 << 23) ? small : normal;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00 : 0x7c00;
  return static_cast<std::uint16_t>(sign_of(x) | (magnitude < kInfinity ? finite : special));
}

// Returns the exponent of the power of two with which a row is multiplied before it is rounded to
// f16. The row's largest finite weight is then in [2^7, 2^8), so no weight becomes infinite.
// Weights down to 2^-21 of the largest keep all 11 digits. Sums of the products overflow only if
// the magnitudes of the inputs add up to more than 10^36.
int f16_exponent(std::span<const float> row) {
  std::int32_t largest = 0;
  for (const float weight : row) {
    const std::uint32_t magnitude = magnitude_of(weight);
    largest = std::max(largest, static_cast<std::int32_t>(magnitude < kInfinity ? magnitude : 0));
  }
  constexpr int kMost = 126;  // 2^-126 is a normal number
  return std::min(7 + 127 - (largest >> 23), kMost);
}

// Writes a row into every block of a panel.
template <class Convert>
void pack_row(std::span<const float> row, std::uint16_t* to, const Convert& convert) {
  const auto c = static_cast<std::int64_t>(row.size());
  for (std::int64_t first = 0; first < c; first += kBlock) {
    const std::int64_t count = std::min(kBlock, c - first);
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert(row.data()[first + i]);
    to += kernels::kLinearPanel * kBlock;
  }
}

std::int64_t half_panel_floats(std::int64_t k, std::int64_t c, bool is_f16) {
  const std::int64_t factors = is_f16 ? linear_panel_count(k) * kernels::kLinearPanel : 0;
  return linear_panel_floats(k, c) / 2 + factors;
}

// Writes panels of bf16 or f16, as kernels::run_linear_panels_bf16 and its neighbor read them.
void pack_half_panels(std::int64_t k, std::int64_t c, bool is_f16, const float* weights,
                      float* panels, const Threads& threads) {
  constexpr std::int64_t kRows = kernels::kLinearPanel;
  const std::int64_t blocks = channel_blocks(c);
  auto* const numbers = reinterpret_cast<std::uint16_t*>(panels);
  float* const factors = panels + linear_panel_floats(k, c) / 2;
  std::fill_n(numbers, linear_panel_floats(k, c), std::uint16_t{0});
  parallel_for(threads, k, kLeastWeights / c + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::span<const float> row(weights + i * c, static_cast<std::size_t>(c));
      std::uint16_t* const to = numbers + (i / kRows * blocks * kRows + i % kRows) * kBlock;
      if (!is_f16) {
        pack_row(row, to, to_bf16);
        continue;
      }
      const int exponent = f16_exponent(row);
      factors[i] = std::ldexp(1.0F, -exponent);
      pack_row(row, to, [scale = std::ldexp(1.0F, exponent)](float x) { return to_f16(x, scale); });
    }
  });
}

LinearRun find_run(std::string_view variant, std::string_view isa) {
  if (variant == kPanels) return TORCHALGO_PICK_KERNEL(isa, run_linear_panels);
  if (variant == kBf16) return TORCHALGO_PICK_KERNEL(isa, run_linear_panels_bf16);
  if (variant == kF16) return TORCHALGO_PICK_KERNEL(isa, run_linear_panels_f16);
  return TORCHALGO_PICK_KERNEL(isa, run_linear);
}

void set_packing(const LinearProblem& linear, const std::string& variant, PlainKernel& kernel) {
  const std::int64_t c = linear.c, k = linear.k;
  const bool is_f32 = variant == kPanels, is_f16 = variant == kF16;
  kernel.packed = {{is_f32 ? linear_panel_floats(k, c) : half_panel_floats(k, c, is_f16), 0}};
  kernel.packing = variant;
  kernel.pack = [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                    const Threads& threads) {
    if (is_f32) {
      pack_linear_panels(k, c, model[0].weights, to[0].weights);
    } else {
      pack_half_panels(k, c, is_f16, model[0].weights, to[0].weights, threads);
    }
  };
}

PlainKernel make_kernel(const LinearProblem& linear, const std::string& variant,
                        std::string_view isa) {
  const bool has_panels = variant != kPlain;
  const kernels::Linear sizes = {nullptr,  nullptr,  nullptr,  nullptr,
                                 linear.n, linear.c, linear.k, activation_of(linear.epilogue)};
  const LinearRun run = find_run(variant, isa);
  const std::int64_t rows_per_task = has_panels ? kernels::kLinearPanel : 1;
  const std::int64_t tasks = has_panels ? linear_panel_count(linear.k) : linear.k;
  PlainKernel kernel = {.least_work = [=] { return direct_work(linear); }};
  if (has_panels) set_packing(linear, variant, kernel);
  kernel.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::Linear call = sizes;
    call.src = args.src[0];
    call.weights = args.weights[0].weights;
    call.bias = args.weights[0].bias;
    call.dst = args.dst;
    run_linear(run, call, tasks, rows_per_task, threads);
  };
  return kernel;
}

Offer offer_all(const Problem& problem, const Device&) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr) return {{}, "needs a linear layer"};
  const auto form = as_bias_add_activation(linear->epilogue);
  if (!form || form->add) return {{}, "needs an epilogue bias, activation"};
  Offer offer = offer_f32(kPlain, linear->dtype, {Layout::kNchw});
  if (!offer.refusal.empty()) return offer;
  for (const char* variant : {kPanels, kBf16, kF16}) {
    if (variant != kPanels || linear->c <= kMostPanelColumns)
      offer.primitives.push_back({variant, Layout::kNchw, Layout::kNchw});
  }
  return offer;
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr || (linear->n >= 1 && linear->n <= kMostLinearInputs))
    return offer_all(problem, device);
  return {{},
          fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                      kMostLinearInputs, linear->n)};
}

}  // namespace

Algorithm linear(const std::string& isa) {
  return {.name = kPlain,
          .version = 4,
          .rounding = 1,
          .offer = offer,
          .offer_all = offer_all,
          .bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
            return make_kernel(std::get<LinearProblem>(problem), primitive.name, isa);
          }};
}

}  // namespace torchalgo::cpu
