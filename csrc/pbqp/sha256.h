// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace torchalgo::pbqp {

/// The SHA-256 digest of bytes that are added in pieces, so that a long text need not be in memory
/// as a whole.
/// Source: NIST FIPS 180-4, section 6.2.
class Sha256 {
 public:
  static constexpr std::size_t kBlock = 64;

  void add(std::string_view bytes);

  /// Returns the digest in 64 lower-case hexadecimal digits. Call it once, at the end.
  [[nodiscard]] std::string digits();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlock> rest_{};  // bytes that do not fill a block yet
  std::size_t rest_size_ = 0;
  std::uint64_t total_ = 0;  // bytes
};

[[nodiscard]] std::string sha256(std::string_view bytes);

}  // namespace torchalgo::pbqp
