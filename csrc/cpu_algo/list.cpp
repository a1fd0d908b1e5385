// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/list.h"

#include <iterator>

#include "cpu_algo/backward_data.h"
#include "cpu_algo/kernels/winograd.h"
#include "cpu_algo/rows.h"

namespace torchalgo {

namespace {

Algorithms make_list() {
  Algorithms algorithms = {
      cpu::with_backward_data(cpu::conv1x1()),
      cpu::with_backward_data(cpu::strassen1x1()),
      cpu::with_backward_data(cpu::direct()),
      cpu::with_backward_data(cpu::stem()),
      cpu::with_backward_data(cpu::im2col_gemm()),
      cpu::with_backward_data(cpu::im2row_gemm()),
      cpu::with_backward_data(cpu::fft()),
      cpu::pool(),
      cpu::add(),
      cpu::mul(),
      cpu::activation(),
      cpu::scale_shift(),
      cpu::concat(),
      cpu::slice(),
      cpu::shuffle(),
      cpu::resize(),
      cpu::linear(),
      cpu::with_backward_data(cpu::depthwise()),
      cpu::with_backward_data(cpu::grouped()),
      cpu::conv_chain(),
      cpu::scaled_conv1x1(),
      cpu::squeeze_excite(),
  };
  for (int index = 0; index < static_cast<int>(std::size(kernels::kWinogradTiles)); ++index)
    algorithms.push_back(cpu::with_backward_data(cpu::winograd(index)));
  return algorithms;
}

}  // namespace

const Algorithms& cpu_algorithms() {
  static const Algorithms algorithms = make_list();
  return algorithms;
}

}  // namespace torchalgo
