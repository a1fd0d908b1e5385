// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fork_mutex.h"
#include "ops/fallback.h"
#include "ops/relayout.h"
#include "provider/run_prepared.h"

namespace torchalgo {

/// The state of a planned op in a file. The weights are the model's own tensors in kcrs, which are
/// not copied.
struct OpState {
  std::string problem;    // with the epilogue
  std::string primitive;  // name
  std::string src, dst;   // layouts
  std::string layer;      // for messages and counters
  Weights weights;
};

/// A part of a larger tensor into which an op writes its result. The part begins at channel
/// `channel` of `buffer`, which has the layout of the op's result.
struct ResultPart {
  at::Tensor buffer;
  std::int64_t channel = 0;
};

/// A planned op that can run: a problem, the primitive chosen for it, and its weights.
///
/// The weights are packed for the planned input sizes when the op is made, so that a call only
/// compares sizes and runs. For inputs of other sizes, another number of threads or another
/// machine, resolve() decides again, and its result is cached for the next call. Calls from several
/// threads at once are safe.
///
/// It runs on the device of its weights, CPU or GPU; an op without weights runs on the device of
/// its inputs.
class PlannedOp {
 public:
  /// @throws Error  if a text of `state` is not a problem or a layout, or if the weights do not
  /// fit.
  PlannedOp(OpState state, const Algorithms& algorithms);

  /// @param src  data inputs in the planned src layout. A strided input may have any strides.
  /// @param residual  in the planned dst layout. It is defined if and only if the epilogue adds
  /// one.
  /// @param part  the memory of the result, or null for a new tensor. The result is also a new
  /// tensor if its size differs from the part's, or if a fallback allocates its own tensor.
  /// @param size  the height and the width of the result of a resizing or an adaptive pooling.
  /// Empty: those of the plan, or what a factor makes of the input's.
  /// @return  the result in the planned dst layout. It is [n, k, q] for an [n, c, w] input, which
  /// is accepted if every tensor of the plan has h = 1.
  /// For inputs on the meta device, the result has the same sizes and strides and no data. Symbolic
  /// sizes become numbers, see on_meta().
  /// @throws Error  if an input does not fit or lies on another device than the weights; if the
  /// planned primitive cannot run and is_strict() is true.
  [[nodiscard]] at::Tensor run(std::span<const at::Tensor> src, const at::Tensor& residual,
                               const ResultPart* part = nullptr, at::IntArrayRef size = {}) const;

  /// Returns the bytes of the packed weights, without the model's own. A call with other input
  /// sizes or another number of threads may add some.
  [[nodiscard]] std::int64_t packed_bytes() const;

  [[nodiscard]] const OpState& state() const { return state_; }
  [[nodiscard]] bool has_residual() const { return has_residual_; }

 private:
  using Sizes = std::vector<std::int64_t>;

  // A resolved choice for one set of input sizes, one size of the result if the call gives it, one
  // device, and on a CPU one number of threads; immutable.
  struct Execution {
    Resolution resolution;
    std::shared_ptr<const Packed> packed;
    int threads = 1;                  // 0 on a GPU: any number
    std::vector<Sizes> sizes;         // logical, of the inputs
    std::vector<TensorShape> inputs;  // in memory; the residual last
    ResultForm dst;                   // of the algorithm's result
    const Execution* next = nullptr;  // of the planned ones
  };
  using ExecutionPtr = std::shared_ptr<const Execution>;

  // Inputs with the rank of the problem and the strides of the plan.
  struct Inputs {
    std::vector<at::Tensor> src;
    at::Tensor residual;
    std::vector<Sizes> sizes;
  };

  // Returns the device of the first weights; nullopt if there are none.
  [[nodiscard]] std::optional<at::Device> weights_device() const;
  void check_weights(const Problem& layer, LayerWeights& own) const;
  void prepare();
  void warn_of_fallback(const Execution& execution) const;
  [[nodiscard]] bool fits(const Execution& execution, std::span<const at::Tensor> src,
                          const at::Tensor& residual, at::IntArrayRef size) const;
  [[nodiscard]] at::Tensor run_unusual(std::span<const at::Tensor> src, const at::Tensor& residual,
                                       const ResultPart* part, at::IntArrayRef size) const;
  [[nodiscard]] TensorShape result_shape(std::vector<Sizes> sizes, at::IntArrayRef size) const;
  [[nodiscard]] at::Tensor run_on_meta(const Inputs& inputs, const ResultPart* part,
                                       at::IntArrayRef size) const;
  [[nodiscard]] Inputs read_inputs(std::span<const at::Tensor> src,
                                   const at::Tensor& residual) const;
  void check_device(const at::Tensor& tensor, at::Device device) const;
  // Repeats inputs of size 1 as ATen does. Inputs that had equal sizes when the plan was made may
  // differ now: one of them may have a batch or an image of size 1.
  void broadcast(Inputs& inputs) const;
  [[nodiscard]] Sizes logical_sizes(const at::Tensor& tensor, std::size_t index,
                                    Layout layout) const;
  [[nodiscard]] at::Tensor read_input(const at::Tensor& tensor, std::size_t index,
                                      Layout layout) const;
  [[nodiscard]] Problem problem_for(const std::vector<Sizes>& sizes, at::IntArrayRef size) const;
  [[nodiscard]] Problem resized(const Problem& problem, const std::vector<Sizes>& sizes) const;
  [[nodiscard]] ExecutionPtr find_or_make_execution(const std::vector<Sizes>& sizes,
                                                    at::IntArrayRef size, at::Device device) const;
  [[nodiscard]] std::shared_ptr<Execution> make_execution(const std::vector<Sizes>& sizes,
                                                          at::IntArrayRef size,
                                                          at::Device device) const;
  [[nodiscard]] std::shared_ptr<const Packed> find_packed(const Execution& execution) const;
  [[nodiscard]] at::Tensor execute(const Execution& execution, std::span<const at::Tensor> src,
                                   const at::Tensor& residual, const ResultPart* part) const;
  [[nodiscard]] at::Tensor run_kernel(const Execution& execution, std::span<const at::Tensor> src,
                                      const at::Tensor& residual, const ResultPart* part) const;
  [[nodiscard]] at::Tensor run_aten(const Execution& execution, std::span<const at::Tensor> src,
                                    const at::Tensor& residual) const;

  // Counts the ops that exist. The memory of results is kept for the next call until the last op is
  // destroyed.
  struct Alive {
    Alive();
    ~Alive();
  };

  Alive alive_;  // first, so that it ends last
  OpState state_;
  const Algorithms* algorithms_;
  Problem problem_;
  Primitive planned_primitive_;
  Layout from_ = Layout::kNchw;  // of the data inputs
  Layout to_ = Layout::kNchw;    // of the result and the residual
  Weights weights_;              // rank of the problem, dense
  std::vector<Sizes> planned_sizes_;
  at::ScalarType dtype_ = at::kFloat;       // of the model
  at::ScalarType from_dtype_ = at::kFloat;  // of the data inputs in memory
  at::ScalarType to_dtype_ = at::kFloat;    // of the result and the residual in memory
  bool has_residual_ = false;
  bool may_be_1d_ = false;

  // Executions for the planned sizes, one per device and number of threads, read without a lock:
  // they are only added, and live as long as the op.
  mutable std::atomic<const Execution*> planned_ = nullptr;
  mutable std::atomic<bool> is_prepared_ = false;      // a fallback was warned of
  mutable ForkMutex mutex_{ForkMutex::Level::kOuter};  // guards the two below
  mutable std::vector<ExecutionPtr> planned_owners_;
  mutable std::list<ExecutionPtr> others_;  // the latest used first
};

}  // namespace torchalgo
