// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/error_code.h"
#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/executable_cache.h"
#include "cudnn_algo/runtime.h"
#include "provider/kernel.h"

// The parts of running engines and legacy functions that both share.

namespace torchalgo::cudnn {

/// One run of an engine or a legacy function.
struct EngineCall {
  const Problem& problem;
  const Primitive& primitive;
  const KernelArgs& args;
};

/// Returns the text of a call: "cudnn9.conv.e22 nhwc->nhwc, problem fwd_f16_..., cuDNN 9.19.0".
[[nodiscard]] std::string describe(const Api& api, const EngineCall& call);

/// Returns the executable of `call` from this thread's cache. If the cache lacks it, calls `build`
/// and adds the result. `build` is not called while the stream captures a CUDA graph, because it
/// allocates and loads kernels, which breaks a capture.
/// @throws Error  if the stream is capturing and the executable has not run before; if it needs
/// more workspace than the primitive says, or no workspace is given.
[[nodiscard]] std::shared_ptr<Executable> find_or_build(
    const std::shared_ptr<const Api>& api, const Runtime& runtime, Handle handle,
    const EngineCall& call, const std::function<std::shared_ptr<Executable>()>& build);

/// Aligned pointers to the data of tensors. Views that are not aligned to kAlignment are copied to
/// aligned memory. cuDNN's plans are built for aligned tensors, and most tensor-core engines accept
/// no others.
class AlignedTensors {
 public:
  [[nodiscard]] void* input(const at::Tensor& tensor);
  /// Returns memory for the result, which the caller fills before finish().
  [[nodiscard]] void* output(const at::Tensor& tensor);
  /// Copies the outputs to their tensors.
  void finish();

 private:
  std::vector<at::Tensor>
      inputs_;  // kept until the copies are used; their memory is stream ordered
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs_;  // (where it belongs, aligned)
};

/// Runs `body` and adds describe(api, call) to an Error of cuDNN.
template <typename Body>
void with_description(const Api& api, const EngineCall& call, const Body& body) {
  try {
    body();
  } catch (const StatusError& error) {
    throw Error(with_inner_code(fmt::format("TA5102 {} ({})", error.what(), describe(api, call))));
  }
}

}  // namespace torchalgo::cudnn
