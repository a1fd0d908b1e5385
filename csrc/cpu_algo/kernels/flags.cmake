# The compiler's flags for kernels, in torchalgo and in emitted programs: isa_flags_<instruction set>, and kernel_flags.
# Every processor with AVX2 has F16C. ATen builds its own kernels for AVX2 with it too.
set(isa_flags_avx2 -mavx2 -mfma -mf16c)
set(isa_flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512)
set(isa_flags_avx512bf16 ${isa_flags_avx512} -mavx512bf16)
set(isa_flags_amx ${isa_flags_avx512bf16} -mamx-tile -mamx-bf16)
# Turned into a memset, the zeros of an array of vectors keep the array in memory.
set(kernel_flags -ffp-contract=fast -fno-math-errno -fno-trapping-math
  $<$<CXX_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>)
