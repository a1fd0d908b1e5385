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
#include "ir/device.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// An enumerator of cudnnConvolutionFwdAlgo_t, cudnnConvolutionBwdDataAlgo_t or
/// cudnnConvolutionBwdFilterAlgo_t.
struct LegacyAlgorithm {
  int number;
  std::string_view word;  // the enumerator's last part: "IMPLICIT_GEMM", "ALGO_0"
  bool is_deterministic = true;
};

/// Returns all algorithms of a direction, in the order of their numbers.
[[nodiscard]] std::span<const LegacyAlgorithm> legacy_algorithms(Direction direction);

/// A legacy algorithm with its math type. It is the part of a primitive that its name describes,
/// without the layouts of src and dst.
struct LegacySpec {
  Direction direction = Direction::kForward;
  int number = 0;
  Layout weights = Layout::kNchw;  // kNhwc: krsc, variant ".krsc"
  MathType math = MathType::kDefault;
  auto operator<=>(const LegacySpec&) const = default;
};

/// Returns the name of a direction's algorithm: "cudnn_legacy.fwd".
[[nodiscard]] std::string_view legacy_algorithm_name(Direction direction);

/// Returns the primitive's name: "cudnn_legacy.fwd.1.krsc@fma". A name without "@" means
/// CUDNN_DEFAULT_MATH, see math_type().
[[nodiscard]] std::string to_string(const LegacySpec& spec);

/// Returns the suffix of a math type, such as "@fma". It is empty for CUDNN_DEFAULT_MATH.
[[nodiscard]] std::string_view math_word(MathType math);

/// Reads the name of a primitive, as to_string() writes it; "@default" is accepted too. Returns
/// nullopt for any other text, and for a number that the direction does not have.
[[nodiscard]] std::optional<LegacySpec> parse_legacy_spec(std::string_view name);

/// Returns the math type to set for `spec` on a problem of this type. It is that of `spec`, except
/// that the default becomes CUDNN_FMA_MATH for f32, since CUDNN_DEFAULT_MATH may compute in TF32.
/// Torch sets the same.
[[nodiscard]] MathType math_type(const LegacySpec& spec, DType dtype);

/// Returns the reason why this math type does not compute in the problem's type, or is equivalent
/// to another one. Returns nullopt if it may be used.
[[nodiscard]] std::optional<std::string> math_refusal(MathType math, DType dtype);

/// Returns the reason why NVIDIA's documentation does not support `conv` with this number in these
/// layouts on a GPU of this ISA. Returns nullopt if it does. The answer of an available GPU takes
/// precedence. Source: API reference of cuDNN 8 and 9, tables of cudnnConvolutionForward,
/// cudnnConvolutionBackwardData and cudnnConvolutionBackwardFilter, and the comments of the
/// enumerators.
[[nodiscard]] std::optional<std::string> documented_refusal(const ConvProblem& conv,
                                                            const LegacySpec& spec,
                                                            const Layouts& layouts,
                                                            std::string_view isa);

/// Returns the documented workspace in bytes, which is a lower bound if cuDNN converts layouts
/// inside. Returns nullopt if only the GPU itself can tell.
[[nodiscard]] std::optional<std::int64_t> documented_workspace(const ConvProblem& conv,
                                                               const LegacySpec& spec);

}  // namespace torchalgo::cudnn
