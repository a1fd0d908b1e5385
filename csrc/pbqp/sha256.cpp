// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define TORCHALGO_HAS_X86
#endif

namespace torchalgo::pbqp {
namespace {

using Word = std::uint32_t;
using State = Sha256::State;
constexpr std::size_t kBlock = Sha256::kBlock;

alignas(16) constexpr std::array<Word, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::array<Word, 64> schedule(const unsigned char* block) {
  std::array<Word, 64> words{};
  for (std::size_t t = 0; t < 16; ++t)
    for (std::size_t i = 0; i < 4; ++i) words[t] = words[t] << 8 | block[4 * t + i];
  for (std::size_t t = 16; t < 64; ++t) {
    const Word a = words[t - 15], b = words[t - 2];
    const Word s0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    const Word s1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    words[t] = s1 + words[t - 7] + s0 + words[t - 16];
  }
  return words;
}

void digest_block(State& state, const unsigned char* block) {
  const std::array<Word, 64> words = schedule(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const Word s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const Word first = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + words[t];
    const Word s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const Word second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

void digest_portable(State& state, const unsigned char* data, std::size_t blocks) {
  for (std::size_t i = 0; i < blocks; ++i) digest_block(state, data + i * kBlock);
}

#ifdef TORCHALGO_HAS_X86

// The processor's own rounds, about ten times as fast: a large problem's text has 50 MB. They keep
// the state as (a, b, e, f) and (c, d, g, h).
__attribute__((target("sha,ssse3,sse4.1"))) void digest_x86(State& state, const unsigned char* data,
                                                            std::size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const auto load = [](const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); };
  const __m128i low = _mm_shuffle_epi32(load(state.data()), 0xb1);       // c d a b
  const __m128i high = _mm_shuffle_epi32(load(state.data() + 4), 0x1b);  // e f g h
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; blocks > 0; --blocks, data += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];  // the last 16 of the schedule
    for (std::size_t g = 0; g < 16; ++g) {
      __m128i& now = words[g % 4];
      if (g < 4) {
        now = _mm_shuffle_epi8(load(data + 16 * g), big_endian);
      } else {
        const __m128i last = words[(g + 3) % 4];
        const __m128i shifted = _mm_alignr_epi8(last, words[(g + 2) % 4], 4);
        now = _mm_sha256msg1_epu32(now, words[(g + 1) % 4]);
        now = _mm_sha256msg2_epu32(_mm_add_epi32(now, shifted), last);
      }
      const __m128i sum = _mm_add_epi32(now, load(kRound.data() + 4 * g));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  auto* out = reinterpret_cast<__m128i*>(state.data());
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSSE3) == 0 || (c & bit_SSE4_1) == 0) {
    return false;
  }
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

#endif

}  // namespace

Sha256::Sha256(bool may_use_instructions) : digest_(digest_portable) {
#ifdef TORCHALGO_HAS_X86
  static const bool has_sha = has_sha_instructions();
  if (may_use_instructions && has_sha) digest_ = digest_x86;
#else
  static_cast<void>(may_use_instructions);
#endif
}

void Sha256::add(std::string_view bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t size = bytes.size();
  total_ += size;
  if (rest_size_ > 0) {
    const std::size_t taken = std::min(size, kBlock - rest_size_);
    std::copy_n(data, taken, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
    rest_size_ += taken;
    data += taken;
    size -= taken;
    if (rest_size_ < kBlock) return;
    digest_(state_, rest_.data(), 1);
    rest_size_ = 0;
  }
  digest_(state_, data, size / kBlock);
  rest_size_ = size % kBlock;
  std::copy_n(data + (size - rest_size_), rest_size_, rest_.begin());
}

std::string Sha256::digits() {
  const std::uint64_t bits = total_ * 8;
  std::string tail(1, static_cast<char>(0x80));
  while ((rest_size_ + tail.size()) % kBlock != kBlock - 8) tail += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(bits >> shift & 0xff);
  add(tail);
  std::string digits;
  for (Word word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 0xf];
  return digits;
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.digits();
}

}  // namespace torchalgo::pbqp
