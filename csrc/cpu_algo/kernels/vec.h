// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Vectors of floats and the operations on them that kernels use, in the vectors of GCC and Clang.
// Only sources of this folder may include it, as epilogue.h: everything is in an anonymous
// namespace.
//
// An operation rounds as the same operation on single floats does. fmadd and fnmadd round once
// where the instruction set has a fused multiply-add (AVX2, AVX-512), else twice.

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <xmmintrin.h>  // a smaller part of immintrin.h
#endif

namespace torchalgo::kernels {
namespace {

// Lanes of a register: of SSE2, and of NEON, 4.
#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
constexpr int kLanes = kNativeLanes < 8 ? 8 : kNativeLanes;  // 16 with AVX-512, else 8
constexpr int kParts = kLanes / kNativeLanes;                // registers of a Vec

/// A number of bf16, the upper half of an f32. Kernels compute in f32: a Vec is loaded from and
/// stored to either type.
using Bf16 = std::uint16_t;
/// A number of f16, the half precision of IEEE 754. It is only loaded.
enum class F16 : std::uint16_t {};
template <class Element>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<Bf16> = true;

/// Returns the elements at a pointer of a struct, which has one type of pointer for every type of
/// elements.
template <class Element>
[[gnu::always_inline]] inline const Element* of(const float* elements) {
  return reinterpret_cast<const Element*>(elements);
}
template <class Element>
[[gnu::always_inline]] inline Element* of(float* elements) {
  return reinterpret_cast<Element*>(elements);
}

[[gnu::always_inline]] inline float to_float(float x) { return x; }
[[gnu::always_inline]] inline float to_float(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}
/// Returns x, rounded to nearest even if Element is bf16. A NaN stays a NaN.
template <class Element>
[[gnu::always_inline]] inline Element from_float(float x) {
  if constexpr (is_bf16<Element>) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    return static_cast<Bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16 | (x != x ? 0x7fc0U : 0U));
  } else {
    return x;
  }
}

template <int lanes>
struct Lanes {
  typedef float Floats __attribute__((vector_size(lanes * sizeof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(lanes * sizeof(float))));
  typedef std::uint32_t Bits __attribute__((vector_size(lanes * sizeof(float))));
  typedef Bf16 Halves __attribute__((vector_size(lanes * sizeof(Bf16))));
};
using Native = Lanes<kNativeLanes>::Floats;
using NativeInts = Lanes<kNativeLanes>::Ints;
using NativeBits = Lanes<kNativeLanes>::Bits;
typedef float UnalignedNative
    __attribute__((vector_size(sizeof(Native)), aligned(alignof(float)), may_alias));

// The pointers' type is written out: `auto` and template arguments lose its alignment.
[[gnu::always_inline]] inline Native load_native(const float* at) {
  return *reinterpret_cast<const UnalignedNative*>(at);
}
[[gnu::always_inline]] inline void store_native(const Native& x, float* at) {
  *reinterpret_cast<UnalignedNative*>(at) = x;
}

#if defined(__AVX512F__)
[[gnu::always_inline]] inline Native widen(__m256i halves) {
  // Each 16-bit half of an index selects a half of the source. One permutation is shorter than a
  // zero extension and a shift.
  const __m512i index = _mm512_slli_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, index, _mm512_castsi256_si512(halves)));
}
[[gnu::always_inline]] inline __m256i narrow(const Native& x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  // A NaN becomes the default NaN, whose lower half is 0: rounding does not change it.
  const __m512i bits = _mm512_castps_si512(_mm512_fixupimm_ps(x, x, _mm512_set1_epi32(0x33), 0));
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_add_epi32(half, is_odd, half, _mm512_set1_epi32(1));
  const __m512i index = _mm512_setr_epi32(0x30001, 0x70005, 0xb0009, 0xf000d, 0x130011, 0x170015,
                                          0x1b0019, 0x1f001d, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(index, rounded));
#endif
}
#endif

[[gnu::always_inline]] inline Native load_native(const Bf16* at) {
#if defined(__AVX512F__)
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__AVX2__)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#else
  Lanes<kNativeLanes>::Halves halves;
  std::memcpy(&halves, at, sizeof halves);
  return reinterpret_cast<Native>(__builtin_convertvector(halves, NativeBits) << 16);
#endif
}
[[gnu::always_inline]] inline Native load_native(const F16* at) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
#else
  Lanes<kNativeLanes>::Halves halves;
  std::memcpy(&halves, at, sizeof halves);
  const NativeBits bits = __builtin_convertvector(halves, NativeBits);
  // The exponent's bias is 15 instead of 127.
  const Native magnitude = reinterpret_cast<Native>((bits & 0x7fff) << 13) * 0x1p112F;
  const auto is_not_finite = reinterpret_cast<NativeBits>(magnitude >= 65536.0F);
  return reinterpret_cast<Native>(reinterpret_cast<NativeBits>(magnitude) |
                                  (is_not_finite & 0x7f800000) | (bits & 0x8000) << 16);
#endif
}
/// Rounds to nearest even. A NaN stays a NaN.
[[gnu::always_inline]] inline void store_native(const Native& x, Bf16* at) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), narrow(x));
#else
  const auto bits = reinterpret_cast<NativeBits>(x);
  const auto is_nan = reinterpret_cast<NativeBits>(x != x);
  const NativeBits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 | (is_nan & 0x7fc0);
#if defined(__AVX2__)
  const auto both = reinterpret_cast<__m256i>(rounded);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(at),
      _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
#else
  const auto halves = __builtin_convertvector(rounded, Lanes<kNativeLanes>::Halves);
  std::memcpy(at, &halves, sizeof halves);
#endif
#endif
}

/// Returns a vector whose lane i is lane index[i] of a, or lane index[i] - lanes of b.
template <int lanes, int... index>
[[gnu::always_inline]] inline typename Lanes<lanes>::Floats shuffle(
    const typename Lanes<lanes>::Floats& a, const typename Lanes<lanes>::Floats& b,
    std::integer_sequence<int, index...>) {
  return __builtin_shufflevector(a, b, index...);
}

#if defined(__AVX512F__)
[[gnu::always_inline]] inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << count) - 1);
}
[[gnu::always_inline]] inline Native load_first(const float* at, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, at);
}
[[gnu::always_inline]] inline Native load_first(const Bf16* at, __mmask16 lanes) {
  return widen(_mm256_maskz_loadu_epi16(lanes, at));
}
[[gnu::always_inline]] inline void store_first(const Native& x, float* at, __mmask16 lanes) {
  _mm512_mask_storeu_ps(at, lanes, x);
}
[[gnu::always_inline]] inline void store_first(const Native& x, Bf16* at, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(at, lanes, narrow(x));
}
#endif

/// A vector of kLanes floats in `parts` registers. The default constructor leaves them
/// uninitialized.
template <int parts>
struct VecOf {
  Native part[parts];

  VecOf() = default;
  [[gnu::always_inline]] explicit VecOf(float x) {
    for (Native& to : part) to = x - Native{};  // x + 0 would change -0
  }
  [[gnu::always_inline]] VecOf(const Native& x) requires(parts == 1) : part{x} {}
  [[gnu::always_inline]] VecOf(const Native& low, const Native& high) requires(parts == 2)
      : part{low, high} {}
  [[gnu::always_inline]] operator Native() const requires(parts == 1) { return part[0]; }

  template <class Element>  // float, Bf16 or F16
  [[gnu::always_inline]] static VecOf loadu(const Element* at) {
    if constexpr (parts == 1) {
      return VecOf(load_native(at));
    } else {
      return VecOf(load_native(at), load_native(at + kNativeLanes));
    }
  }
  /// Reads `count` <= kLanes elements only; the other lanes are zero.
  template <class Element>
  [[gnu::always_inline]] static VecOf loadu(const Element* at, std::int64_t count) {
    if (count == kLanes) return loadu(at);
#if defined(__AVX512F__)
    return VecOf(load_first(at, first_lanes(count)));
#else
    alignas(Native) Element lanes[kLanes] = {};
    std::memcpy(lanes, at, static_cast<std::size_t>(count) * sizeof(Element));
    return loadu(lanes);
#endif
  }
  template <class Element>
  [[gnu::always_inline]] void store(Element* at) const {
    store_native(part[0], at);
    if constexpr (parts == 2) store_native(part[1], at + kNativeLanes);
  }
  /// Writes the first `count` <= kLanes lanes only.
  template <class Element>
  [[gnu::always_inline]] void store(Element* at, std::int64_t count) const {
    if (count == kLanes) return store(at);
#if defined(__AVX512F__)
    store_first(part[0], at, first_lanes(count));
#else
    alignas(Native) Element lanes[kLanes];
    store(lanes);
    std::memcpy(at, lanes, static_cast<std::size_t>(count) * sizeof(Element));
#endif
  }
};
using Vec = VecOf<kParts>;

/// Stores a and b. AVX512_BF16 rounds two vectors in the time of one.
template <class Element>
[[gnu::always_inline]] inline void store_two(const Vec& a, Element* at_a, const Vec& b,
                                             Element* at_b) {
#if defined(__AVX512BF16__)
  if constexpr (is_bf16<Element>) {
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at_a), _mm512_castsi512_si256(both));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at_b), _mm512_extracti64x4_epi64(both, 1));
    return;
  }
#endif
  a.store(at_a);
  b.store(at_b);
}

/// Returns function(x...) of each register. Functions take vectors by reference: of vectors that
/// are passed by value, GCC 12 keeps arrays in memory.
template <class Function, class... Vecs>
[[gnu::always_inline]] inline Vec map(const Function& function, const Vecs&... x) {
  if constexpr (kParts == 1) {
    return Vec(function(x.part[0]...));
  } else {
    return Vec(function(x.part[0]...), function(x.part[1]...));
  }
}

[[gnu::always_inline]] inline Vec operator+(const Vec& a, const Vec& b) {
  return map([](const Native& x, const Native& y) { return x + y; }, a, b);
}
[[gnu::always_inline]] inline Vec operator-(const Vec& a, const Vec& b) {
  return map([](const Native& x, const Native& y) { return x - y; }, a, b);
}
[[gnu::always_inline]] inline Vec operator*(const Vec& a, const Vec& b) {
  return map([](const Native& x, const Native& y) { return x * y; }, a, b);
}
[[gnu::always_inline]] inline Vec operator/(const Vec& a, const Vec& b) {
  return map([](const Native& x, const Native& y) { return x / y; }, a, b);
}

/// Returns a * b + c. The intrinsics fix which product is fused: where c is a product too, the
/// compiler might fuse that one.
[[gnu::always_inline]] inline Vec fmadd(const Vec& a, const Vec& b, const Vec& c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
/// Returns c - a * b.
[[gnu::always_inline]] inline Vec fnmadd(const Vec& a, const Vec& b, const Vec& c) {
#if defined(__AVX512F__)
  return _mm512_fnmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fnmadd_ps(a, b, c);
#else
  return c - a * b;
#endif
}

/// Returns a where a > b, else b. The intrinsics are one instruction; if an operand is a constant,
/// GCC makes two or more of the conditional expression.
[[gnu::always_inline]] inline Native larger_of(const Native& a, const Native& b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
/// Returns a where a < b, else b.
[[gnu::always_inline]] inline Native smaller_of(const Native& a, const Native& b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

/// Returns `low` where x < low, else x, which may be a NaN.
[[gnu::always_inline]] inline Vec clamp_min(const Vec& x, const Vec& low) {
  return map(larger_of, low, x);
}
/// Returns `high` where x > high, else x, which may be a NaN.
[[gnu::always_inline]] inline Vec clamp_max(const Vec& x, const Vec& high) {
  return map(smaller_of, high, x);
}

/// Returns the larger of a and b (b if they are equal), or a NaN where one of them is a NaN.
[[gnu::always_inline]] inline Vec maximum(const Vec& a, const Vec& b) {
  return map(
      [](const Native& x, const Native& y) {
        const auto larger = reinterpret_cast<NativeInts>(larger_of(x, y));  // of y if x is a NaN
        return reinterpret_cast<Native>(larger | (x != x));
      },
      a, b);
}

/// Returns a where x < y, else b. Returns b where x or y is a NaN.
[[gnu::always_inline]] inline Vec where_less(const Vec& x, const Vec& y, const Vec& a,
                                             const Vec& b) {
  return map([](const Native& p, const Native& q, const Native& s,
                const Native& t) -> Native { return p < q ? s : t; },
             x, y, a, b);
}
/// Returns a where x <= y, else b. Returns b where x or y is a NaN.
[[gnu::always_inline]] inline Vec where_at_most(const Vec& x, const Vec& y, const Vec& a,
                                                const Vec& b) {
  return map([](const Native& p, const Native& q, const Native& s,
                const Native& t) -> Native { return p <= q ? s : t; },
             x, y, a, b);
}

/// Shifts the bits of each lane to the left.
[[gnu::always_inline]] inline Vec shift_left(const Vec& x, int bits) {
  return map(
      [bits](const Native& a) {
        return reinterpret_cast<Native>(reinterpret_cast<NativeInts>(a) << bits);
      },
      x);
}

/// Returns a[first], b[first], a[first + 1], b[first + 1], ...
template <int first, int... lane>
[[gnu::always_inline]] inline Native interleave_from(const Native& a, const Native& b,
                                                     std::integer_sequence<int, lane...>) {
  return shuffle<kNativeLanes>(
      a, b,
      std::integer_sequence<int, (first + lane / 2 + (lane % 2 == 0 ? 0 : kNativeLanes))...>());
}
/// Returns the 2 * kLanes floats a[0], b[0], a[1], b[1], ...
template <int parts>
[[gnu::always_inline]] inline std::pair<VecOf<parts>, VecOf<parts>> interleave2(
    const VecOf<parts>& a, const VecOf<parts>& b) {
  constexpr auto kLane = std::make_integer_sequence<int, kNativeLanes>();
  constexpr int kHalfway = kNativeLanes / 2;
  const Native low = interleave_from<0>(a.part[0], b.part[0], kLane);
  const Native high = interleave_from<kHalfway>(a.part[0], b.part[0], kLane);
  if constexpr (parts == 1) {
    return {low, high};
  } else {
    return {{low, high},
            {interleave_from<0>(a.part[1], b.part[1], kLane),
             interleave_from<kHalfway>(a.part[1], b.part[1], kLane)}};
  }
}

template <int lanes, int... index>
[[gnu::always_inline]] inline float sum_of_lanes(const typename Lanes<lanes>::Floats& x,
                                                 std::integer_sequence<int, index...>) {
  if constexpr (lanes == 4) {
    return (x[0] + x[2]) + (x[1] + x[3]);
  } else {
    constexpr int kHalf = lanes / 2;
    return sum_of_lanes<kHalf>(
        __builtin_shufflevector(x, x, index...) + __builtin_shufflevector(x, x, (kHalf + index)...),
        std::make_integer_sequence<int, kHalf / 2>());
  }
}
/// Returns the sum of all lanes. It adds one half of the lanes to the other until one is left.
template <int parts>
[[gnu::always_inline]] inline float sum_of(const VecOf<parts>& x) {
  constexpr auto kIndex = std::make_integer_sequence<int, kNativeLanes / 2>();
  if constexpr (parts == 1) {
    return sum_of_lanes<kNativeLanes>(x.part[0], kIndex);
  } else {
    return sum_of_lanes<kNativeLanes>(x.part[0] + x.part[1], kIndex);
  }
}

}  // namespace
}  // namespace torchalgo::kernels
