// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cudnn_algo/api.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/legacy.h"
#include "cudnn_algo/runtime.h"
#include "ir/algorithm.h"

namespace torchalgo::cudnn {

/// Returns the reason why the legacy functions cannot express `conv`, or that this cuDNN has no
/// legacy functions. Returns nullopt if they can express it.
[[nodiscard]] std::optional<std::string> legacy_absence(const Api& api, const ConvProblem& conv);

/// A legacy descriptor that is destroyed with its owner.
class OwnedLegacy {
 public:
  using Create = std::function<Status(Descriptor*)>;
  using Destroy = std::function<Status(Descriptor)>;
  /// @throws StatusError
  OwnedLegacy(const Api& api, const Create& create, const Destroy& destroy);
  OwnedLegacy(const OwnedLegacy&) = delete;
  OwnedLegacy& operator=(const OwnedLegacy&) = delete;
  ~OwnedLegacy() {
    if (raw_ != nullptr) static_cast<void>((*destroy_)(raw_));
  }
  [[nodiscard]] Descriptor get() const { return raw_; }

 private:
  const Destroy* destroy_;  // of the api, which outlives this
  Descriptor raw_ = nullptr;
};

/// The descriptors that the legacy functions take for a convolution. All numbers of one math type
/// share them.
class LegacyDescriptors {
 public:
  /// @throws StatusError
  LegacyDescriptors(const Api& api, const ConvProblem& conv, const Layouts& layouts, MathType math);

  /// Calls cudnnGetConvolution...WorkspaceSize. `handle` must not be null, because cuDNN crashes
  /// then.
  [[nodiscard]] Status ask_workspace(Handle handle, int number, std::size_t* bytes) const;

  /// Calls cudnnConvolutionForward, ...BackwardData or ...BackwardFilter. The data are (x, w, y),
  /// (w, dy, dx) or (x, dy, dw).
  [[nodiscard]] Status run(Handle handle, int number, const void* a, const void* b, void* c,
                           void* workspace, std::size_t bytes) const;

 private:
  const Api& api_;
  const Direction direction_;
  const bool is_double_;
  OwnedLegacy src_, weights_, dst_, convolution_;
};

/// The descriptors that a prepared convolution keeps between its runs with one handle.
using LegacyStates = PerHandle<std::weak_ptr<Executable>>;

/// Runs `call.primitive`, which is `spec`, in the same way as run_engine().
at::Tensor run_legacy(const std::shared_ptr<const Api>& api, const Runtime& runtime,
                      const LegacySpec& spec, const EngineCall& call, LegacyStates& states);

}  // namespace torchalgo::cudnn
