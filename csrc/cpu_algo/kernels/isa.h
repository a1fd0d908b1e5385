// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// How a kernel exists once per instruction set. A header of this folder declares its functions
// inside TORCHALGO_FOR_EACH_ISA's namespaces; the source defines them in namespace TORCHALGO_ISA;
// everything else in a source is in an anonymous namespace. A row calls pick(isa, default, avx2,
// avx512) once.

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
