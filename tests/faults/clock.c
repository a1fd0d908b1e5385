// SPDX-License-Identifier: BSD-3-Clause
// Preloaded before libc: the calendar of this process is another one. Off until clock_skew is
// called. The monotonic clock stays: the kernel's timeouts go by it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

static int64_t offset_s;
static int64_t jump_s;
static uint64_t state;

// jump: at each reading, up to so many seconds to either side.
void clock_skew(int64_t offset, int64_t jump, uint64_t seed) {
  state = seed * 2654435761u + 88172645463325252u;
  jump_s = jump;
  offset_s = offset;
}

static int64_t skew(void) {
  if (!jump_s) return offset_s;
  state ^= state << 13;  // xorshift64 (Marsaglia 2003)
  state ^= state >> 7;
  state ^= state << 17;
  return offset_s + (int64_t)(state % (uint64_t)(2 * jump_s + 1)) - jump_s;
}

// Looked up once: dlsym takes a lock, and a fork of a program with threads may copy it taken.
#define DEFINE_REAL(name)                                      \
  static __typeof__(&name) real_##name;                        \
  __attribute__((constructor)) static void find_##name(void) { \
    real_##name = (__typeof__(&name))dlsym(RTLD_NEXT, #name);  \
  }
DEFINE_REAL(clock_gettime)
DEFINE_REAL(gettimeofday)
DEFINE_REAL(time)

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = real_clock_gettime(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  const int result = real_gettimeofday(now, zone);
  if (!result && now) now->tv_sec += skew();
  return result;
}

time_t time(time_t* out) {
  const time_t now = real_time(0) + skew();
  if (out) *out = now;
  return now;
}
