// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "pbqp/instance.h"

namespace torchalgo::pbqp {

/// A pool of partitions of nodes' values, each with an id. A class holds values that some tables do
/// not distinguish. The pair costs of an op depend only on the layouts that it reads and writes,
/// and each neighbour depends on one of the two. So tables over classes are much smaller than
/// tables over values.
class ClassPool {
 public:
  /// Adds a partition and returns its id. of[value] is the class of the value. Classes are numbered
  /// in the order of their first values.
  int add(std::vector<int> of);

  /// Returns the partition in which each value is a class of its own.
  int values(std::size_t size);

  /// Returns the coarsest partition that is finer than both `a` and `b`, which belong to one node.
  int refine(int a, int b);

  [[nodiscard]] std::size_t count(int id) const { return partitions_[id].count; }
  [[nodiscard]] const std::vector<int>& of(int id) const { return partitions_[id].of; }

  /// Returns, for each class of `fine`, the class of `coarse` that contains it.
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

/// Returns the partitions of both nodes of a table. The cells stay empty.
[[nodiscard]] ClassTable find_classes(const Instance& instance, const PairTable& pair,
                                      ClassPool& pool);

/// Returns the partitions of both nodes of a table, with the cells.
[[nodiscard]] ClassTable compress(const Instance& instance, const PairTable& pair, ClassPool& pool);

}  // namespace torchalgo::pbqp
