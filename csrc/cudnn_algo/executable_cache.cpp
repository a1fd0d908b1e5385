// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/executable_cache.h"

#include <functional>
#include <initializer_list>
#include <string>

namespace torchalgo::cudnn {
namespace {

void mix(std::size_t& hash, std::size_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);  // as boost::hash_combine
}

}  // namespace

// Hashes only the sizes that differ between the layers of a model. ExecutableEqual compares all.
std::size_t ExecutableHash::operator()(const ExecutableKey& key) const {
  const ConvProblem& p = *key.problem;
  std::size_t hash = std::hash<std::string>()(key.primitive->name);
  for (const std::int64_t value :
       {p.n, p.c, p.d, p.h, p.w, p.k, p.t, p.r, p.s, p.stride_h, p.pad_h, p.dilation_h, p.groups}) {
    mix(hash, static_cast<std::size_t>(value));
  }
  mix(hash, static_cast<std::size_t>(p.dtype) * 256 +
                static_cast<std::size_t>(key.primitive->src) * 16 +
                static_cast<std::size_t>(key.primitive->dst));
  return hash;
}

bool ExecutableEqual::operator()(const ExecutableKey& a, const ExecutableKey& b) const {
  return a.primitive->name == b.primitive->name && a.primitive->src == b.primitive->src &&
         a.primitive->dst == b.primitive->dst && *a.problem == *b.problem;
}

}  // namespace torchalgo::cudnn
