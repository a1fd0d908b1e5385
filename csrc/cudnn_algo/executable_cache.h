// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cudnn_algo/api.h"
#include "cudnn_algo/lru_cache.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// The objects of cuDNN that run one primitive on one problem, built by one thread for its handle.
struct Executable {
  explicit Executable(std::shared_ptr<const Api> with) : api(std::move(with)) {}
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  virtual ~Executable() = default;

  const std::shared_ptr<const Api> api;  // outlives the objects
  std::int64_t workspace_bytes = 0;
  bool has_run = false;    // if true, its kernels are loaded, and a CUDA graph may capture it
  bool is_pinned = false;  // if true, a CUDA graph has captured it
};

/// All data that an Executable depends on. It refers to the caller's problem and primitive.
struct ExecutableKey {
  const Api* api;
  Handle handle;  // of one thread and one GPU
  const ConvProblem* problem;
  const Primitive* primitive;  // without its workspace
};

/// An ExecutableKey that owns its problem and its primitive.
struct OwnedExecutableKey {
  explicit OwnedExecutableKey(const ExecutableKey& key)
      : api(key.api), handle(key.handle), problem(*key.problem), primitive(*key.primitive) {}
  operator ExecutableKey() const { return {api, handle, &problem, &primitive}; }  // NOLINT

  const Api* api;
  Handle handle;
  ConvProblem problem;
  Primitive primitive;
};

struct ExecutableHash {
  [[nodiscard]] std::size_t operator()(const ExecutableKey& key) const;
};
struct ExecutableEqual {
  [[nodiscard]] bool operator()(const ExecutableKey& a, const ExecutableKey& b) const;
};

/// The executables of one thread. cuDNN does not promise that threads can share plans, so each
/// thread has its own.
using ExecutableCache =
    LruCache<OwnedExecutableKey, std::shared_ptr<Executable>, ExecutableHash, ExecutableEqual>;

inline constexpr std::size_t kMaxExecutables = 1024;  // per thread; a plan takes about 0.2 MB

/// Returns the cache of the calling thread.
[[nodiscard]] ExecutableCache& executable_cache();

}  // namespace torchalgo::cudnn
