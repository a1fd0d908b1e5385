# The compiler's flags for kernels, in torchalgo and in emitted programs: isa_flags_<instruction set>, and kernel_flags.
# Every processor with AVX2 has F16C. ATen builds its own kernels for AVX2 with it too.
set(isa_flags_avx2 -mavx2 -mfma -mf16c)
set(isa_flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512)
set(isa_flags_avx512bf16 ${isa_flags_avx512} -mavx512bf16)
set(isa_flags_amx ${isa_flags_avx512bf16} -mamx-tile -mamx-bf16)
# The kernels that multiply in bf16. They run instead of the builds for AVX-512 where the device has the instructions.
set(bf16_sources_avx512bf16 bf16/conv_of_pairs.cpp bf16/depthwise.cpp scale_shift_bf16.cpp)
set(bf16_sources_amx bf16/conv_of_tiles.cpp bf16/depthwise.cpp scale_shift_bf16.cpp)
# Turned into a memset, the zeros of an array of vectors keep the array in memory.
set(kernel_flags -ffp-contract=fast -fno-math-errno -fno-trapping-math
  $<$<CXX_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>)
# GCC would load more than the 32 registers hold before it multiplies.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND kernel_flags $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
endif()
