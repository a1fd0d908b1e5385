// SPDX-License-Identifier: BSD-3-Clause
// Preloaded before libc: calls on files below one folder fail as on a bad disk, a full or read-only
// file system, or one without locks. Off until faults_set is called; a child inherits the setting.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kNoSpace = 1, kInputOutput = 2, kNoLocks = 4, kReadOnly = 8 };

static char folder[PATH_MAX];
static int kinds;
static uint32_t per_million;
static uint64_t state;
static long injected;

// folder_name: absolute, without links; rate: of each call's chance to fail.
void faults_set(const char* folder_name, int which, double rate, uint64_t seed) {
  kinds = 0;
  snprintf(folder, sizeof folder, "%s", folder_name);
  per_million = (uint32_t)(rate * 1e6);
  state = seed * 2654435761u + 88172645463325252u;
  kinds = which;
}

long faults_injected(void) { return injected; }

static int strikes(int kind) {
  if (!(kinds & kind)) return 0;
  state ^= state << 13;  // xorshift64 (Marsaglia 2003)
  state ^= state >> 7;
  state ^= state << 17;
  if ((uint32_t)((state >> 20) % 1000000u) >= per_million) return 0;
  ++injected;
  return 1;
}

static int is_below(const char* path) {
  const size_t length = strlen(folder);
  return kinds && length && strncmp(path, folder, length) == 0 && path[length] == '/';
}

static int is_ours(int fd) {
  char link[40], path[PATH_MAX];
  if (!kinds) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_below(path);
}

static int grows(int fd, off_t end) {
  struct stat found;
  return fstat(fd, &found) == 0 && end > found.st_size;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fail(int error) {
  errno = error;
  return -1;
}

// A failing write may have written half: this is what tears pages.
#define DEFINE_PWRITE(name, offset_t)                                               \
  ssize_t name(int fd, const void* data, size_t count, offset_t at) {               \
    if (is_ours(fd)) {                                                              \
      if (grows(fd, (off_t)(at + count)) && strikes(kNoSpace)) return fail(ENOSPC); \
      if (strikes(kInputOutput)) {                                                  \
        REAL(name)(fd, data, count / 2, at);                                        \
        return fail(EIO);                                                           \
      }                                                                             \
    }                                                                               \
    return REAL(name)(fd, data, count, at);                                         \
  }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void* data, size_t count) {
  if (is_ours(fd)) {
    if (strikes(kNoSpace)) return fail(ENOSPC);
    if (strikes(kInputOutput)) return fail(EIO);
  }
  return REAL(write)(fd, data, count);
}

#define DEFINE_PREAD(name, offset_t)                            \
  ssize_t name(int fd, void* data, size_t count, offset_t at) { \
    if (is_ours(fd) && strikes(kInputOutput)) return fail(EIO); \
    return REAL(name)(fd, data, count, at);                     \
  }
DEFINE_PREAD(pread, off_t)
DEFINE_PREAD(pread64, off64_t)

#define DEFINE_TRUNCATE(name, offset_t)                                     \
  int name(int fd, offset_t size) {                                         \
    if (is_ours(fd)) {                                                      \
      if (grows(fd, (off_t)size) && strikes(kNoSpace)) return fail(ENOSPC); \
      if (strikes(kInputOutput)) return fail(EIO);                          \
    }                                                                       \
    return REAL(name)(fd, size);                                            \
  }
DEFINE_TRUNCATE(ftruncate, off_t)
DEFINE_TRUNCATE(ftruncate64, off64_t)

int fsync(int fd) {
  if (is_ours(fd) && strikes(kInputOutput)) return fail(EIO);
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  if (is_ours(fd) && strikes(kInputOutput)) return fail(EIO);
  return REAL(fdatasync)(fd);
}

int flock(int fd, int operation) {
  if (is_ours(fd) && strikes(kNoLocks)) return fail(ENOLCK);
  return REAL(flock)(fd, operation);
}

// Giving a lock back never fails where taking it did not.
static int takes_lock(int command, const void* argument) {
  if (command != F_SETLK && command != F_SETLKW) return 0;
  return ((const struct flock*)argument)->l_type != F_UNLCK;
}

#define DEFINE_FCNTL(name)                                              \
  int name(int fd, int command, ...) {                                  \
    va_list rest;                                                       \
    va_start(rest, command);                                            \
    void* argument = va_arg(rest, void*);                               \
    va_end(rest);                                                       \
    const int locks = takes_lock(command, argument);                    \
    if (locks && is_ours(fd) && strikes(kNoLocks)) return fail(ENOLCK); \
    return REAL(name)(fd, command, argument);                           \
  }
DEFINE_FCNTL(fcntl)
DEFINE_FCNTL(fcntl64)

#define DEFINE_OPEN(name)                                                                         \
  int name(const char* path, int flags, ...) {                                                    \
    va_list rest;                                                                                 \
    va_start(rest, flags);                                                                        \
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                               \
    va_end(rest);                                                                                 \
    const int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);                      \
    if (writes && is_below(path)) {                                                               \
      if (strikes(kReadOnly)) return fail(EROFS);                                                 \
      if ((flags & O_CREAT) && access(path, F_OK) != 0 && strikes(kNoSpace)) return fail(ENOSPC); \
    }                                                                                             \
    return REAL(name)(path, flags, mode);                                                         \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
