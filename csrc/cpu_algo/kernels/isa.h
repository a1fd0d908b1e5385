// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The table of instruction sets, and macros to build each kernel once per instruction set. A header
// of this folder declares its functions with TORCHALGO_DECLARE_KERNEL. The source defines them in
// namespace TORCHALGO_ISA and everything else in an anonymous namespace. An algorithm selects the
// build to run with TORCHALGO_PICK_KERNEL. provider/cpu_device decides which set this machine uses.

#include <string_view>

// Calls X(name, capability, has_wide_registers, ...) for each instruction set but the default one,
// the widest first: a processor with one of them has the sets below it. `capability` is what
// at::get_cpu_capability() returns. Wide registers are 32 of 16 floats, else there are 16 of 8. The
// compiler's flags are in flags.cmake. A build for another architecture, or with
// TORCHALGO_ONLY_DEFAULT_ISA, has only the default set.
#if defined(__x86_64__) && !defined(TORCHALGO_ONLY_DEFAULT_ISA)
#define TORCHALGO_EACH_OTHER_ISA(X, ...) \
  X(avx512, "AVX512", true, __VA_ARGS__) \
  X(avx2, "AVX2", false, __VA_ARGS__)
#else
#define TORCHALGO_EACH_OTHER_ISA(X, ...)
#endif
#define TORCHALGO_EACH_ISA(X, ...)         \
  TORCHALGO_EACH_OTHER_ISA(X, __VA_ARGS__) \
  X(default, "DEFAULT", false, __VA_ARGS__)

#define TORCHALGO_DECLARE_IN(name, capability, has_wide_registers, ...) \
  namespace name##_isa {                                                \
    __VA_ARGS__;                                                        \
  }
#define TORCHALGO_DECLARE_KERNEL(...) TORCHALGO_EACH_ISA(TORCHALGO_DECLARE_IN, __VA_ARGS__)

#define TORCHALGO_PICK_IN(name, capability, has_wide_registers, isa, kernel) \
  (isa) == std::string_view(#name) ? &::torchalgo::kernels::name##_isa::kernel:
/// Returns the function of the build for `isa`, a name of the table, or the default build for any
/// other text.
#define TORCHALGO_PICK_KERNEL(isa, kernel)                                            \
  (static_cast<void>(isa), TORCHALGO_EACH_OTHER_ISA(TORCHALGO_PICK_IN, isa, kernel) & \
                               ::torchalgo::kernels::default_isa::kernel)

// Some functions have two more builds, for processors that multiply numbers of bf16: tiles of them
// with AMX ("amx"), or pairs with AVX512_BF16 ("avx512bf16"). Both round with AVX512_BF16.
// `bf16_isa` is one of these names, or another text for none of them.
#if defined(__x86_64__) && !defined(TORCHALGO_ONLY_DEFAULT_ISA)
#define TORCHALGO_DECLARE_BF16_KERNEL(...)   \
  TORCHALGO_DECLARE_KERNEL(__VA_ARGS__)      \
  TORCHALGO_DECLARE_IN(amx, , , __VA_ARGS__) \
  TORCHALGO_DECLARE_IN(avx512bf16, , , __VA_ARGS__)
#define TORCHALGO_PICK_BF16_KERNEL(bf16_isa, isa, kernel) \
  (TORCHALGO_PICK_IN(amx, , , bf16_isa, kernel)           \
       TORCHALGO_PICK_IN(avx512bf16, , , bf16_isa, kernel) TORCHALGO_PICK_KERNEL(isa, kernel))
#else
#define TORCHALGO_DECLARE_BF16_KERNEL(...) TORCHALGO_DECLARE_KERNEL(__VA_ARGS__)
#define TORCHALGO_PICK_BF16_KERNEL(bf16_isa, isa, kernel) \
  (static_cast<void>(bf16_isa), TORCHALGO_PICK_KERNEL(isa, kernel))
#endif
