// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/peak.h"

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// The number of independent chains. Two units with a latency of four or five cycles need about as
// many. More chains would not fit into AVX2's 16 registers, nor into those of SSE2, where a vector
// takes two.
constexpr int kChains = 12 / kParts;

}  // namespace

float run_multiply_adds(std::int64_t rounds, float seed) {
  // With |factor| < 1 and a small addend there is no overflow. There are no subnormals either,
  // which would be slow.
  const Vec factor(seed), addend(0.5F);
  Vec chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = Vec(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chains[i] = fmadd(chains[i], factor, addend);
  }
  Vec sum(0.0F);
  for (int i = 0; i < kChains; ++i) sum = sum + chains[i];
  return sum_of(sum);
}

double multiply_add_flops() { return 2.0 * kChains * kLanes; }

float run_reads(const float* src, std::int64_t count) {
  constexpr int kSums = 8;
  Vec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vec(0.0F);
  for (std::int64_t at = 0; at < count; at += kSums * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] + Vec::loadu(src + at + i * kLanes);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = sums[0] + sums[i];
  return sum_of(sums[0]);
}

void run_copy(const float* src, float* dst, std::int64_t count) {
  for (std::int64_t at = 0; at < count; at += kLanes) Vec::loadu(src + at).store(dst + at);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA
