// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/algorithm.h"

namespace torchalgo {

/// Returns our own CPU algorithms with the kernels that were built for the instruction set `isa`. A
/// new algorithm is one file that defines it and one line in list.cpp. They have `bind`, and get
/// `prepare` from prepare_with_tensors().
[[nodiscard]] Algorithms cpu_algorithms(const std::string& isa);

namespace cpu {
/// Makes layout.tiled, which is not in the list above: csrc/layout_algo lists changes of layout.
[[nodiscard]] Algorithm tiled(const std::string& isa);
}  // namespace cpu

/// A file of this folder, and what the function that it defines returns.
struct AlgorithmFile {
  std::string_view name;   // of the function, and of the file without ".cpp"
  bool is_family = false;  // the function returns Algorithms, not one Algorithm
  Algorithms algorithms;
};

/// Returns the algorithms of cpu_algorithms() by file, for who takes some of the files only. They
/// do not serve models in bf16.
[[nodiscard]] std::vector<AlgorithmFile> cpu_algorithm_files(const std::string& isa);

}  // namespace torchalgo
