// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/solve.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pbqp/bound.h"
#include "pbqp/deadline.h"
#include "pbqp/eliminate.h"
#include "pbqp/instance.h"
#include "pbqp/marginals.h"
#include "pbqp/reduce.h"
#include "pbqp/search.h"

namespace torchalgo::pbqp {
namespace {

std::string method_name(int branches, int parts, int width) {
  std::string name = branches > parts ? "branch and bound (" + std::to_string(branches) + " nodes)"
                                      : std::string("bound and pruning");
  if (width > 0) name += ", elimination (width " + std::to_string(width) + ")";
  return name;
}

std::string describe(const Reduction& reduction) {
  const RuleCounts& n = reduction.counts;
  return "reduced: R0 " + std::to_string(n.r0) + ", R1 " + std::to_string(n.r1) + ", R2 " +
         std::to_string(n.r2) + ", folded " + std::to_string(n.folded) + ", dominated values " +
         std::to_string(n.dominated) + ", tables dropped " + std::to_string(n.tables) + "; left " +
         std::to_string(reduction.core.nodes.size()) + " nodes and " +
         std::to_string(reduction.core.pairs.size()) + " tables";
}

std::string describe(const EliminationOrder& order) {
  return "order of elimination: width " + std::to_string(order.width) + ", " +
         std::to_string(order.cells) + " cells";
}

ProofNames names_of(const Problem& problem) {
  ProofNames names;
  for (std::size_t i = 0; i < problem.node_costs.size(); ++i) {
    names.nodes.push_back(static_cast<int>(i));
    names.values.emplace_back();
    for (std::size_t a = 0; a < problem.node_costs[i].size(); ++a)
      names.values.back().push_back(static_cast<int>(a));
  }
  return names;
}

/// Returns the problem's names of the nodes and values of a part of the core.
ProofNames names_of(const Reduction& reduction, const std::vector<int>& part) {
  ProofNames names;
  for (int core_node : part) {
    const int node = reduction.core_nodes[core_node];
    names.nodes.push_back(node);
    names.values.emplace_back();
    for (int value : reduction.core_values[core_node])
      names.values.back().push_back(reduction.values[node][value]);
  }
  return names;
}

class Solver {
 public:
  Solver(const Problem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), deadline_(options.time_limit_s) {}

  Solution run() {
    Restricted source = drop_forbidden(make_instance(problem_));
    Restricted to_reduce;
    if (options_.with_marginals)
      to_reduce = source;
    else
      std::swap(to_reduce, source);  // without a copy, because it is large
    const Reduction reduction = reduce(std::move(to_reduce), deadline_);
    prove(reduction.proof);
    if (reduction.infeasible) {
      note("reduced: no value of some node is left");
      close_proof();
      finish(kForbidden, "R0-R2 reductions");
    } else {
      note(describe(reduction), reduction.core.constant);
      solve_core(reduction);
    }
    finish_certificate();
    if (options_.with_marginals) add_marginals(source);
    return std::move(solution_);
  }

 private:
  void note(std::string text, Cost lower_bound = 0, Cost cost = kForbidden) {
    if (!options_.with_transcript) return;
    auto& events = solution_.transcript;
    if (!events.empty()) {
      lower_bound = std::max(lower_bound, events.back().lower_bound);
      cost = std::min(cost, events.back().cost);
    }
    events.push_back({deadline_.elapsed(), std::move(text), lower_bound, cost});
  }

  /// Adds steps to the certificate, unless it exceeds its size limit by now.
  void prove(const ProofSteps& steps) {
    for (const ProofStep& step : steps)
      proof_room_ -= 1 + static_cast<std::int64_t>(step.numbers.size());
    if (proof_room_ >= 0) write_steps(steps, names_of(problem_), solution_.certificate.proof);
  }
  void close_proof() {
    if (proof_room_ >= 0)
      solution_.certificate.proof += "close\n";
    else
      solution_.certificate.proof.clear();
  }

  void solve_core(const Reduction& reduction) {
    const Instance& core = reduction.core;
    const auto order = find_class_order(core, options_.table_cap, deadline_);
    if (order && !core.nodes.empty()) note(describe(*order));
    if (order && deadline_.has_time_for(order->cells)) {
      if (const auto exact = eliminate(core, *order, deadline_)) {
        finish_exactly(reduction, *order, *exact);
        return;
      }
      note("elimination given up: out of time");
    }
    if (deadline_.expired())
      finish_at_once(reduction);
    else
      search_parts(reduction);
  }

  void finish_at_once(const Reduction& reduction) {
    const Bound bound = bound_at_once(reduction.core);
    close_proof();
    if (bound.cost != kForbidden) take_choice(lift(reduction, bound.choice));
    finish(bound.lower_bound, "bound at once");
  }

  void finish_exactly(const Reduction& reduction, const EliminationOrder& order,
                      const Exact& exact) {
    ProofStep step{ProofStep::Kind::kEliminate, {}};
    for (int node : order.nodes) step.numbers.push_back(reduction.core_nodes[node]);
    if (!order.nodes.empty()) prove({step});
    close_proof();
    if (exact.cost != kForbidden) take_choice(lift(reduction, exact.choice));
    finish(exact.cost, order.nodes.empty()
                           ? "R0-R2 reductions"
                           : "elimination (width " + std::to_string(order.width) + ")");
  }

  /// Searches each connected part by itself. The bounds of the parts add up, and branches multiply
  /// only within one part.
  void search_parts(const Reduction& reduction) {
    const auto parts = connected_parts(reduction.core);
    std::vector<Instance> instances;
    instances.reserve(parts.size());
    for (const auto& nodes : parts) instances.push_back(part_of(reduction.core, nodes));
    std::vector<Known> known(parts.size());
    std::vector<Search> searches;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto report = [&, p](Cost bound, Cost cost) {
        known[p] = {std::max(known[p].bound, bound), cost};
        note_known(reduction.core.constant, known);
      };
      searches.push_back(Search(
          instances[p],
          {options_.table_cap, proof_share(instances[p], reduction.core), deadline_, report}));
    }
    run_in_turn(searches);
    finish_parts(reduction, parts, searches);
  }

  struct Known {  // of a part
    Cost bound = 0, cost = kForbidden;
  };

  void note_known(Cost constant, const std::vector<Known>& known) {
    Known sum{constant, constant};
    for (const Known& part : known) sum = {add(sum.bound, part.bound), add(sum.cost, part.cost)};
    note("searching", sum.bound, sum.cost);
  }

  /// Returns the share of what is left of the proof's size limit for a part. It is the part's share
  /// of the core's tables.
  std::int64_t proof_share(const Instance& part, const Instance& core) const {
    const double share =
        static_cast<double>(part.pairs.size() + 1) / static_cast<double>(core.pairs.size() + 1);
    return static_cast<std::int64_t>(static_cast<double>(proof_room_) * std::min(share, 1.0));
  }

  /// Runs the first step of each search, and then always the search with the largest gap. So a hard
  /// part does not take all the time of the others.
  void run_in_turn(std::vector<Search>& searches) const {
    for (Search& search : searches) search.step();
    while (!deadline_.expired()) {
      Search* next = nullptr;
      for (Search& search : searches)
        if (!search.is_done() && (next == nullptr || search.gap() > next->gap())) next = &search;
      if (next == nullptr) return;
      next->step();
    }
  }

  void finish_parts(const Reduction& reduction, const std::vector<std::vector<int>>& parts,
                    std::vector<Search>& searches) {
    Cost bound = reduction.core.constant;
    bool has_choice = true;
    int branches = 0, width = 0;
    std::vector<int> choice(reduction.core.nodes.size(), 0);
    std::vector<SearchResult> results;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      results.push_back(searches[p].take());
      const SearchResult& part = results.back();
      bound = add(bound, part.lower_bound);
      has_choice &= !part.choice.empty();
      for (std::size_t i = 0; i < part.choice.size(); ++i) choice[parts[p][i]] = part.choice[i];
      branches += part.branches;
      width = std::max(width, part.width);
    }
    write_parts(reduction, parts, results);
    if (has_choice && bound != kForbidden) take_choice(lift(reduction, choice));
    finish(bound, method_name(branches, static_cast<int>(parts.size()), width));
  }

  void write_parts(const Reduction& reduction, const std::vector<std::vector<int>>& parts,
                   const std::vector<SearchResult>& results) {
    if (std::any_of(results.begin(), results.end(),
                    [](const SearchResult& part) { return part.proof_room < 0; })) {
      proof_room_ = -1;
      return close_proof();
    }
    std::string& text = solution_.certificate.proof;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Cost bound = results[p].lower_bound;
      text.append("part ").append(bound == kForbidden ? "-" : std::to_string(bound));
      for (int node : parts[p]) text.append(" ").append(std::to_string(reduction.core_nodes[node]));
      text += '\n';
      write_proof(results[p].proof, bound, names_of(reduction, parts[p]), text);
    }
    close_proof();
  }

  void take_choice(std::vector<int> choice) {
    solution_.choice = std::move(choice);
    solution_.cost = evaluate(problem_, solution_.choice);
  }

  void finish(Cost lower_bound, std::string method) {
    solution_.method = std::move(method);
    solution_.lower_bound = lower_bound;
    if (lower_bound == kForbidden) {
      solution_.status = Status::kInfeasible;
    } else if (!solution_.choice.empty() || problem_.node_costs.empty()) {
      if (solution_.cost < lower_bound || solution_.cost == kForbidden)
        throw std::logic_error(
            "pbqp: a choice contradicts its own bound; please report this problem");
      solution_.status = solution_.cost == lower_bound ? Status::kOptimal : Status::kFeasible;
    }
    note(solution_.method, lower_bound, solution_.choice.empty() ? kForbidden : solution_.cost);
  }

  void finish_certificate() {
    Certificate& certificate = solution_.certificate;
    const auto holds = [&](const char* word) {
      return certificate.proof.find(word) != std::string::npos;
    };
    using Kind = Certificate::Kind;
    if (certificate.proof.empty())
      certificate.kind = Kind::kNone;
    else
      certificate.kind = holds("branch") ? Kind::kBranches
                         : holds("move") ? Kind::kMessages
                                         : Kind::kElimination;
  }

  void add_marginals(const Restricted& source) {
    note("marginals");
    solution_.marginals =
        find_marginals(source, problem_, solution_, options_.table_cap, deadline_);
    for (std::size_t i = 0; i < solution_.choice.size(); ++i) {
      bool is_fixed = true;
      for (std::size_t a = 0; a < solution_.marginals[i].size(); ++a)
        is_fixed &= static_cast<int>(a) == solution_.choice[i] ||
                    solution_.marginals[i][a].cost > solution_.cost;
      solution_.is_fixed.push_back(is_fixed);
    }
    note("done");
  }

  const Problem& problem_;
  const SolveOptions& options_;
  const Deadline deadline_;
  std::int64_t proof_room_ = options_.proof_cap;  // numbers that the certificate may still have
  Solution solution_;
};

}  // namespace

Solution solve(const Problem& problem, const SolveOptions& options) {
  check_problem(problem);
  return Solver(problem, options).run();
}

}  // namespace torchalgo::pbqp
