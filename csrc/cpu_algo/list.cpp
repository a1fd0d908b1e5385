// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/list.h"

#include <utility>

#include "cpu_algo/bf16_models.h"

// The algorithms, one line each, in the order in which they are listed. NAME stands for the
// function NAME(isa), which NAME.cpp defines: it returns an Algorithm, or all Algorithms of a
// family. cpu.fft, which calls torch, is in aten_algo.
// clang-format off
#define TORCHALGO_CPU_ALGORITHMS(ALGORITHM, FAMILY) \
  ALGORITHM(conv1x1)        \
  ALGORITHM(strassen_1x1)   \
  ALGORITHM(direct)         \
  ALGORITHM(stem)           \
  ALGORITHM(bf16_conv)      \
  ALGORITHM(im2col_gemm)    \
  ALGORITHM(im2row_gemm)    \
  ALGORITHM(pool)           \
  FAMILY(eltwise)           \
  ALGORITHM(scale_shift)    \
  ALGORITHM(layer_norm)     \
  ALGORITHM(group_norm)     \
  ALGORITHM(concat)         \
  ALGORITHM(slice)          \
  ALGORITHM(shuffle)        \
  ALGORITHM(pixel_shuffle)  \
  ALGORITHM(resize)         \
  ALGORITHM(linear)         \
  FAMILY(attention)         \
  ALGORITHM(depthwise)      \
  ALGORITHM(grouped)        \
  ALGORITHM(conv_chain)     \
  ALGORITHM(bf16_chain)     \
  ALGORITHM(scaled_conv1x1) \
  ALGORITHM(squeeze_excite) \
  ALGORITHM(winograd_f4x4_3x3_nhwc) \
  ALGORITHM(winograd_backward_filter) \
  ALGORITHM(outer_product) \
  FAMILY(padded_backward_filter) \
  FAMILY(winograd)          \
  FAMILY(batch_norm)        \
  ALGORITHM(bwd_pool)
// clang-format on

namespace torchalgo {
namespace cpu {

#define DECLARE_ALGORITHM(name) Algorithm name(const std::string& isa);
#define DECLARE_FAMILY(name) Algorithms name(const std::string& isa);
TORCHALGO_CPU_ALGORITHMS(DECLARE_ALGORITHM, DECLARE_FAMILY)

}  // namespace cpu

std::vector<AlgorithmFile> cpu_algorithm_files(const std::string& isa) {
  std::vector<AlgorithmFile> files;
#define ADD_ALGORITHM(name) files.push_back({#name, false, {cpu::name(isa)}});
#define ADD_FAMILY(name) files.push_back({#name, true, cpu::name(isa)});
  TORCHALGO_CPU_ALGORITHMS(ADD_ALGORITHM, ADD_FAMILY)
  return files;
}

Algorithms cpu_algorithms(const std::string& isa) {
  Algorithms list;
  for (AlgorithmFile& file : cpu_algorithm_files(isa)) {
    for (Algorithm& algorithm : file.algorithms) list.push_back(std::move(algorithm));
  }
  for (Algorithm& algorithm : list) cpu::serve_bf16_models(algorithm);
  return list;
}

}  // namespace torchalgo
