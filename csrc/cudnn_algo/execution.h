// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/executable_cache.h"
#include "cudnn_algo/runtime.h"
#include "provider/kernel.h"

// Running engines and legacy functions: the parts that both share.

namespace torchalgo::cudnn {

/// One run of an engine or a legacy function.
struct EngineCall {
  const Problem& problem;
  const Primitive& primitive;
  const KernelArgs& args;
};

/// "cudnn9.conv.e22 nhwc->nhwc, problem fwd_f16_..., cuDNN 9.19.0".
[[nodiscard]] std::string describe(const Api& api, const EngineCall& call);

/// Returns the executable of `call` from this thread's cache, or else the result of `build`.
/// `build` is not called while the stream captures a CUDA graph: it allocates and loads kernels,
/// which breaks a capture.
/// @throws Error  while capturing, unless it has run before; if it wants more workspace than the
/// primitive says.
[[nodiscard]] std::shared_ptr<Executable> find_or_build(
    const std::shared_ptr<const Api>& api, const Runtime& runtime, Handle handle,
    const EngineCall& call, const std::function<std::shared_ptr<Executable>()>& build);

/// The data of tensors. Views that are not aligned to kAlignment are copied to aligned memory,
/// because cuDNN's plans are built for aligned tensors and most tensor-core engines take no others.
class AlignedTensors {
 public:
  [[nodiscard]] void* input(const at::Tensor& tensor);
  /// To be filled by the caller before finish().
  [[nodiscard]] void* output(const at::Tensor& tensor);
  /// Copies outputs back to where they belong.
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
    throw Error(fmt::format("{} ({})", error.what(), describe(api, call)));
  }
}

}  // namespace torchalgo::cudnn
