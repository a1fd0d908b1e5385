// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/eltwise.h"

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kChunk = 2048;  // stays in the L1 cache until its activation is done

struct Add {
  template <class X>
  static X apply(const X& a, const X& b) {
    return a + b;
  }
};

struct Mul {
  template <class X>
  static X apply(const X& a, const X& b) {
    return a * b;
  }
};

struct Sub {
  template <class X>
  static X apply(const X& a, const X& b) {
    return a - b;
  }
};

/// Applies `op` and then the activation. A clamp costs nothing in a loop that waits for memory, so
/// the loop always clamps. Other activations run chunk by chunk afterwards.
template <class Op>
inline void run_binary(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  const Clamp clamp = clamp_of(eltwise.activation);
  for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const std::int64_t count = chunk + kChunk < end ? kChunk : end - chunk;
    const float *a = eltwise.a + chunk, *b = eltwise.b + chunk;
    float* dst = eltwise.dst + chunk;
    for (std::int64_t i = 0; i < count; ++i) {
      float value = Op::apply(a[i], b[i]);
      value = value < clamp.low ? clamp.low : value;
      dst[i] = value > clamp.high ? clamp.high : value;
    }
    if (!is_clamp(eltwise.activation)) activate(dst, dst, count, eltwise.activation);
  }
}

/// Computes the same for elements of bf16. Each result is rounded once, after the activation.
template <class Op>
inline void run_binary_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  const Clamp clamp = clamp_of(eltwise.activation);
  const Vec low(clamp.low), high(clamp.high);
  const bool is_clamped = is_clamp(eltwise.activation);
  for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const std::int64_t count = chunk + kChunk < end ? kChunk : end - chunk;
    const Bf16* a = of<Bf16>(eltwise.a) + chunk;
    const Bf16* b = of<Bf16>(eltwise.b) + chunk;
    Bf16* dst = of<Bf16>(eltwise.dst) + chunk;
    float results[kChunk];
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const std::int64_t lanes = i + kLanes < count ? kLanes : count - i;
      const Vec x = Op::template apply<Vec>(Vec::loadu(a + i, lanes), Vec::loadu(b + i, lanes));
      const Vec clamped = apply_clamp(x, low, high);
      is_clamped ? clamped.store(dst + i, lanes) : clamped.store(results + i);
    }
    if (!is_clamped) activate(results, dst, count, eltwise.activation);
  }
}

// `activation` is passed by value as in activate_range.
template <Activation::Kind kind, class Element>
inline void activation_gradient_range(const Element* diff, const Element* x, Element* dst,
                                      std::int64_t count, Activation activation) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    activation_gradient<kind>(Vec::loadu(diff + i), Vec::loadu(x + i), activation).store(dst + i);
  }
  if (i == count) return;
  const std::int64_t rest = count - i;
  activation_gradient<kind>(Vec::loadu(diff + i, rest), Vec::loadu(x + i, rest), activation)
      .store(dst + i, rest);
}

template <class Element>
inline void activation_gradient_of(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  with_activation(eltwise.activation.kind, [&]<Activation::Kind kind>() {
    activation_gradient_range<kind>(of<Element>(eltwise.a) + begin, of<Element>(eltwise.b) + begin,
                                    of<Element>(eltwise.dst) + begin, end - begin,
                                    eltwise.activation);
  });
}

}  // namespace

void run_add(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  run_binary<Add>(eltwise, begin, end);
}

void run_mul(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  run_binary<Mul>(eltwise, begin, end);
}

void run_sub(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  run_binary<Sub>(eltwise, begin, end);
}

void run_activation_gradient(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  activation_gradient_of<float>(eltwise, begin, end);
}

void run_activation_gradient_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  activation_gradient_of<Bf16>(eltwise, begin, end);
}

void run_activation(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  activate(eltwise.a + begin, eltwise.dst + begin, end - begin, eltwise.activation);
}

void run_add_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  run_binary_bf16<Add>(eltwise, begin, end);
}

void run_mul_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  run_binary_bf16<Mul>(eltwise, begin, end);
}

void run_activation_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  activate(of<Bf16>(eltwise.a) + begin, of<Bf16>(eltwise.dst) + begin, end - begin,
           eltwise.activation);
}

void round_to_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end) {
  activate(eltwise.a + begin, of<Bf16>(eltwise.dst) + begin, end - begin, eltwise.activation);
}

void clear_pad_lanes(const PadLanes& lanes, std::int64_t begin, std::int64_t end) {
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t last_block = (task / lanes.pixels + 1) * lanes.blocks - 1;
    float* pixel = lanes.dst + (last_block * lanes.pixels + task % lanes.pixels) * kBlock;
    clear_lanes(pixel, kBlock, 1, lanes.channels);
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA
