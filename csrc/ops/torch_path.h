// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchalgo {

/// While one lives, convolutions that ATen calls on this thread take PyTorch's own path, whether
/// set_enabled() is on or not.
class TorchPath {
 public:
  TorchPath() { ++depth(); }
  ~TorchPath() { --depth(); }
  TorchPath(const TorchPath&) = delete;
  TorchPath& operator=(const TorchPath&) = delete;

  [[nodiscard]] static bool is_taken() { return depth() > 0; }

 private:
  [[nodiscard]] static int& depth();
};

}  // namespace torchalgo
