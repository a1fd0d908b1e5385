// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/plan_cache.h"

#include <functional>
#include <initializer_list>
#include <string>

namespace torchalgo::cudnn {
namespace {

void mix(std::size_t& hash, std::size_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);  // as boost::hash_combine
}

// Sizes that differ between the layers of a model; equal() decides.
std::size_t hash_of(const PreparedKey& key) {
  const ConvProblem& p = *key.problem;
  std::size_t hash = std::hash<std::string>()(key.primitive->name);
  for (const std::int64_t value :
       {p.n, p.c, p.d, p.h, p.w, p.k, p.t, p.r, p.s, p.stride_h, p.pad_h, p.dilation_h, p.groups}) {
    mix(hash, static_cast<std::size_t>(value));
  }
  mix(hash, static_cast<std::size_t>(p.dtype) * 256 +
                static_cast<std::size_t>(key.primitive->src) * 16 +
                static_cast<std::size_t>(key.primitive->dst));
  mix(hash, std::hash<const void*>()(key.handle));
  return hash;
}

bool equal(const PreparedKey& a, const PreparedKey& b) {
  return a.api == b.api && a.handle == b.handle && a.primitive->name == b.primitive->name &&
         a.primitive->src == b.primitive->src && a.primitive->dst == b.primitive->dst &&
         *a.problem == *b.problem;
}

}  // namespace

PlanCache::Entries::iterator PlanCache::find_entry(const PreparedKey& key, std::size_t hash) {
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (equal(at->second->key, key)) return at->second;
  }
  return entries_.end();
}

std::shared_ptr<Prepared> PlanCache::find(const PreparedKey& key) {
  const auto entry = find_entry(key, hash_of(key));
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->prepared;
}

void PlanCache::forget_last() {
  const auto last = std::prev(entries_.end());
  const auto [first, end] = by_hash_.equal_range(last->hash);
  for (auto at = first; at != end; ++at) {
    if (at->second == last) {
      by_hash_.erase(at);
      break;
    }
  }
  entries_.erase(last);
}

std::size_t PlanCache::add(const PreparedKey& key, std::shared_ptr<Prepared> prepared) {
  const std::size_t hash = hash_of(key);
  entries_.push_front({*key.problem, *key.primitive, key, hash, std::move(prepared)});
  Entry& entry = entries_.front();
  entry.key.problem = &entry.problem;
  entry.key.primitive = &entry.primitive;
  by_hash_.emplace(hash, entries_.begin());
  std::size_t forgotten = 0;
  for (; entries_.size() > limit_ && entries_.size() > 1; ++forgotten) forget_last();
  return forgotten;
}

void PlanCache::clear() {
  by_hash_.clear();
  entries_.clear();
}

PlanCache& plan_cache() {
  thread_local PlanCache cache;
  return cache;
}

}  // namespace torchalgo::cudnn
