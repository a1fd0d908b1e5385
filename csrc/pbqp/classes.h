// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "pbqp/instance.h"

namespace torchalgo::pbqp {

/// Partitions of nodes' values into classes that some tables do not tell apart, each known by an
/// id. What an op costs beside its neighbours depends on the layouts that it reads and writes, and
/// each neighbour sees one of the two: tables over classes are smaller by powers of that.
class ClassPool {
 public:
  /// of[value] is its class; classes are numbered in the order of their first values.
  int add(std::vector<int> of);

  /// Each value a class of its own.
  int values(std::size_t size);

  /// The coarsest partition finer than both, which are of one node.
  int refine(int a, int b);

  [[nodiscard]] std::size_t count(int id) const { return partitions_[id].count; }
  [[nodiscard]] const std::vector<int>& of(int id) const { return partitions_[id].of; }

  /// Per class of `fine` the class of `coarse` that it is in.
  [[nodiscard]] std::vector<int> coarsen(int fine, int coarse) const;

 private:
  struct Partition {
    std::vector<int> of;
    std::size_t count = 0;
  };

  std::vector<Partition> partitions_;
  std::map<std::vector<int>, int> ids_;
  std::unordered_map<std::uint64_t, int> refined_;  // by both ids
};

/// A table without its repeated rows and columns: cells[class of u * count of v's + class of v].
struct ClassTable {
  int u_classes = 0, v_classes = 0;  // ids
  std::vector<Cost> cells;
};

/// Only the partitions of both nodes; the cells stay empty.
[[nodiscard]] ClassTable find_classes(const Instance& instance, const PairTable& pair,
                                      ClassPool& pool);

/// With the cells.
[[nodiscard]] ClassTable compress(const Instance& instance, const PairTable& pair, ClassPool& pool);

}  // namespace torchalgo::pbqp
