// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/bucket_tree.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace torchalgo::pbqp {
namespace {

// A table of costs. Nodes are named by rank, which is their position in the elimination order.
// Scopes are ascending.
struct Table {
  std::vector<int> scope;
  std::vector<Cost> cells;
};

class BucketTree {
 public:
  BucketTree(const Instance& instance, const EliminationOrder& order, const Deadline& deadline)
      : instance_(instance), order_(order), deadline_(deadline), buckets_(order.nodes.size()) {
    std::vector<int> rank(order.nodes.size());
    for (std::size_t r = 0; r < order.nodes.size(); ++r) {
      rank[order.nodes[r]] = static_cast<int>(r);
      sizes_.push_back(instance.nodes[order.nodes[r]].size());
      buckets_[r].clique = {static_cast<int>(r)};
    }
    for (const PairTable& pair : instance.pairs) {
      const int row_node = rank[pair.u] < rank[pair.v] ? pair.u : pair.v;
      const int first = rank[row_node], second = std::max(rank[pair.u], rank[pair.v]);
      buckets_[first].tables.push_back({{first, second}, rows_of(instance, pair, row_node)});
      buckets_[first].clique.push_back(second);
    }
    find_cliques();
  }

  bool fits(std::int64_t table_cap) const {
    return std::all_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
      std::int64_t cells = 1;
      for (int r : bucket.clique) {
        if (cells > table_cap) return false;
        cells *= static_cast<std::int64_t>(sizes_[r]);
      }
      return cells <= table_cap;
    });
  }

  std::optional<std::vector<std::vector<Cost>>> run() {
    for (std::size_t r = 0; r < buckets_.size(); ++r) {
      if (deadline_.expired()) return std::nullopt;
      Bucket& bucket = buckets_[r];
      bucket.message = project(sum_bucket(static_cast<int>(r)),
                               {bucket.clique.begin() + 1, bucket.clique.end()});
    }
    std::vector<std::vector<Cost>> marginals(buckets_.size());
    for (std::size_t r = buckets_.size(); r-- > 0;) {
      if (deadline_.expired()) return std::nullopt;
      Table belief = sum_bucket(static_cast<int>(r));
      if (!buckets_[r].back.scope.empty()) add_into(belief, buckets_[r].back);
      marginals[order_.nodes[r]] = project(belief, {static_cast<int>(r)}).cells;
      send_back(static_cast<int>(r), belief);
    }
    return marginals;
  }

 private:
  struct Bucket {
    std::vector<int> clique;    // the node, then its neighbours when it is eliminated
    std::vector<Table> tables;  // of the instance
    std::vector<int> children;  // buckets whose messages are added here
    Table message;              // of all buckets below, per values of the rest of the clique
    Table back;                 // of all other buckets, on the same scope
  };

  void find_cliques() {
    for (std::size_t r = 0; r < buckets_.size(); ++r) {
      std::vector<int>& clique = buckets_[r].clique;
      std::sort(clique.begin(), clique.end());
      clique.erase(std::unique(clique.begin(), clique.end()), clique.end());
      if (clique.size() == 1) continue;
      Bucket& parent = buckets_[clique[1]];
      parent.children.push_back(static_cast<int>(r));
      parent.clique.insert(parent.clique.end(), clique.begin() + 1, clique.end());
    }
  }

  std::size_t cell_count(const std::vector<int>& scope) const {
    std::size_t cells = 1;
    for (int r : scope) cells *= sizes_[r];
    return cells;
  }

  Table sum_bucket(int r) const {
    const Bucket& bucket = buckets_[r];
    Table sum{bucket.clique, std::vector<Cost>(cell_count(bucket.clique), 0)};
    add_into(sum, {{r}, instance_.nodes[order_.nodes[r]]});
    for (const Table& table : bucket.tables) add_into(sum, table);
    for (int child : bucket.children) add_into(sum, buckets_[child].message);
    return sum;
  }

  void send_back(int r, const Table& belief) {
    const Table* last = nullptr;  // children often share a scope
    Table least;
    for (int child : buckets_[r].children) {
      const Table& message = buckets_[child].message;
      if (last == nullptr || last->scope != message.scope) least = project(belief, message.scope);
      last = &message;
      Table& back = buckets_[child].back;
      back = least;
      for (std::size_t i = 0; i < back.cells.size(); ++i)
        if (back.cells[i] != kForbidden) back.cells[i] -= message.cells[i];
    }
  }

  /// Returns the strides of a table on `part` along the nodes of `scope`. The stride is 0 for a
  /// node that `part` does not contain.
  std::vector<std::size_t> strides_along(const std::vector<int>& scope,
                                         const std::vector<int>& part) const {
    std::vector<std::size_t> strides(scope.size(), 0);
    std::size_t stride = 1;
    for (std::size_t i = part.size(); i-- > 0;) {
      const auto at = std::lower_bound(scope.begin(), scope.end(), part[i]);
      strides[at - scope.begin()] = stride;
      stride *= sizes_[part[i]];
    }
    return strides;
  }

  /// Calls row(begin, offset) for each row of the last node of `scope`. `begin` is the position of
  /// the row in a table on `scope`. `offset` is the position of its first cell in a table with
  /// `strides`.
  template <typename Row>
  void walk_rows(const std::vector<int>& scope, const std::vector<std::size_t>& strides,
                 const Row& row) const {
    std::vector<std::size_t> digits(scope.size(), 0);
    const std::size_t cells = cell_count(scope), row_size = sizes_[scope.back()];
    std::size_t offset = 0;
    for (std::size_t begin = 0; begin < cells; begin += row_size) {
      row(begin, offset);
      for (std::size_t d = scope.size() - 1; d-- > 0;) {
        offset += strides[d];
        if (++digits[d] < sizes_[scope[d]]) break;
        offset -= strides[d] * digits[d];
        digits[d] = 0;
      }
    }
  }

  void add_into(Table& sum, const Table& table) const {
    const auto strides = strides_along(sum.scope, table.scope);
    const std::size_t row_size = sizes_[sum.scope.back()];
    walk_rows(sum.scope, strides, [&](std::size_t begin, std::size_t offset) {
      Cost* out = &sum.cells[begin];
      const Cost* in = &table.cells[offset];
      if (strides.back() == 0)
        for (std::size_t b = 0; b < row_size; ++b) out[b] = add(out[b], *in);
      else
        for (std::size_t b = 0; b < row_size; ++b) out[b] = add(out[b], in[b]);
    });
  }

  /// Returns the minimum of the table over all nodes that are not in `scope`.
  Table project(const Table& table, std::vector<int> scope) const {
    Table least{std::move(scope), {}};
    least.cells.assign(cell_count(least.scope), kForbidden);
    const auto strides = strides_along(table.scope, least.scope);
    const std::size_t row_size = sizes_[table.scope.back()];
    walk_rows(table.scope, strides, [&](std::size_t begin, std::size_t offset) {
      const Cost* in = &table.cells[begin];
      Cost* out = &least.cells[offset];
      if (strides.back() == 0)
        *out = std::min(*out, *std::min_element(in, in + row_size));
      else
        for (std::size_t b = 0; b < row_size; ++b) out[b] = std::min(out[b], in[b]);
    });
    return least;
  }

  const Instance& instance_;
  const EliminationOrder& order_;
  const Deadline& deadline_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> sizes_;
};

}  // namespace

std::optional<std::vector<std::vector<Cost>>> exact_marginals(const Instance& instance,
                                                              const EliminationOrder& order,
                                                              std::int64_t table_cap,
                                                              const Deadline& deadline) {
  BucketTree tree(instance, order, deadline);
  if (!tree.fits(table_cap)) return std::nullopt;
  return tree.run();
}

}  // namespace torchalgo::pbqp
