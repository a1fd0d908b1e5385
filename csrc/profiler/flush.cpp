// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/flush.h"

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
  flush_lines(bytes_of + bytes - 1, 1);  // where the data do not begin with a line
}
#else
bool can_flush_caches() { return false; }
void flush_caches(const void*, std::size_t) {}
#endif

}  // namespace torchalgo
