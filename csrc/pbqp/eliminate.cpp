// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/eliminate.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "pbqp/classes.h"

namespace torchalgo::pbqp {
namespace {

// A table of costs. Nodes are named by rank, which is their position in the elimination order.
// Scopes are ascending: the node that is eliminated next is the first one in each of its tables,
// and the last node of a scope has stride 1. A table has one cell per combination of classes of
// values that it distinguishes.
struct Table {
  std::vector<int> scope;
  std::vector<int> classes;  // ids in the pool, per node of the scope
  std::vector<Cost> cells;
};

/// The state of reading one table while the tables of its bucket are summed.
struct TableReader {
  const Cost* cells = nullptr;                   // the cell of the outer nodes' current classes
  std::vector<std::size_t> values;               // per value of the eliminated node: its offset
  std::vector<std::vector<std::size_t>> places;  // per outer node and joint class: its offset
  bool is_row = false;                           // if it holds the last node of the joint scope
};

struct Message {
  Table table;
  std::vector<std::uint16_t> best;  // per cell: the eliminated node's value
};

constexpr std::size_t kCellsPerLook = 1 << 16;  // between two looks at the clock: below 1 ms

class Joiner {
 public:
  Joiner(const std::vector<Table>& bucket, ClassPool& pool, std::size_t values,
         const Deadline& deadline)
      : pool_(pool), deadline_(deadline), values_(values), expanded_(bucket.size()) {
    join_scopes(bucket);
    Table& joint = message_.table;
    std::size_t cells = 1;
    for (int id : joint.classes) sizes_.push_back(pool.count(id));
    for (std::size_t size : sizes_) cells *= size;
    for (std::size_t t = 0; t < bucket.size(); ++t) add_reader(bucket[t], expanded_[t]);
    row_size_ = sizes_.empty() ? 1 : sizes_.back();
    sum_.resize(row_size_);
    message_.best.assign(cells, 0);
    joint.cells.assign(cells, kForbidden);
  }

  std::optional<Message> run() {
    const int outer = static_cast<int>(sizes_.size()) - 1;  // the last node runs along the row
    std::vector<std::size_t> digits(sizes_.size(), 0);
    std::size_t walked = 0;
    for (std::size_t cell = 0; cell < message_.best.size(); cell += row_size_) {
      walked += row_size_ * values_;
      if (walked > kCellsPerLook) {
        if (deadline_.expired()) return std::nullopt;
        walked = 0;
      }
      fill_row(cell);
      for (int d = outer - 1; d >= 0; --d) {
        const std::size_t from = digits[d]++;
        const bool is_over = digits[d] == sizes_[d];
        if (is_over) digits[d] = 0;
        for (TableReader& reader : readers_)
          if (!reader.places[d].empty())
            reader.cells = reader.cells - reader.places[d][from] + reader.places[d][digits[d]];
        if (!is_over) break;
      }
    }
    return std::move(message_);
  }

 private:
  void join_scopes(const std::vector<Table>& bucket) {
    std::map<int, int> classes;  // by rank
    for (const Table& table : bucket)
      for (std::size_t i = 1; i < table.scope.size(); ++i) {
        const auto [found, is_new] = classes.try_emplace(table.scope[i], table.classes[i]);
        if (!is_new) found->second = pool_.refine(found->second, table.classes[i]);
      }
    for (const auto& [rank, id] : classes) {
      message_.table.scope.push_back(rank);
      message_.table.classes.push_back(id);
    }
  }

  /// Adds a reader for `table`. If the message has more classes of the last node than the table,
  /// `expanded` gets a copy of the table with rows of that length.
  void add_reader(const Table& table, std::vector<Cost>& expanded) {
    const std::vector<int>& scope = message_.table.scope;
    TableReader reader;
    reader.places.resize(scope.size());
    reader.is_row = table.scope.size() > 1 && table.scope.back() == scope.back();
    reader.cells = reader.is_row ? expand_rows(table, expanded) : table.cells.data();
    std::size_t stride = 1;
    for (std::size_t i = table.scope.size(); i-- > 1;) {
      const std::size_t at =
          std::lower_bound(scope.begin(), scope.end(), table.scope[i]) - scope.begin();
      if (at + 1 == scope.size()) {
        stride = sizes_[at];
        continue;
      }
      for (int from : pool_.coarsen(message_.table.classes[at], table.classes[i]))
        reader.places[at].push_back(from * stride);
      stride *= pool_.count(table.classes[i]);
    }
    for (int from : pool_.of(table.classes[0])) reader.values.push_back(from * stride);
    readers_.push_back(std::move(reader));
  }

  const Cost* expand_rows(const Table& table, std::vector<Cost>& expanded) const {
    const std::size_t size = pool_.count(table.classes.back());
    if (size == sizes_.back()) return table.cells.data();
    const std::vector<int> from =
        pool_.coarsen(message_.table.classes.back(), table.classes.back());
    expanded.reserve(table.cells.size() / size * from.size());
    for (std::size_t row = 0; row < table.cells.size(); row += size)
      for (int b : from) expanded.push_back(table.cells[row + b]);
    return expanded.data();
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

  /// Sets sum_[b] to the joint cost of value y and class b of the row. Returns false if all are
  /// forbidden.
  bool sum_row(std::size_t y) {
    Cost common = 0;
    for (const TableReader& reader : readers_)
      if (!reader.is_row) common = add(common, reader.cells[reader.values[y]]);
    if (common == kForbidden) return false;
    std::fill(sum_.begin(), sum_.end(), common);
    for (const TableReader& reader : readers_) {
      if (!reader.is_row) continue;
      const Cost* row = reader.cells + reader.values[y];
      for (std::size_t b = 0; b < row_size_; ++b) sum_[b] = add(sum_[b], row[b]);
    }
    return true;
  }

  ClassPool& pool_;
  const Deadline& deadline_;
  std::size_t values_, row_size_ = 1;
  std::vector<std::size_t> sizes_;           // of the message, per node of its scope
  std::vector<std::vector<Cost>> expanded_;  // per table of the bucket
  std::vector<TableReader> readers_;
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
      const std::vector<Cost>& costs = instance.nodes[order.nodes[r]];
      rank_[order.nodes[r]] = static_cast<int>(r);
      sizes_.push_back(costs.size());
      buckets_[r].push_back({{static_cast<int>(r)}, {pool_.values(costs.size())}, costs});
    }
    for (const PairTable& pair : instance.pairs) add_pair(instance, pair);
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
  void add_pair(const Instance& instance, const PairTable& pair) {
    ClassTable table = compress(instance, pair, pool_);
    const int u = rank_[pair.u], v = rank_[pair.v];
    if (u < v) {
      buckets_[u].push_back({{u, v}, {table.u_classes, table.v_classes}, std::move(table.cells)});
      return;
    }
    table.cells =
        transposed(table.cells, pool_.count(table.u_classes), pool_.count(table.v_classes));
    buckets_[v].push_back({{v, u}, {table.v_classes, table.u_classes}, std::move(table.cells)});
  }

  bool eliminate_bucket(int r) {
    if (deadline_.expired()) return false;
    std::optional<Message> message = Joiner(buckets_[r], pool_, sizes_[r], deadline_).run();
    if (!message) return false;
    buckets_[r] = {};
    Table& table = message->table;
    best_.push_back({table.scope, table.classes, std::move(message->best)});
    if (table.scope.empty())
      total_ = add(total_, table.cells[0]);
    else
      buckets_[table.scope[0]].push_back(std::move(table));
    return true;
  }

  std::vector<int> trace_back() const {
    std::vector<int> by_rank(best_.size(), 0), choice(best_.size(), 0);
    for (std::size_t r = best_.size(); r-- > 0;) {
      std::size_t cell = 0;
      for (std::size_t i = 0; i < best_[r].scope.size(); ++i) {
        const int id = best_[r].classes[i];
        cell = cell * pool_.count(id) + pool_.of(id)[by_rank[best_[r].scope[i]]];
      }
      by_rank[r] = best_[r].values[cell];
      choice[order_.nodes[r]] = by_rank[r];
    }
    return choice;
  }

  struct Best {
    std::vector<int> scope, classes;
    std::vector<std::uint16_t> values;
  };

  const EliminationOrder& order_;
  const Deadline& deadline_;
  ClassPool pool_;
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
