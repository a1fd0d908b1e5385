// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// How a kernel exists once per instruction set. A header of this folder declares its functions with
// TORCHALGO_DECLARE_KERNEL; the source defines them in namespace TORCHALGO_ISA; everything else in
// a source is in an anonymous namespace. A row takes the build that runs with
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

/// The function of the build for `isa` ("avx512", "avx2", anything else: default).
#define TORCHALGO_PICK_KERNEL(isa, name)                                         \
  ((isa) == std::string_view("avx512") ? &::torchalgo::kernels::avx512_isa::name \
   : (isa) == std::string_view("avx2") ? &::torchalgo::kernels::avx2_isa::name   \
                                       : &::torchalgo::kernels::default_isa::name)

}  // namespace torchalgo::kernels
