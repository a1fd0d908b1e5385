// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Binds the kernels of all algorithms that run a problem, and computes convolutions by plain loops,
// in double. Nothing here includes torch, and the program does not link it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu_algo/kernels/instruction_sets.h"
#include "cpu_algo/list.h"
#include "ir/algorithm.h"
#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Memory that is 64-byte aligned and filled with NaN.
class Floats {
 public:
  explicit Floats(std::int64_t count) : count_(count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float) + 64;
    memory_.resize(bytes / sizeof(float) + 16, std::numeric_limits<float>::quiet_NaN());
    void* at = memory_.data();
    std::size_t space = memory_.size() * sizeof(float);
    data_ = static_cast<float*>(std::align(64, bytes - 64, at, space));
  }
  [[nodiscard]] float* data() { return data_; }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::int64_t count_;
  std::vector<float> memory_;
  float* data_;
};

/// Runs each range on a thread of its own.
inline Threads std_threads() {
  return {[](void*, std::int64_t count, std::int64_t grain, Threads::Body call, const void* body) {
    constexpr std::int64_t kMost = 3;
    const std::int64_t parts = std::min(kMost, (count + grain - 1) / grain);
    std::vector<std::thread> threads;
    for (std::int64_t i = 0; i < parts; ++i)
      threads.emplace_back(call, body, count * i / parts, count * (i + 1) / parts);
    for (std::thread& thread : threads) thread.join();
  }};
}

/// The instruction sets of this processor that kernels are built for.
inline std::vector<std::string> isas() {
  std::vector<std::string> all;
  for (const kernels::InstructionSet& set : kernels::kInstructionSets) {
#if defined(__x86_64__)
    if (set.name == "avx2" && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")))
      continue;
    if (set.name == "avx512" &&
        !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")))
      continue;
#endif
    all.emplace_back(set.name);
  }
  return all;
}

/// A primitive that is bound to a problem.
struct Bound {
  PlainKernel kernel;
  Primitive primitive;
  double rounding;   // of its algorithm
  std::string what;  // for messages
};

/// Returns all primitives that can run `problem`, of each build that runs here, on 1 and 3 threads.
inline std::vector<Bound> all_bound(const Problem& problem) {
  std::vector<Bound> all;
  for (const std::string& isa : isas()) {
    for (const int threads : {1, 3}) {
      const Device device = {.isa = isa, .threads = threads};
      for (const Algorithm& algorithm : cpu_algorithms(isa)) {
        for (const Primitive& primitive : offer_all(algorithm, problem, device).primitives) {
          if (is_typed(primitive.src) || is_typed(primitive.dst)) continue;  // no floats
          all.push_back({algorithm.bind(problem, primitive, device), primitive,
                         algorithm.rounding.value_or(1),
                         to_string(primitive) + " " + to_string(problem) + " " + isa});
        }
      }
    }
  }
  EXPECT_FALSE(all.empty()) << to_string(problem);
  return all;
}

/// Where element (n, c, pixel) of a tensor lies.
inline std::int64_t offset_of(Layout layout, std::int64_t channels, std::int64_t pixels,
                              std::int64_t n, std::int64_t c, std::int64_t pixel) {
  if (layout == Layout::kNchw) return (n * channels + c) * pixels + pixel;
  if (layout == Layout::kNhwc) return (n * pixels + pixel) * channels + c;
  const std::int64_t blocks = (channels + 15) / 16;
  return ((n * blocks + c / 16) * pixels + pixel) * 16 + c % 16;
}

/// One convolution with its data, all in nchw and kcrs.
struct PlainConv {
  ConvProblem conv;
  std::vector<float> src, weights, bias, residual;
  std::vector<double> dst;

  explicit PlainConv(const std::string& text) : conv(std::get<ConvProblem>(parse_problem(text))) {
    const std::vector<std::int64_t> sizes = conv_dst_sizes(conv);
    p_ = sizes[2], q_ = sizes[3];
    src = random(conv.n * conv.c * conv.h * conv.w);
    weights = random(conv.k * (conv.c / conv.groups) * conv.r * conv.s);
    if (has(conv.epilogue, PostOp::kBias)) bias = random(conv.k);
    if (has(conv.epilogue, PostOp::kAdd)) residual = random(conv.n * conv.k * p_ * q_);
    for (std::int64_t n = 0; n < conv.n; ++n)
      for (std::int64_t k = 0; k < conv.k; ++k)
        for (std::int64_t y = 0; y < p_; ++y)
          for (std::int64_t x = 0; x < q_; ++x) dst.push_back(result(n, k, y, x));
  }

  [[nodiscard]] std::int64_t pixels() const { return p_ * q_; }

 private:
  std::int64_t p_ = 0, q_ = 0;
  std::mt19937 engine_;

  std::vector<float> random(std::int64_t count) {
    std::uniform_real_distribution<float> numbers(-1, 1);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = numbers(engine_);
    return values;
  }

  [[nodiscard]] double result(std::int64_t n, std::int64_t k, std::int64_t y,
                              std::int64_t x) const {
    const std::int64_t depth = conv.c / conv.groups, first = k / (conv.k / conv.groups) * depth;
    double sum = bias.empty() ? 0 : bias[k];
    for (std::int64_t c = 0; c < depth; ++c) {
      for (std::int64_t r = 0; r < conv.r; ++r) {
        for (std::int64_t s = 0; s < conv.s; ++s) {
          const std::int64_t row = y * conv.stride_h + r * conv.dilation_h - conv.pad_h;
          const std::int64_t column = x * conv.stride_w + s * conv.dilation_w - conv.pad_w;
          if (row < 0 || row >= conv.h || column < 0 || column >= conv.w) continue;
          sum += static_cast<double>(
                     src[((n * conv.c + first + c) * conv.h + row) * conv.w + column]) *
                 static_cast<double>(weights[((k * depth + c) * conv.r + r) * conv.s + s]);
        }
      }
    }
    if (!residual.empty()) sum += residual[((n * conv.k + k) * p_ + y) * q_ + x];
    return has(conv.epilogue, PostOp::kRelu) ? std::max(sum, 0.0) : sum;
  }
};

/// Returns `values` of nchw in `layout`, with zeros in the pad lanes.
inline Floats in_layout(const std::vector<float>& values, Layout layout, std::int64_t n,
                        std::int64_t channels, std::int64_t pixels) {
  Floats result(element_count(layout, n, channels, pixels));
  std::fill_n(result.data(), result.count(), 0.0F);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
    result.data()[offset_of(layout, channels, pixels, i / pixels / channels, i / pixels % channels,
                            i % pixels)] = values[static_cast<std::size_t>(i)];
  }
  return result;
}

/// Runs a kernel of one layer. Of these, a problem may have no residual and no workspace.
inline void run_plain(const PlainKernel& kernel, const std::vector<const float*>& src,
                      const LayerPointers& layer, Floats& dst, const float* residual = nullptr) {
  Floats workspace(kernel.workspace_bytes / static_cast<std::int64_t>(sizeof(float)));
  kernel.run({src, {&layer, 1}, residual, dst.data(), workspace.data()}, std_threads());
}

/// The convolution computes what plain loops compute: within 2e-6 (L2) for a plain sum, with zeros
/// in pad lanes.
inline void expect_right(const PlainConv& plain, const Bound& bound) {
  const ConvProblem& conv = plain.conv;
  const PlainKernel& kernel = bound.kernel;
  const Layout src_layout = bound.primitive.src, dst_layout = bound.primitive.dst;
  ASSERT_LE(kernel.packed.size(), 1U);
  const PackedFloats floats = kernel.packed.empty() ? PackedFloats() : kernel.packed[0];
  Floats weights(floats.weights), bias(floats.bias);
  Floats src = in_layout(plain.src, src_layout, conv.n, conv.c, conv.h * conv.w);
  Floats residual = in_layout(plain.residual, dst_layout, conv.n, conv.k, plain.pixels());
  Floats dst(element_count(dst_layout, conv.n, conv.k, plain.pixels()));
  const LayerPointers model = {plain.weights.data(),
                               plain.bias.empty() ? nullptr : plain.bias.data()};
  const PackedPointers packed = {weights.data(), bias.data()};
  if (kernel.pack) kernel.pack({&model, 1}, {&packed, 1}, std_threads());
  run_plain(kernel, {src.data()},
            {weights.count() == 0 ? model.weights : weights.data(),
             bias.count() == 0 ? model.bias : bias.data()},
            dst, plain.residual.empty() ? nullptr : residual.data());
  double error = 0, norm = 0, all = 0, logical = 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(plain.dst.size()); ++i) {
    const std::int64_t pixel = i % plain.pixels(), k = i / plain.pixels() % conv.k;
    const double value = dst.data()[offset_of(dst_layout, conv.k, plain.pixels(),
                                              i / plain.pixels() / conv.k, k, pixel)];
    const double expected = plain.dst[static_cast<std::size_t>(i)];
    error += (value - expected) * (value - expected);
    norm += expected * expected;
    logical += std::abs(value);
  }
  EXPECT_LE(std::sqrt(error), 2e-6 * bound.rounding * std::sqrt(norm)) << bound.what;
  for (std::int64_t i = 0; i < dst.count(); ++i) all += std::abs(double{dst.data()[i]});
  EXPECT_NEAR(all, logical, 1e-9 * logical) << bound.what << ": pad lanes are not zero";
}

/// Expects the elements of `dst` to be those of `expected`, which is in nchw, up to 5e-6, and the
/// pad lanes to be zero.
inline void expect_near(Floats& dst, const std::vector<double>& expected, Layout layout,
                        std::int64_t channels, std::int64_t pixels, const std::string& what) {
  double all = 0, logical = 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.size()); ++i) {
    const double value = dst.data()[offset_of(layout, channels, pixels, i / pixels / channels,
                                              i / pixels % channels, i % pixels)];
    EXPECT_NEAR(value, expected[static_cast<std::size_t>(i)], 5e-6) << what;
    logical += std::abs(value);
  }
  for (std::int64_t i = 0; i < dst.count(); ++i) all += std::abs(double{dst.data()[i]});
  EXPECT_NEAR(all, logical, 1e-9 * logical) << what << ": pad lanes are not zero";
}

}  // namespace torchalgo::cpu
