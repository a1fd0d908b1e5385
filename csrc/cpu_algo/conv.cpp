// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "base/error.h"
#include "ir/activations.h"
#include "ir/layout.h"

namespace torchalgo::cpu {

std::string refuse_conv(const ConvProblem& conv) {
  if (conv.direction != Direction::kForward) {
    return fmt::format("is forward only, got {}", to_string(conv.direction));
  }
  if (conv.dtype != DType::kF32) return fmt::format("is f32 only, got {}", to_string(conv.dtype));
  if (conv.is_3d) return "is 2-D only";
  if (!as_bias_add_activation(conv.epilogue)) return "needs an epilogue bias, add, activation";
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  // Kernels count the elements from one tap of the filter to another one in 32 bits, zeros
  // included.
  const std::int64_t padded =
      (conv.h + 2 * conv.pad_h + conv.extra_h) * (conv.w + 2 * conv.pad_w + conv.extra_w);
  const std::int64_t largest =
      std::max({element_count(Layout::kNChw16c, conv.n, conv.c, conv.h * conv.w),
                element_count(Layout::kNChw16c, conv.n, conv.k, dst[2] * dst[3]),
                element_count(Layout::kNChw16c, 1, conv.c, padded),
                (conv.k + 15) * (conv.c / conv.groups + 15) * conv.r * conv.s});
  if (largest > kLimit)
    return fmt::format("needs tensors and padded images below 2^31 elements, got {}", largest);
  if (dst[2] < 1 || dst[3] < 1) return "needs a result that is not empty";
  return {};
}

std::string refuse_backward_filter(const ConvProblem& conv) {
  if (conv.direction != Direction::kBackwardFilter) {
    return fmt::format("computes gradients with respect to weights only, got {}",
                       to_string(conv.direction));
  }
  if (!conv.epilogue.empty()) return "needs no epilogue";
  ConvProblem forward = conv;
  forward.direction = Direction::kForward;
  return refuse_conv(forward);
}

std::string refuse_dilation(const ConvProblem& conv) {
  if (conv.dilation_h == 1 && conv.dilation_w == 1) return {};
  return fmt::format("needs dilation 1, got {}x{}", conv.dilation_h, conv.dilation_w);
}

std::string refuse_broken_groups(const ConvProblem& conv) {
  const std::int64_t c = conv.c / conv.groups, k = conv.k / conv.groups;
  if (conv.groups == 1 || (c % 16 == 0 && k % 16 == 0)) return {};
  return fmt::format("needs groups of a multiple of 16 channels, got {} to {}", c, k);
}

namespace {

kernels::Activation::Kind kernel_kind(PostOp::Kind kind) {
  switch (kind) {
#define TORCHALGO_CASE(enumerator, ...) \
  case PostOp::k##enumerator:           \
    return kernels::Activation::k##enumerator;
    TORCHALGO_ACTIVATIONS(TORCHALGO_CASE)
#undef TORCHALGO_CASE
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  return kernels::Activation::kNone;
}

}  // namespace

kernels::Activation activation_of(const Epilogue& epilogue) {
  const auto form = as_bias_add_activation(epilogue);
  TORCHALGO_ASSERT(form.has_value());
  if (!form->activation) return kernels::Activation::kNone;
  const auto& [kind, numbers] = *form->activation;
  return {kernel_kind(kind), static_cast<float>(numbers[0]), static_cast<float>(numbers[1])};
}

std::int64_t variant_number(const Primitive& primitive) {
  const std::size_t dot = primitive.name.rfind(".t");
  std::int64_t count = 0;
  if (dot != std::string::npos) {
    const char* end = primitive.name.data() + primitive.name.size();
    std::from_chars(primitive.name.data() + dot + 2, end, count);
  }
  TORCHALGO_ASSERT(count > 0);
  return count;
}

void pad_bias(const float* bias, std::int64_t channels, float* padded, std::int64_t count) {
  std::fill_n(padded, count, 0.0F);
  if (bias != nullptr) std::copy_n(bias, channels, padded);
}

}  // namespace torchalgo::cpu
