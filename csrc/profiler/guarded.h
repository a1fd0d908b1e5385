// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace torchalgo {

/// Memory between two guards, which reveal reads and writes outside of it. The guards are NaN in
/// every floating point format and are checked afterwards.
class GuardedMemory {
 public:
  GuardedMemory(std::int64_t bytes, at::Device device);

  /// Returns the requested bytes, uninitialized, at a multiple of 64 (256 on a GPU).
  [[nodiscard]] at::Tensor bytes() const;
  /// Returns the same memory as a tensor of the sizes, strides and type of `like`, which is dense.
  [[nodiscard]] at::Tensor as(const at::Tensor& like) const;
  /// Returns true if the guards are unchanged.
  [[nodiscard]] bool is_intact() const;

 private:
  static constexpr std::int64_t kGuardBytes = 4096;
  std::int64_t bytes_;
  at::Tensor buffer_;
};

/// A copy of `tensor`, strides included, in memory of its own.
class GuardedCopy {
 public:
  explicit GuardedCopy(const at::Tensor& tensor);

  [[nodiscard]] const at::Tensor& tensor() const { return copy_; }
  /// Returns true if neither the copy nor its guards were written to.
  [[nodiscard]] bool is_unchanged() const;

 private:
  GuardedMemory memory_;
  at::Tensor copy_;
  at::Tensor before_;  // its bytes: NaN is not equal to itself
};

}  // namespace torchalgo
