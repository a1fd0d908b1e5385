// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runner/graph_runner.h"
#include "runner/weight_watch.h"

namespace torchalgo {

/// The sizes for which a program is right in one dimension of an input.
struct SizeLimits {
  std::int64_t variable = -1;  // dimensions of the same variable must be equal; -1: none
  std::int64_t least = 0;
  std::int64_t most = -1;  // -1: no limit
};

/// A result of a program for the planned inputs.
struct PlannedResult {
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType dtype = at::kFloat;
};

/// A program that was planned for certain input shapes.
struct PlanPart {
  std::shared_ptr<const GraphRunner> runner;
  std::vector<std::vector<SizeLimits>> dims;  // per input and dimension; empty: all sizes
  std::vector<PlannedResult> results;         // all tensors of the result, flat
};

/// An optimized model as one object: its plans with their weights. The op torchalgo::run_plan runs
/// it. It is the class torch.classes.torchalgo.Plan, and a .pt2 file holds one. Calls from several
/// threads at once are safe.
///
/// A call runs the part whose planned shapes are nearest to those of its inputs, as
/// python/torchalgo/_capture/shapes.py describes, among the parts that are right for its sizes.
class PlanObject : public torch::CustomClassHolder {
 public:
  /// @param weights  the weights of the model from which the plans were packed; null if there is no
  ///     model, as after loading a file.
  /// @throws Error  if there is no part, or if parts take different numbers of inputs.
  explicit PlanObject(std::vector<PlanPart> parts,
                      std::shared_ptr<const WeightWatch> weights = nullptr);

  /// Returns all tensors of the model's result. They are new: none is memory of an input, of a
  /// weight or of another result.
  /// @throws Error  if no part is right for the inputs' sizes, or from planned ops.
  [[nodiscard]] std::vector<at::Tensor> run(at::TensorList inputs) const;
  /// Returns the same tensors without data, on the meta device. Sizes and strides are exact for
  /// contiguous inputs of planned shapes. For others the sizes are right. Symbolic sizes become
  /// numbers, see on_meta().
  [[nodiscard]] std::vector<at::Tensor> run_on_meta(at::TensorList inputs) const;

  [[nodiscard]] const std::vector<PlanPart>& parts() const { return parts_; }

  /// Returns a number by which find() finds this object in this process while it exists. Compilers
  /// that cannot hold objects as constants hold the number. It is random, so that code which a
  /// compiler keeps on disk never finds the plan of another process.
  [[nodiscard]] std::int64_t handle();
  /// @throws Error  if there is no such object, or no more.
  [[nodiscard]] static c10::intrusive_ptr<PlanObject> find(std::int64_t handle);

  /// @throws Error  if the model has changed since it was packed (see WeightWatch).
  void check_weights() const;

  /// Returns everything as plain data for a file.
  [[nodiscard]] c10::IValue state() const;
  /// @throws Error  if the data is damaged, is of a later version, or has ops that this PyTorch
  /// lacks.
  [[nodiscard]] static c10::intrusive_ptr<PlanObject> from_state(const c10::IValue& state);

  /// Frees the plans when only the table of handles refers to this object. c10 calls it.
  void release_resources() override;

 private:
  [[nodiscard]] const PlanPart& part_for(const std::vector<at::Tensor>& inputs) const;

  std::vector<PlanPart> parts_;
  std::shared_ptr<const WeightWatch> weights_;
  std::int64_t handle_ = 0;  // 0: none yet; guarded by the mutex of all handles
};

/// Returns true if there is a part, and all parts take and return the same numbers of tensors.
[[nodiscard]] bool have_equal_forms(const std::vector<PlanPart>& parts);

/// Returns a part for a module. Runs it once for zeros, which gives the form of its results.
/// @throws Error  if the module is more than a sequence of ops (see read_program), returns anything
/// but tensors, or fails for zeros.
[[nodiscard]] PlanPart make_plan_part(const torch::jit::Module& module,
                                      std::vector<PlannedInput> planned,
                                      std::vector<std::vector<SizeLimits>> dims, at::Device device);

}  // namespace torchalgo
