// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// All activations: the enumerator without its k, the name, how many numbers follow the name in the
// texts of problems, and whether 0 becomes 0, so that pad lanes stay zero without further work. The
// name is that of torch's function; gelu_tanh is gelu(x, approximate="tanh"). Those that clamp x to
// [low, high] come first. Kernels include this file too, so it holds nothing but the macro.
#define TORCHALGO_ACTIVATIONS(X)          \
  X(Relu, "relu", 0, true)                \
  X(Relu6, "relu6", 0, true)              \
  X(Clamp, "clamp", 2, true)              \
  X(Hardswish, "hardswish", 0, true)      \
  X(Silu, "silu", 0, true)                \
  X(Sigmoid, "sigmoid", 0, false)         \
  X(Hardsigmoid, "hardsigmoid", 0, false) \
  X(Gelu, "gelu", 0, true)                \
  X(GeluTanh, "gelu_tanh", 0, true)       \
  X(Mish, "mish", 0, true)                \
  X(Tanh, "tanh", 0, true)                \
  X(Elu, "elu", 1, true)                  \
  X(LeakyRelu, "leaky_relu", 1, true)
