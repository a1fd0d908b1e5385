// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "planner/make_plan.h"

namespace torchalgo::planner_test {

/// The arguments of make_plan.
struct Sample {
  Graph graph;
  Candidates candidates;
  std::vector<Candidate> transforms;
  CostTable costs;
};

/// Builds data flows of 1x1 convolutions, additions, ReLUs, concatenations and opaque ops on
/// tensors [1, c, 4, 4]. Each function adds one node and returns its result's value.
class FlowBuilder {
 public:
  explicit FlowBuilder(std::string prefix = "") : prefix_(std::move(prefix)) {}

  int input(std::int64_t channels, Layout layout = Layout::kNchw);
  int conv(int src, std::int64_t k);
  int add(int a, int b);
  int relu(int src);
  int concat(const std::vector<int>& parts);
  int opaque(const std::vector<int>& sources, std::int64_t channels);
  /// Adds an opaque node that reads the shape of `src` only. It has no result.
  void ask_shape(int src);
  void output(int value) { graph_.outputs.push_back(value); }

  [[nodiscard]] std::int64_t channels(int value) const { return graph_.values[value].sizes[1]; }
  [[nodiscard]] const Graph& graph() const { return graph_; }

 private:
  int new_value(std::int64_t channels, int producer);
  int new_node(const std::string& kind, const std::vector<int>& inputs,
               std::optional<Problem> problem, std::int64_t channels);

  std::string prefix_;
  Graph graph_;
};

/// Every chain that one kernel may compute: a convolution or addition with what follows it.
[[nodiscard]] std::vector<std::vector<int>> chains_from(const Graph& graph, int anchor);

/// A candidate for `covers`; its problem and inputs follow from the graph.
[[nodiscard]] Candidate candidate(const Graph& graph, const std::vector<int>& covers,
                                  const std::string& name, Layout src, Layout dst);

/// Fills in transforms ("test.copy" and "test.move" for every needed pair that `has` admits) and
/// draws every missing cost from `draw`.
void add_transforms_and_costs(Sample& sample, const std::function<Ticks()>& draw,
                              const std::function<bool(Layout, Layout)>& has = nullptr);

struct RandomSizes {
  int nodes = 7;
  int extra_candidates = 2;  // per node beside the plain one
  Ticks max_cost = 40;       // small, so that ties are common
};

/// A random data flow with random candidates, some of them fused, and costs.
[[nodiscard]] Sample random_sample(std::mt19937_64& random, const RandomSizes& sizes = {});

/// The same for the training graph of a random data flow.
[[nodiscard]] Sample random_training_sample(std::mt19937_64& random, const RandomSizes& sizes = {});

/// The whole sample in text, for failure messages.
[[nodiscard]] std::string describe(const Sample& sample);

}  // namespace torchalgo::planner_test
