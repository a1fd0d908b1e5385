// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/refusal.h"

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "cudnn_algo/graph.h"

namespace torchalgo::cudnn {
namespace {

// Returns the short name of a status: "ARCH_MISMATCH" for
// "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH".
std::string short_name(const Api& api, Status status) {
  const char* name = api.get_error_string ? api.get_error_string(status) : nullptr;
  std::string_view text = name == nullptr ? "unknown status" : name;
  for (const std::string_view prefix : {"CUDNN_STATUS_", "NOT_SUPPORTED_"}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  return std::string(text);
}

std::string plain_words(Status status, std::string_view isa) {
  switch (status) {
    case kNotSupportedArchMismatch:
      return isa.empty() ? "not for this GPU" : fmt::format("not for this GPU ({})", isa);
    case kNotSupportedRuntimePrerequisiteMissing:
      return "compiled at run time, which needs the CUDA driver (libcuda) on the machine that "
             "asks; "
             "whether it runs is unknown here";
    case kNotSupportedGraphPattern:
      return "not for this pattern of operations";
    case kNotSupportedShape:
      return "not for these sizes";
    case kNotSupportedDataType:
      return "not for this data type";
    case kNotSupportedLayout:
      return "not for these layouts";
    case kNotSupportedPadding:
      return "not for this padding";
    case kNotSupportedSharedMemoryInsufficient:
      return "needs more shared memory than this GPU has";
    case kNotSupportedIncompatibleCudaDriver:
      return "needs another CUDA driver";
    case kNotSupportedIncompatibleCudart:
      return "needs another CUDA runtime";
    case kNotSupportedSublibraryUnavailable:
      return "needs a library of cuDNN that is missing";
    case kExecutionFailedCudaDriver:
      return "the CUDA driver (libcuda) does not load its code: is there a GPU, and is the driver "
             "new enough?";
    default:
      break;
  }
  return status / 1000 == 3 ? "not for this problem" : "cuDNN failed";
}

bool fits_int(const std::vector<std::int64_t>& sizes) {
  constexpr std::int64_t kLimit = std::numeric_limits<int>::max();
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size > kLimit || count * size > kLimit) return false;  // both factors below 2^31
    count *= size;
  }
  return true;
}

}  // namespace

std::string refusal_text(const Api& api, Status status, std::string_view isa) {
  return fmt::format("{}: {} ({})", plain_words(status, isa), short_name(api, status), status);
}

std::optional<std::string> size_refusal(const ConvProblem& conv) {
  const ConvShape shape = shape_of(conv);
  for (const auto& sizes : {shape.src, shape.weights, shape.dst}) {
    if (!fits_int(sizes)) return "takes tensors of less than 2^31 elements";
  }
  return std::nullopt;
}

std::optional<std::string> numeric_refusal(const EngineNotes& notes, DType dtype) {
  if (has(notes, NumericalNote::kDownConvertInputs)) {
    return fmt::format("rounds its inputs to 16 bits (DOWN_CONVERT_INPUTS), the problem is {}",
                       to_string(dtype));
  }
  if (has(notes, NumericalNote::kReducedPrecisionReduction)) {
    return fmt::format("adds up in 16 bits (REDUCED_PRECISION_REDUCTION), the problem is {}",
                       to_string(dtype));
  }
  if (dtype == DType::kF32 && has(notes, NumericalNote::kTensorCore)) {
    return "computes in TF32 (TENSOR_CORE), the problem is f32: say tf32 to allow it";
  }
  return std::nullopt;
}

}  // namespace torchalgo::cudnn
