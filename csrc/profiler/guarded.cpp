// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/guarded.h"

#include <ATen/ops/full.h>

#include "base/error.h"

namespace torchalgo {
namespace {

constexpr int kGuardByte = 0xff;

std::int64_t bytes_of(const at::Tensor& tensor) {
  TORCHALGO_ASSERT(tensor.is_non_overlapping_and_dense());
  return static_cast<std::int64_t>(tensor.numel()) * static_cast<std::int64_t>(tensor.itemsize());
}

}  // namespace

GuardedMemory::GuardedMemory(std::int64_t bytes, at::Device device)
    : bytes_(bytes),
      buffer_(at::full({bytes + 2 * kGuardBytes}, kGuardByte,
                       at::TensorOptions().dtype(at::kByte).device(device))) {}

at::Tensor GuardedMemory::bytes() const { return buffer_.narrow(0, kGuardBytes, bytes_); }

at::Tensor GuardedMemory::as(const at::Tensor& like) const {
  return bytes().view(like.scalar_type()).as_strided(like.sizes(), like.strides());
}

bool GuardedMemory::is_intact() const {
  const auto is_untouched = [this](std::int64_t start) {
    return buffer_.narrow(0, start, kGuardBytes).eq(kGuardByte).all().item<bool>();
  };
  return is_untouched(0) && is_untouched(kGuardBytes + bytes_);
}

GuardedCopy::GuardedCopy(const at::Tensor& tensor)
    : memory_(bytes_of(tensor), tensor.device()),
      copy_(memory_.as(tensor).copy_(tensor)),
      before_(memory_.bytes().clone()) {}

bool GuardedCopy::is_unchanged() const {
  return memory_.is_intact() && memory_.bytes().equal(before_);
}

}  // namespace torchalgo
