// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>

namespace torchalgo {

/// Returns the product of sizes: the elements of a tensor. It is 1 for no sizes.
[[nodiscard]] constexpr std::int64_t product(std::span<const std::int64_t> sizes) {
  std::int64_t result = 1;
  for (const std::int64_t size : sizes) result *= size;
  return result;
}

}  // namespace torchalgo
