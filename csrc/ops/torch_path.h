// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchalgo {

/// While an object of this class exists, convolutions that ATen calls on this thread take PyTorch's
/// own path, even after set_enabled(true).
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
