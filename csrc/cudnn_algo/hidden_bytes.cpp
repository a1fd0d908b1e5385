// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/hidden_bytes.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/product.h"

namespace torchalgo::cudnn {
namespace {

// The most bytes that alignment, semaphores and small tables take beside the copies.
constexpr std::int64_t kSlack = 512;

using TensorBytes = std::array<std::int64_t, 3>;  // src, weights, dst

std::int64_t round_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

TensorBytes copy_bytes(const ConvProblem& conv, std::int64_t width, std::int64_t channel_multiple) {
  const auto dst = conv_dst_sizes(conv);
  const std::int64_t dst_positions = product(std::span(dst).subspan(2));
  const std::int64_t c = round_up(conv.c, channel_multiple);
  const std::int64_t k = round_up(conv.k, channel_multiple);
  const std::int64_t c_of_group = round_up(conv.c / conv.groups, channel_multiple);
  return {width * conv.n * c * conv.d * conv.h * conv.w,
          width * k * c_of_group * conv.t * conv.r * conv.s, width * conv.n * k * dst_positions};
}

// Returns the possible bytes of an element of a copy, the tensors' own width first. Kernels for
// 16-bit types may read 32-bit copies.
std::vector<std::int64_t> copy_widths(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {8};
    case DType::kF32:
    case DType::kTf32:
      return {4};
    case DType::kF16:
    case DType::kBf16:
      break;
  }
  return {2, 4};
}

// A subset of the tensors (bit i: tensor i) and the sum of its bytes. `explain` returns the largest
// sum that explains `amount`, or nullopt.
struct SubsetSum {
  unsigned subset = 0;
  std::int64_t bytes = 0;
};
std::optional<SubsetSum> explain(std::int64_t amount, const TensorBytes& bytes,
                                 unsigned allowed = 0b111) {
  std::optional<SubsetSum> best;
  for (unsigned subset = 0; subset < 8; ++subset) {
    if ((subset & ~allowed) != 0) continue;
    std::int64_t sum = 0;
    for (unsigned i = 0; i < 3; ++i) sum += (subset >> i & 1U) != 0 ? bytes[i] : 0;
    const std::int64_t rest = amount - sum;
    if (rest < 0 || rest > kSlack) continue;
    if (!best || sum > best->bytes) best = SubsetSum{subset, sum};
  }
  return best;
}

// Returns the bytes that are copied even for the layouts with the least workspace, `base`. Returns
// nullopt if they are unknown. Only tensors in `constant` can be among them: those for which no
// change of layout lowers the workspace.
std::optional<std::int64_t> always_copied(std::int64_t base, const TensorBytes& bytes,
                                          const TensorBytes& least_bytes, unsigned constant) {
  if (base <= kSlack) return 0;
  if (const auto sum = explain(base, bytes, constant)) return sum->bytes;
  for (unsigned i = 0; i < 3; ++i) {
    if ((constant >> i & 1U) != 0 && least_bytes[i] <= base) return std::nullopt;
  }
  return 0;
}

std::optional<std::vector<std::optional<std::int64_t>>> explain_all(
    std::span<const WorkspaceSample> samples, std::int64_t base, const TensorBytes& bytes,
    const TensorBytes& least_bytes) {
  std::vector<std::optional<std::int64_t>> result;
  unsigned switched = 0;
  for (const WorkspaceSample& sample : samples) {
    const auto sum = explain(sample.workspace_bytes - base, bytes);
    if (!sum) return std::nullopt;
    switched |= sum->subset;
    result.emplace_back(sum->bytes);
  }
  const auto always = always_copied(base, bytes, least_bytes, ~switched & 0b111U);
  if (!always) return std::nullopt;
  for (auto& copied : result) *copied += *always;
  return result;
}

}  // namespace

std::vector<std::optional<std::int64_t>> hidden_bytes(const ConvProblem& conv,
                                                      std::span<const WorkspaceSample> samples) {
  if (samples.empty()) return {};
  const std::int64_t base =
      std::ranges::min(samples, {}, &WorkspaceSample::workspace_bytes).workspace_bytes;
  const TensorBytes least_bytes = copy_bytes(conv, 2, 1);
  for (const std::int64_t channel_multiple : {1, 4, 8, 16}) {
    for (const std::int64_t width : copy_widths(conv.dtype)) {
      const TensorBytes bytes = copy_bytes(conv, width, channel_multiple);
      if (const auto all = explain_all(samples, base, bytes, least_bytes)) return *all;
    }
  }
  return std::vector<std::optional<std::int64_t>>(samples.size());
}

}  // namespace torchalgo::cudnn
