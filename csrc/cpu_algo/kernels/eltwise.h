// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// An elementwise operation, dst[i] = activation(a[i] op b[i]). All tensors have the same shape and
/// layout, so the layout does not matter.
struct Eltwise {
  const float* a;
  const float* b;  // not read by run_activation
  float* dst;
  Activation activation;
};

/// Each kernel writes elements [begin, end). run_activation_gradient writes a[i] times the
/// derivative of the activation at b[i]. For a clamp this is 0 at the bounds, and b[i] may be the
/// result of the clamp. The kernels run_*_bf16 cast the pointers to elements of bf16.
/// round_to_bf16 is run_activation with a dst of bf16.
TORCHALGO_DECLARE_KERNEL(
    void run_add(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_mul(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_sub(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_activation_gradient(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_activation(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_add_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_mul_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_activation_gradient_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void run_activation_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end);
    void round_to_bf16(const Eltwise& eltwise, std::int64_t begin, std::int64_t end))

/// The last block of each image of an nChw16c tensor.
struct PadLanes {
  float* dst;
  std::int64_t blocks;    // of an image
  std::int64_t pixels;    // of a block
  std::int64_t channels;  // in the last block; the lanes above become zero
};

/// Clears the lanes of pixels [begin, end) of images * pixels, after activations that do not map 0
/// to 0.
TORCHALGO_DECLARE_KERNEL(void clear_pad_lanes(const PadLanes& lanes, std::int64_t begin,
                                              std::int64_t end))

}  // namespace torchalgo::kernels
