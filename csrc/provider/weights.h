// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ir/problem.h"

namespace torchalgo {

/// Weights as the model has them (kcrs; scale and shift of a scale-shift); undefined if there are
/// none.
struct Weights {
  at::Tensor weights;
  at::Tensor bias;
  std::vector<Weights> next = {};  // of a chain's further convolutions
};

/// Weights and bias of each layer in turn; undefined ones too.
[[nodiscard]] std::vector<at::Tensor> tensors_of(const Weights& weights);

/// The inverse. @throws InternalError  unless there are two tensors per layer.
[[nodiscard]] Weights weights_from(const std::vector<at::Tensor>& tensors);

/// Weights as a row wants them; never on disk.
using Packed = std::vector<at::Tensor>;

/// Makes weights of zeros for all layers of `problem`, on the CPU.
[[nodiscard]] Weights zero_weights(const Problem& problem);

/// Returns the bytes of the weights of `problem` as the model has them, without the bias.
[[nodiscard]] std::int64_t plain_weight_bytes(const Problem& problem);

/// Returns the bytes of `packed` that are no memory of `plain`, oneDNN's own tensors among them.
[[nodiscard]] std::int64_t held_bytes(const Packed& packed, const Weights& plain);

/// Returns torch's name for a compute type; kTf32 is stored as float.
[[nodiscard]] at::ScalarType scalar_type(DType dtype);

}  // namespace torchalgo
