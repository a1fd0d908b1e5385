// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/classes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace torchalgo::pbqp {
namespace {

/// The lines of a table: its rows or its columns.
struct Lines {
  const std::vector<Cost>& cells;
  std::size_t count, length, stride, step;  // stride: between lines; step: along a line

  [[nodiscard]] bool are_equal(int a, int b) const {
    const Cost *left = &cells[a * stride], *right = &cells[b * stride];
    for (std::size_t i = 0; i < length; ++i)
      if (left[i * step] != right[i * step]) return false;
    return true;
  }
};

constexpr std::uint64_t kMix = 0x9e3779b97f4a7c15;

/// Returns a hash of each row. Equal rows have equal hashes; rows with equal hashes are compared.
std::vector<std::uint64_t> row_sums(const std::vector<Cost>& cells, std::size_t rows,
                                    std::size_t cols) {
  std::vector<std::uint64_t> sums(rows, 0);
  for (std::size_t a = 0; a < sums.size(); ++a)
    for (std::size_t b = 0; b < cols; ++b)
      sums[a] = (sums[a] ^ static_cast<std::uint64_t>(cells[a * cols + b])) * kMix;
  return sums;
}

std::vector<std::uint64_t> column_sums(const std::vector<Cost>& cells, std::size_t cols) {
  std::vector<std::uint64_t> sums(cols, 0);
  for (std::size_t row = 0; row < cells.size(); row += cols)
    for (std::size_t b = 0; b < cols; ++b)
      sums[b] = (sums[b] ^ static_cast<std::uint64_t>(cells[row + b])) * kMix;
  return sums;
}

std::vector<int> classes_of(const Lines& lines, const std::vector<std::uint64_t>& sums) {
  std::vector<int> of(lines.count, -1), firsts;  // the first line of each class
  std::unordered_multimap<std::uint64_t, int> classes;
  for (std::size_t i = 0; i < lines.count; ++i) {
    const auto [begin, end] = classes.equal_range(sums[i]);
    for (auto found = begin; found != end && of[i] < 0; ++found)
      if (lines.are_equal(firsts[found->second], static_cast<int>(i))) of[i] = found->second;
    if (of[i] >= 0) continue;
    of[i] = static_cast<int>(firsts.size());
    classes.emplace(sums[i], of[i]);
    firsts.push_back(static_cast<int>(i));
  }
  return of;
}

/// Returns the first value of each class.
std::vector<int> first_values(const std::vector<int>& of) {
  std::vector<int> firsts;
  for (std::size_t a = 0; a < of.size(); ++a)
    if (of[a] == static_cast<int>(firsts.size())) firsts.push_back(static_cast<int>(a));
  return firsts;
}

}  // namespace

int ClassPool::add(std::vector<int> of) {
  const auto [found, is_new] =
      ids_.try_emplace(std::move(of), static_cast<int>(partitions_.size()));
  if (!is_new) return found->second;
  const std::vector<int>& classes = found->first;
  const int most = classes.empty() ? -1 : *std::max_element(classes.begin(), classes.end());
  partitions_.push_back({classes, static_cast<std::size_t>(most + 1)});
  return found->second;
}

int ClassPool::values(std::size_t size) {
  std::vector<int> of(size);
  for (std::size_t a = 0; a < size; ++a) of[a] = static_cast<int>(a);
  return add(std::move(of));
}

int ClassPool::refine(int a, int b) {
  if (a == b || count(b) <= 1 || count(a) == of(a).size()) return a;
  if (count(a) <= 1 || count(b) == of(b).size()) return b;
  const std::uint64_t key =
      static_cast<std::uint64_t>(std::min(a, b)) << 32 | static_cast<std::uint64_t>(std::max(a, b));
  const auto found = refined_.find(key);
  if (found != refined_.end()) return found->second;
  std::vector<int> numbers(count(a) * count(b), -1), joint;
  int next = 0;
  for (std::size_t value = 0; value < of(a).size(); ++value) {
    int& number = numbers[of(a)[value] * count(b) + of(b)[value]];
    if (number < 0) number = next++;
    joint.push_back(number);
  }
  const int id = add(std::move(joint));
  refined_.emplace(key, id);
  return id;
}

std::vector<int> ClassPool::coarsen(int fine, int coarse) const {
  std::vector<int> to;
  for (int value : first_values(of(fine))) to.push_back(of(coarse)[value]);
  return to;
}

ClassTable find_classes(const Instance& instance, const PairTable& pair, ClassPool& pool) {
  const std::size_t rows = instance.nodes[pair.u].size(), cols = instance.nodes[pair.v].size();
  ClassTable table;
  table.u_classes =
      pool.add(classes_of({pair.cells, rows, cols, cols, 1}, row_sums(pair.cells, rows, cols)));
  table.v_classes =
      pool.add(classes_of({pair.cells, cols, rows, 1, cols}, column_sums(pair.cells, cols)));
  return table;
}

ClassTable compress(const Instance& instance, const PairTable& pair, ClassPool& pool) {
  ClassTable table = find_classes(instance, pair, pool);
  const std::size_t cols = instance.nodes[pair.v].size();
  const std::vector<int> columns = first_values(pool.of(table.v_classes));
  for (int a : first_values(pool.of(table.u_classes)))
    for (int b : columns) table.cells.push_back(pair.cells[a * cols + b]);
  return table;
}

}  // namespace torchalgo::pbqp
