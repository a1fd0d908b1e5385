// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/caches.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <vector>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace torchalgo {

#ifdef __x86_64__
namespace {

constexpr std::size_t kLine = 64;

__attribute__((target("clflushopt"))) void flush_lines(const char* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) _mm_clflushopt(const_cast<char*>(data + at));
  _mm_sfence();
}

}  // namespace

bool can_flush_caches() {
  static const bool can = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1U << 23)) != 0;  // CLFLUSHOPT
  }();
  return can;
}

void flush_caches(const void* data, std::size_t bytes) {
  if (bytes == 0 || !can_flush_caches()) return;
  const auto* const bytes_of = static_cast<const char*>(data);
  flush_lines(bytes_of, bytes);
  flush_lines(bytes_of + bytes - 1, 1);  // the last line, if data is not aligned to lines
}
#else
bool can_flush_caches() { return false; }
void flush_caches(const void*, std::size_t) {}
#endif

WeightsIn weights_in(std::int64_t bytes, const Device& device) {
  if (bytes == kChangedWeights) return WeightsIn::kChanged;
  if (bytes <= device.l2_bytes) return WeightsIn::kL2;
  return bytes <= kLargeCacheBytes ? WeightsIn::kPastL2 : WeightsIn::kNoCache;
}

const char* to_string(WeightsIn where) {
  switch (where) {
    case WeightsIn::kL2:
      return "l2";
    case WeightsIn::kPastL2:
      return "past l2";
    case WeightsIn::kNoCache:
      return "no cache";
    case WeightsIn::kChanged:
      return "changed";
  }
  return "";
}

void sweep_caches(std::int64_t bytes) {
  constexpr std::int64_t kFloatsOfALine = 16;
  thread_local std::vector<float> data;
  if (data.size() * sizeof(float) < static_cast<std::size_t>(bytes)) {
    data.assign(static_cast<std::size_t>(bytes) / sizeof(float), 1.0F);
  }
  const float* const from = data.data();  // of the calling thread
  const std::int64_t lines = bytes / static_cast<std::int64_t>(sizeof(float)) / kFloatsOfALine;
  const std::int64_t threads = at::get_num_threads();
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    float sum = 0;
    for (std::int64_t line = lines * begin / threads; line < lines * end / threads; ++line) {
      sum += from[line * kFloatsOfALine];
    }
    static std::atomic<float> sink;  // without this store the loop would be dead code
    sink.store(sum, std::memory_order_relaxed);
  });
}

}  // namespace torchalgo
