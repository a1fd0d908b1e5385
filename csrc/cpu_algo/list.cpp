// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/list.h"

#include "cpu_algo/backward_data.h"
#include "cpu_algo/rows.h"

namespace torchalgo {

const Algorithms& cpu_algorithms() {
  static const Algorithms algorithms = {
      cpu::with_backward_data(cpu::conv1x1()),
      cpu::with_backward_data(cpu::direct()),
      cpu::with_backward_data(cpu::stem()),
      cpu::with_backward_data(cpu::im2col_gemm()),
      cpu::with_backward_data(cpu::im2row_gemm()),
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
      cpu::with_backward_data(cpu::winograd_f2x2_3x3()),
      cpu::with_backward_data(cpu::winograd_f4x4_3x3()),
      cpu::with_backward_data(cpu::depthwise()),
      cpu::with_backward_data(cpu::grouped()),
      cpu::conv_chain(),
      cpu::scaled_conv1x1(),
      cpu::squeeze_excite(),
  };
  return algorithms;
}

}  // namespace torchalgo
