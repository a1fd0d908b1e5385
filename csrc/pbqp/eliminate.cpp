// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/eliminate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace torchalgo::pbqp {
namespace {

// Nodes go by rank, their place in the elimination order. Scopes ascend, so the node whose turn it
// is stands first in each of its tables and the last node of a scope has stride 1.
struct Table {
  std::vector<int> scope;
  std::vector<Cost> cells;
};

/// How one table is read while its bucket is joined.
struct Reader {
  const Cost* cells = nullptr;
  std::size_t node_stride = 0;
  std::vector<std::size_t> strides;  // per node of the joint scope, 0 if not in the table
};

struct Message {
  Table table;
  std::vector<std::uint16_t> best;  // per cell: the eliminated node's value
};

constexpr std::size_t kCellsPerLook = 1 << 16;  // at the clock: well below a millisecond

class Joiner {
 public:
  Joiner(const std::vector<Table>& bucket, const std::vector<std::size_t>& sizes, int node,
         std::vector<int> scope, const Deadline& deadline)
      : sizes_(sizes), deadline_(deadline), values_(sizes[node]) {
    std::size_t cells = 1;
    for (int other : scope) cells *= sizes[other];
    for (const Table& table : bucket) readers_.push_back(make_reader(table, scope));
    row_size_ = scope.empty() ? 1 : sizes[scope.back()];
    sum_.resize(row_size_);
    message_.best.assign(cells, 0);
    message_.table = {std::move(scope), std::vector<Cost>(cells, kForbidden)};
  }

  std::optional<Message> run() {
    const std::vector<int>& scope = message_.table.scope;
    const int outer = static_cast<int>(scope.size()) - 1;  // the last node is the row
    std::vector<std::size_t> digits(scope.size(), 0);
    std::size_t walked = 0;
    for (std::size_t cell = 0; cell < message_.best.size(); cell += row_size_) {
      walked += row_size_ * values_;
      if (walked > kCellsPerLook) {
        if (deadline_.expired()) return std::nullopt;
        walked = 0;
      }
      fill_row(cell);
      for (int d = outer - 1; d >= 0; --d) {
        ++digits[d];
        for (Reader& reader : readers_) reader.cells += reader.strides[d];
        if (digits[d] < sizes_[scope[d]]) break;
        for (Reader& reader : readers_) reader.cells -= reader.strides[d] * digits[d];
        digits[d] = 0;
      }
    }
    return std::move(message_);
  }

 private:
  Reader make_reader(const Table& table, const std::vector<int>& scope) const {
    Reader reader;
    reader.cells = table.cells.data();
    reader.node_stride = 1;
    reader.strides.assign(scope.size(), 0);
    for (std::size_t i = table.scope.size(); i-- > 1;) {
      const auto at = std::lower_bound(scope.begin(), scope.end(), table.scope[i]);
      reader.strides[at - scope.begin()] = reader.node_stride;
      reader.node_stride *= sizes_[table.scope[i]];
    }
    return reader;
  }

  void fill_row(std::size_t cell) {
    Cost* best_cost = &message_.table.cells[cell];
    std::uint16_t* best = &message_.best[cell];
    for (std::size_t y = 0; y < values_; ++y) {
      if (!sum_row(y)) continue;
      for (std::size_t b = 0; b < row_size_; ++b) {
        const bool better = sum_[b] < best_cost[b];
        best_cost[b] = better ? sum_[b] : best_cost[b];
        best[b] = better ? static_cast<std::uint16_t>(y) : best[b];
      }
    }
  }

  /// sum_[b] = the joint cost of value y and the row's values b; false if all are forbidden.
  bool sum_row(std::size_t y) {
    Cost common = 0;
    for (const Reader& reader : readers_)
      if (!is_row(reader)) common = add(common, reader.cells[y * reader.node_stride]);
    if (common == kForbidden) return false;
    std::fill(sum_.begin(), sum_.end(), common);
    for (const Reader& reader : readers_) {
      if (!is_row(reader)) continue;
      const Cost* row = reader.cells + y * reader.node_stride;
      for (std::size_t b = 0; b < row_size_; ++b) sum_[b] = add(sum_[b], row[b]);
    }
    return true;
  }

  static bool is_row(const Reader& reader) {
    return !reader.strides.empty() && reader.strides.back() == 1;
  }

  const std::vector<std::size_t>& sizes_;  // by rank
  const Deadline& deadline_;
  std::size_t values_, row_size_ = 1;
  std::vector<Reader> readers_;
  std::vector<Cost> sum_;
  Message message_;
};

class Eliminator {
 public:
  Eliminator(const Instance& instance, const EliminationOrder& order, const Deadline& deadline)
      : order_(order),
        deadline_(deadline),
        buckets_(order.nodes.size()),
        rank_(order.nodes.size()) {
    total_ = instance.constant;
    for (std::size_t r = 0; r < order.nodes.size(); ++r) {
      rank_[order.nodes[r]] = static_cast<int>(r);
      sizes_.push_back(instance.nodes[order.nodes[r]].size());
      buckets_[r].push_back({{static_cast<int>(r)}, instance.nodes[order.nodes[r]]});
    }
    for (const PairTable& pair : instance.pairs) {
      const int row_node = rank_[pair.u] < rank_[pair.v] ? pair.u : pair.v;
      const int first = rank_[row_node], second = std::max(rank_[pair.u], rank_[pair.v]);
      buckets_[first].push_back({{first, second}, rows_of(instance, pair, row_node)});
    }
  }

  std::optional<Exact> run() {
    for (std::size_t r = 0; r < buckets_.size(); ++r)
      if (!eliminate_bucket(static_cast<int>(r))) return std::nullopt;
    Exact exact;
    exact.cost = total_;
    if (total_ != kForbidden) exact.choice = trace_back();
    return exact;
  }

 private:
  bool eliminate_bucket(int r) {
    if (deadline_.expired()) return false;
    std::vector<int> scope;
    for (const Table& table : buckets_[r])
      scope.insert(scope.end(), table.scope.begin() + 1, table.scope.end());
    std::sort(scope.begin(), scope.end());
    scope.erase(std::unique(scope.begin(), scope.end()), scope.end());
    std::optional<Message> message = Joiner(buckets_[r], sizes_, r, scope, deadline_).run();
    if (!message) return false;
    buckets_[r] = {};
    if (scope.empty())
      total_ = add(total_, message->table.cells[0]);
    else
      buckets_[scope[0]].push_back(std::move(message->table));
    best_.push_back({std::move(scope), std::move(message->best)});
    return true;
  }

  std::vector<int> trace_back() const {
    std::vector<int> by_rank(best_.size(), 0), choice(best_.size(), 0);
    for (std::size_t r = best_.size(); r-- > 0;) {
      std::size_t cell = 0;
      for (int other : best_[r].scope) cell = cell * sizes_[other] + by_rank[other];
      by_rank[r] = best_[r].values[cell];
      choice[order_.nodes[r]] = by_rank[r];
    }
    return choice;
  }

  struct Best {
    std::vector<int> scope;
    std::vector<std::uint16_t> values;
  };

  const EliminationOrder& order_;
  const Deadline& deadline_;
  std::vector<std::vector<Table>> buckets_;
  std::vector<int> rank_;
  std::vector<std::size_t> sizes_;
  std::vector<Best> best_;
  Cost total_ = 0;
};

}  // namespace

std::optional<Exact> eliminate(const Instance& instance, const EliminationOrder& order,
                               const Deadline& deadline) {
  return Eliminator(instance, order, deadline).run();
}

}  // namespace torchalgo::pbqp
