// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Macros to build each kernel once per instruction set. A header of this folder declares its
// functions with TORCHALGO_DECLARE_KERNEL. The source defines them in namespace TORCHALGO_ISA and
// everything else in an anonymous namespace. An algorithm selects the build to run with
// TORCHALGO_PICK_KERNEL.

#include <string_view>

#define TORCHALGO_DECLARE_KERNEL(...) \
  namespace default_isa {             \
  __VA_ARGS__;                        \
  }                                   \
  namespace avx2_isa {                \
  __VA_ARGS__;                        \
  }                                   \
  namespace avx512_isa {              \
  __VA_ARGS__;                        \
  }

namespace torchalgo::kernels {

/// Returns the function of the build for `isa`: "avx512", "avx2", or the default build for any
/// other text.
#define TORCHALGO_PICK_KERNEL(isa, name)                                         \
  ((isa) == std::string_view("avx512") ? &::torchalgo::kernels::avx512_isa::name \
   : (isa) == std::string_view("avx2") ? &::torchalgo::kernels::avx2_isa::name   \
                                       : &::torchalgo::kernels::default_isa::name)

}  // namespace torchalgo::kernels
