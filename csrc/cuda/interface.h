// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

// The interface of libtorchalgo_cuda.so. It is plain C, since libtorchalgo.so finds it by dlsym. It
// is built only where nvcc is.
//
// Each function of a kernel enqueues one launch on `stream` (cudaStream_t) of the current device,
// or none if the result is empty. It returns a cudaError_t: 1 (cudaErrorInvalidValue) for arguments
// that it does not describe. Tensors are dense, except the sources of Rows, and the result overlaps
// no input. Sizes are >= 0, and every tensor has fewer than kElementLimit elements.

namespace torchalgo::cuda {

inline constexpr int kInterfaceAbi = 4;  // raised when a signature below changes

/// Numbers of elements and threads fit 32 bits.
inline constexpr std::int64_t kElementLimit = std::int64_t{1} << 31;

enum ElementType : int { kFloat = 0, kHalf = 1, kBfloat16 = 2 };

/// An activation: its place in TORCHALGO_ACTIVATIONS (ir/activations.h) from 0, and its numbers.
struct Activation {
  int kind = -1;  // -1: none
  float numbers[2] = {};
};

/// A pooling of src [n, h, w, c] to dst [n, p, q, c]. Window (i, j) begins at row i * stride_h -
/// pad_h and column j * stride_w - pad_w, and has r x s elements. Those outside of the image are
/// ignored; only kAveragePadded counts the padding in its divisor.
struct Pool {
  enum Kind : int {
    kMax,            // a NaN in the window is the maximum
    kAverage,        // divided by the number of elements inside of the image
    kAveragePadded,  // divided by the number of elements inside of the image or its padding
    kAdaptive,       // the average of rows floor(i h / p) to ceil((i + 1) h / p), columns alike
  };
  int kind = kMax, type = kFloat;
  int n = 1, h = 1, w = 1, c = 1, p = 1, q = 1;
  int r = 1, s = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;  // not of kAdaptive
  int dilation_h = 1, dilation_w = 1;                                  // kMax only
};

/// An elementwise operation on `a` [n, pixels, c], computed in f32.
struct Pointwise {
  enum Kind : int {
    kActivation,  // activation(a)
    kAdd,         // activation(a + b)
    kSub,         // activation(a - b)
    kMul,         // activation(a * b)
    kAffine,      // activation(a * b + shift), where b and shift are [c]
  };
  int kind = kActivation, type = kFloat;
  int n = 1, pixels = 1, c = 1;
  bool channelwise = false;  // b is [n, c] (kAdd and kMul), and not [n, pixels, c]
  Activation activation;
};

/// Rows that are written side by side: dst [rows, sum of widths]. Row i of part k begins at element
/// i * row_stride of its src. Bytes are copied without a conversion.
struct Rows {
  static constexpr int kMostParts = 64;
  struct Part {
    const void* src = nullptr;
    int width = 0, row_stride = 0;  // in elements
  };
  int element_bytes = 4;  // or 2
  int rows = 0, parts = 0;
  Part part[kMostParts];
};

/// A depthwise convolution of src [n, h, w, c] to dst [n, p, q, c], with weights [r, s, c]:
/// activation(convolution + bias + residual). Products are added in f32. The image has pad_h rows
/// and pad_w columns of zeros before it, and as many as are needed after it. An infinite weight
/// times such a zero may be NaN. The activation is none, relu, relu6, clamp, hardswish or silu.
struct Depthwise {
  int type = kFloat;
  int n = 1, h = 1, w = 1, c = 1, p = 1, q = 1, r = 1, s = 1;
  int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
  Activation activation;
};

/// A norm over the channels of each pixel: dst = norm(src) * scale + shift. src and dst are
/// [pixels, c], scale and shift are [c]. Sums are in f32, and c is less than kElementLimit / 2.
struct LayerNorm {
  enum Kind : int {
    kLayer,     // (x - mean) / sqrt(variance + epsilon)
    kRms,       // x / sqrt(mean of x^2 + epsilon)
    kVariance,  // x / sqrt(sample variance + epsilon), whose sum is divided by c - 1
  };
  int kind = kLayer, type = kFloat;
  int pixels = 1, c = 1;
  float epsilon = 0;
};

}  // namespace torchalgo::cuda

#pragma GCC visibility push(default)  // all else of the library is hidden
extern "C" {

/// Returns kInterfaceAbi of the library.
int torchalgo_cuda_abi();

/// dst [images, cols, rows] = transpose of src [images, rows, cols]. Elements are cast from
/// src_type to dst_type with rounding to nearest even. The types are equal, or one of them is
/// kFloat. The product of the sizes fits int64, and may be kElementLimit or more.
int torchalgo_cuda_transform(const void* src, void* dst, int src_type, int dst_type,
                             std::int64_t images, std::int64_t rows, std::int64_t cols,
                             void* stream);

int torchalgo_cuda_pool(const torchalgo::cuda::Pool* pool, const void* src, void* dst,
                        void* stream);

/// `b` is null for kActivation, and `shift` for all but kAffine.
int torchalgo_cuda_pointwise(const torchalgo::cuda::Pointwise* pointwise, const void* a,
                             const void* b, const void* shift, void* dst, void* stream);

int torchalgo_cuda_rows(const torchalgo::cuda::Rows* rows, void* dst, void* stream);

/// `bias` [c] and `residual`, which has the sizes of dst, may be null.
int torchalgo_cuda_depthwise(const torchalgo::cuda::Depthwise* depthwise, const void* src,
                             const void* weights, const void* bias, const void* residual, void* dst,
                             void* stream);

int torchalgo_cuda_layer_norm(const torchalgo::cuda::LayerNorm* norm, const void* src,
                              const void* scale, const void* shift, void* dst, void* stream);

/// Makes torch's allocator take the memory of `stream` from a private pool until
/// torchalgo_cuda_close_pool(). No other tensor gets memory of the pool until
/// torchalgo_cuda_free_pool().
/// @return  the pool's number; 0 if torch has no allocator yet.
std::uint64_t torchalgo_cuda_open_pool(int device, void* stream);
void torchalgo_cuda_close_pool(int device, std::uint64_t pool);
void torchalgo_cuda_free_pool(int device, std::uint64_t pool);

}  // extern "C"
#pragma GCC visibility pop
