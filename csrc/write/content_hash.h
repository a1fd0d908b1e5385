// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace torchalgo {

/// Returns a 64-bit hash of `size` bytes, the same on each little-endian machine. It tells whether
/// a file was changed or cut, at the speed of memory. It does not protect against crafted
/// collisions.
[[nodiscard]] inline std::uint64_t content_hash(const void* data, std::size_t size) {
  // Four words at a time, which do not wait for each other, each by the step of FNV-1a.
  constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  constexpr std::size_t kWords = 4, kStep = kWords * sizeof(std::uint64_t);
  std::array<std::uint64_t, kWords> lanes = {0xcbf29ce484222325ULL, 1, 2, size};
  const auto add = [&](const char* at) {
    std::array<std::uint64_t, kWords> words;
    std::memcpy(words.data(), at, kStep);
    for (std::size_t i = 0; i < kWords; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kPrime;
      lanes[i] ^= lanes[i] >> 32;  // so that high bits change low ones too
    }
  };
  const auto* const bytes = static_cast<const char*>(data);
  std::size_t at = 0;
  for (; at + kStep <= size; at += kStep) add(bytes + at);
  std::array<char, kStep> rest = {};
  if (at < size) std::memcpy(rest.data(), bytes + at, size - at);
  add(rest.data());
  std::uint64_t hash = 0;
  for (const std::uint64_t lane : lanes) hash = (hash ^ lane) * kPrime;
  return hash ^ (hash >> 32);
}

}  // namespace torchalgo
