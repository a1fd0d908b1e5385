// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/traits.h"

#include <algorithm>
#include <string_view>

namespace torchalgo::cudnn {
namespace {

struct NumericWord {
  NumericalNote note;
  std::string_view word;
};
// The words for numerical notes. Nondeterminism is missing, because it is a trait of its own.
constexpr NumericWord kWords[] = {
    {NumericalNote::kTensorCore, "tensor_core"},
    {NumericalNote::kDownConvertInputs, "down_convert_inputs"},
    {NumericalNote::kReducedPrecisionReduction, "reduced_precision_reduction"},
    {NumericalNote::kFft, "fft"},
    {NumericalNote::kWinograd, "winograd"},
    {NumericalNote::kWinogradTile4x4, "winograd_4x4"},
    {NumericalNote::kWinogradTile6x6, "winograd_6x6"},
    {NumericalNote::kWinogradTile13x13, "winograd_13x13"},
    {NumericalNote::kStrictNanProp, "strict_nan_prop"},
};

}  // namespace

Traits traits_of(const EngineNotes& notes) {
  Traits traits;
  traits.is_deterministic = !has(notes, NumericalNote::kNondeterministic);
  traits.is_runtime_compiled = has(notes, BehaviorNote::kRuntimeCompilation);
  traits.hidden_bytes = std::nullopt;
  traits.is_enumerated = true;
  for (const auto& [note, word] : kWords) {
    if (has(notes, note)) traits.numerics.emplace_back(word);
  }
  return traits;
}

}  // namespace torchalgo::cudnn
