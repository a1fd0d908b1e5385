// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ir/algorithm.h"
#include "ir/candidates.h"
#include "ir/graph.h"
#include "ir/plan.h"
#include "ir/schedule.h"
#include "provider/find_candidates.h"
#include "provider/kernel.h"
#include "provider/memory.h"
#include "provider/run_prepared.h"

namespace torchalgo {

/// Returns the candidates of a graph of training_graph() that a region can run: all but views of
/// concatenations, which share memory, and chains of several layers.
[[nodiscard]] Candidates training_candidates(const Graph& graph, const Algorithms& algorithms,
                                             const Device& device, const CandidateOptions& options);

/// The parameters of one node, as positions in the list of all parameters; -1: it has none.
struct NodeParameters {
  int weights = -1, bias = -1;
};

/// The running statistics of one batch norm, which a run updates: new = (1 - factor) * old + factor
/// * that of the batch.
struct RunningStatistics {
  int node = -1;  // the node of the moments
  at::Tensor mean, var;
  double factor = 0.1;
};

/// A tensor that the forward pass keeps for the gradients.
struct SavedTensor {
  std::string value;  // its name in the graph
  Layout layout = Layout::kNchw;
  std::int64_t bytes = 0;  // with the padding of blocked layouts
};

/// A part of a model that is trained: its forward pass and its gradients, run by the primitives of
/// one plan. It is one node of autograd. Parameters are inputs of each run, so it sees all changes
/// of them. Runs in several threads at once are safe.
class TrainingRegion {
 public:
  /// @param forward  the forward pass. Batch norms are pairs of nodes, kMoments and kNormalize.
  /// @param wanted  the values among forward.inputs that may need a gradient.
  /// @param recomputed  as in training_graph().
  /// @param candidates, plan  of training_graph(forward, wanted, recomputed).
  /// @param parameters  for each node of `forward`.
  /// @param device  where it runs.
  /// @throws Error  if the plan is not one of these candidates, or if a node cannot be run.
  TrainingRegion(const Graph& forward, const std::vector<int>& wanted,
                 const std::vector<int>& recomputed, const Candidates& candidates, const Plan& plan,
                 std::vector<NodeParameters> parameters, const Device& device);

  /// Returns the outputs of the forward pass, in nchw. Autograd records the run as one node, if it
  /// is enabled and an input or a parameter requires a gradient.
  /// @param inputs  f32 tensors of the planned sizes, on the device.
  [[nodiscard]] static std::vector<at::Tensor> run(
      const std::shared_ptr<TrainingRegion>& region, std::vector<at::Tensor> inputs,
      const std::vector<at::Tensor>& parameters, const std::vector<RunningStatistics>& statistics);

  /// Returns the tensors that a run keeps for the gradients, without the inputs of the region.
  [[nodiscard]] std::vector<SavedTensor> saved() const;

 private:
  friend struct RegionFunction;

  /// A step of the schedule that is ready to run.
  struct Step {
    Kernel kernel;
    std::vector<int> src;  // slots of the schedule, the residual last
    bool has_residual = false;
    int dst = -1;
    ResultForm form;  // of dst
    NodeParameters parameters;
    int node = -1;      // of the graph; -1: a change of layout
    std::string label;  // for profilers: primitive and node, or value
  };
  /// A gradient that the steps compute: its slot, the place of its tensor among inputs and
  /// parameters, and the part of [parts, c, 1, 1] that it is; -1: all.
  struct Gradient {
    int slot, place, part;
  };
  using Tensors = std::vector<at::Tensor>;  // per slot; undefined ones do not exist (any more)

  /// Returns the GPU to make current for a run; nothing if it runs on a CPU.
  [[nodiscard]] std::optional<at::Device> gpu() const {
    return where_.is_cuda() ? std::optional(where_) : std::nullopt;
  }
  [[nodiscard]] std::int64_t saved_bytes() const;
  [[nodiscard]] int gradient_slot(int output) const;
  void add_step(const Schedule::Step& step, const Candidates& candidates);
  [[nodiscard]] NodeParameters parameters_of(int node) const;
  [[nodiscard]] int owner_of(int node) const;
  void find_saved();
  void mark_dependent();
  void list_gradients();

  void run_step(const Step& step, Tensors& tensors, std::span<const at::Tensor> parameters) const;
  bool prepare_gradients(const Step& step, Tensors& tensors) const;
  [[nodiscard]] std::vector<bool> needing_gradient(std::span<const at::Tensor> tensors) const;
  void drop_read(std::size_t step, Tensors& tensors, const std::set<int>& kept) const;
  [[nodiscard]] Tensors run_forward(const std::vector<at::Tensor>& inputs,
                                    std::span<const at::Tensor> parameters,
                                    const std::vector<RunningStatistics>& statistics,
                                    bool keeps_saved) const;
  [[nodiscard]] std::vector<at::Tensor> outputs_of(const Tensors& tensors) const;
  /// Returns the gradients of inputs and parameters where `needs` is true.
  [[nodiscard]] std::vector<at::Tensor> run_backward(Tensors tensors,
                                                     std::span<const at::Tensor> parameters,
                                                     const std::vector<bool>& needs) const;
  /// Returns the parameters that are kept for the gradients; those that are not are undefined. The
  /// weights are kept themselves: if they are changed in place meanwhile, the backward pass fails
  /// as in PyTorch. PyTorch keeps no bias, so a bias that is read again is kept as a copy.
  [[nodiscard]] std::vector<at::Tensor> kept_parameters(
      std::span<const at::Tensor> parameters) const;
  [[nodiscard]] std::vector<bool> steps_for(const std::vector<bool>& needs) const;
  Device device_;
  at::Device where_;  // as torch calls it
  Graph graph_;
  int inputs_ = 0, forward_nodes_ = 0, forward_outputs_ = 0;
  std::vector<NodeParameters> parameters_;
  std::vector<int> wanted_;
  std::vector<Gradient> gradients_;
  std::vector<int> output_gradients_;  // slots, per output of the forward pass
  Schedule schedule_;
  std::vector<Step> steps_;  // of the schedule
  std::optional<KeptMemory> kept_;
  std::vector<bool> depends_on_loss_;  // per slot
  std::vector<int> saved_;             // slots that the forward steps keep for the others
};

}  // namespace torchalgo
