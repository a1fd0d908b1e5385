// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cudnn_algo/abi.h"
#include "cudnn_algo/graph.h"
#include "ir/layout.h"
#include "ir/problem.h"
#include "provider/device.h"

namespace torchalgo::cudnn {

/// One number of cudnnConvolutionFwdAlgo_t, cudnnConvolutionBwdDataAlgo_t or
/// cudnnConvolutionBwdFilterAlgo_t.
struct LegacyAlgorithm {
  int number;
  std::string_view word;  // the enumerator's last part: "IMPLICIT_GEMM", "ALGO_0"
  bool is_deterministic = true;
};

/// All numbers of a direction, in order.
[[nodiscard]] std::span<const LegacyAlgorithm> legacy_algorithms(Direction direction);

/// One legacy algorithm with its math type, of any layouts of src and dst.
struct LegacySpec {
  Direction direction = Direction::kForward;
  int number = 0;
  Layout weights = Layout::kNchw;  // kNhwc: krsc, variant ".krsc"
  MathType math = MathType::kDefault;
  auto operator<=>(const LegacySpec&) const = default;
};

/// "cudnn_legacy.fwd": the algorithm of a direction.
[[nodiscard]] std::string_view legacy_algorithm_name(Direction direction);

/// "cudnn_legacy.fwd.1.krsc@fma"; no "@" means CUDNN_DEFAULT_MATH, see math_type().
[[nodiscard]] std::string to_string(const LegacySpec& spec);

/// "@fma"; of CUDNN_DEFAULT_MATH nothing.
[[nodiscard]] std::string_view math_word(MathType math);

/// The inverse of to_string; "@default" is understood too. Nothing for any other text, nor for a
/// number that the direction does not have.
[[nodiscard]] std::optional<LegacySpec> parse_legacy_spec(std::string_view name);

/// The math type to set for `spec` on a problem of this type: its own, but CUDNN_FMA_MATH for the
/// default one on f32, since CUDNN_DEFAULT_MATH may compute in TF32. torch sets the same.
[[nodiscard]] MathType math_type(const LegacySpec& spec, DType dtype);

/// Why this math type does not compute in the problem's type, or is another one's double; nothing:
/// it may be used.
[[nodiscard]] std::optional<std::string> math_refusal(MathType math, DType dtype);

/// Why NVIDIA's documentation (API reference, cuDNN 8 and 9: tables of cudnnConvolutionForward,
/// cudnnConvolutionBackwardData, cudnnConvolutionBackwardFilter, and the enumerators' comments)
/// does not support `conv` by this number in these layouts on a GPU of this ISA; nothing: it does.
/// What a GPU at hand says goes before it.
[[nodiscard]] std::optional<std::string> documented_refusal(const ConvProblem& conv,
                                                            const LegacySpec& spec,
                                                            const Layouts& layouts,
                                                            std::string_view isa);

/// Workspace as documented, a lower bound where cuDNN converts layouts inside; nothing: it is known
/// on the GPU itself only.
[[nodiscard]] std::optional<std::int64_t> documented_workspace(const ConvProblem& conv,
                                                               const LegacySpec& spec);

}  // namespace torchalgo::cudnn
