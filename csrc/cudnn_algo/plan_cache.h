// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "cudnn_algo/api.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// Something built to run one primitive on one problem, by one thread with its handle.
struct Prepared {
  explicit Prepared(std::shared_ptr<const Api> with) : api(std::move(with)) {}
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  virtual ~Prepared() = default;

  const std::shared_ptr<const Api> api;  // what it holds of cuDNN is destroyed before
  std::int64_t workspace_bytes = 0;
  bool has_run = false;  // then all its kernels are loaded, and a CUDA graph may capture it
};

/// What a Prepared depends on. Only refers to problem and primitive.
struct PreparedKey {
  const Api* api;
  Handle handle;  // of one thread and one GPU
  const ConvProblem* problem;
  const Primitive* primitive;  // its workspace plays no part
};

/// The things that a thread has prepared, the longest unused of them forgotten when it is full.
/// cuDNN's plans are not promised to be safe to share between threads, so each has its own.
class PlanCache {
 public:
  static constexpr std::size_t kDefaultLimit = 1024;  // a plan takes about 0.2 MB

  explicit PlanCache(std::size_t limit = kDefaultLimit) : limit_(limit) {}

  /// Null if there is none; it then counts as used.
  [[nodiscard]] std::shared_ptr<Prepared> find(const PreparedKey& key);

  /// Adds what find() did not find. @return how many others were forgotten.
  std::size_t add(const PreparedKey& key, std::shared_ptr<Prepared> prepared);

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  void clear();
  void set_limit(std::size_t limit) { limit_ = limit; }  // obeyed at the next add()

 private:
  struct Entry {
    ConvProblem problem;
    Primitive primitive;
    PreparedKey key;  // refers to the two above
    std::size_t hash;
    std::shared_ptr<Prepared> prepared;
  };
  using Entries = std::list<Entry>;  // the latest used first

  [[nodiscard]] Entries::iterator find_entry(const PreparedKey& key, std::size_t hash);
  void forget_last();

  std::size_t limit_;
  Entries entries_;
  std::unordered_multimap<std::size_t, Entries::iterator> by_hash_;
};

/// The calling thread's.
[[nodiscard]] PlanCache& plan_cache();

}  // namespace torchalgo::cudnn
