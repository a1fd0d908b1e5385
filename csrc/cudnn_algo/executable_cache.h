// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cudnn_algo/lru_cache.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// The objects of cuDNN that run one primitive on one problem, built by one thread for its handle.
/// The handle outlives them, and has the functions that destroy them.
struct Executable {
  Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  virtual ~Executable() = default;

  std::int64_t workspace_bytes = 0;
  bool has_run = false;    // if true, its kernels are loaded, and a CUDA graph may capture it
  bool is_recent = false;  // if true, it has run since a plan was built for this handle
  bool is_pinned = false;  // if true, a CUDA graph has captured it
};

/// All data that an Executable of a handle depends on. It refers to the caller's problem and
/// primitive.
struct ExecutableKey {
  const ConvProblem* problem;
  const Primitive* primitive;  // without its workspace
};

/// An ExecutableKey that owns its problem and its primitive.
struct OwnedExecutableKey {
  explicit OwnedExecutableKey(const ExecutableKey& key)
      : problem(*key.problem), primitive(*key.primitive) {}
  operator ExecutableKey() const { return {&problem, &primitive}; }  // NOLINT

  ConvProblem problem;
  Primitive primitive;
};

struct ExecutableHash {
  [[nodiscard]] std::size_t operator()(const ExecutableKey& key) const;
};
struct ExecutableEqual {
  [[nodiscard]] bool operator()(const ExecutableKey& a, const ExecutableKey& b) const;
};

/// The executables of one handle (handles.h), which alone owns them. cuDNN does not promise that
/// threads can share plans, and a handle belongs to one thread at a time.
using ExecutableCache =
    LruCache<OwnedExecutableKey, std::shared_ptr<Executable>, ExecutableHash, ExecutableEqual>;

inline constexpr std::size_t kMaxExecutables = 1024;  // per handle; a plan takes about 0.2 MB

}  // namespace torchalgo::cudnn
