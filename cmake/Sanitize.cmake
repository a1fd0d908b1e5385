# TORCHALGO_SANITIZE instruments what runs on a CPU's tensors, and its tests; scripts/sanitize.sh sets it.
set(TORCHALGO_SANITIZE "" CACHE STRING "address,undefined: a build for tests")
set(_sanitized_folders ir provider cpu_algo layout_algo view_algo)

if(TORCHALGO_SANITIZE)
  add_link_options(-fsanitize=${TORCHALGO_SANITIZE})
endif()

function(torchalgo_sanitize target folder)
  if(TORCHALGO_SANITIZE AND folder IN_LIST _sanitized_folders)
    # Checks as calls, little optimized: a kernel's unrolled loops would take many minutes to compile.
    # Kernels step to pixels outside of an image that they never read, hence pointer-overflow.
    target_compile_options(${target} PRIVATE -fsanitize=${TORCHALGO_SANITIZE} -fno-sanitize-recover=all
      -fno-sanitize=vptr,pointer-overflow,null,alignment,object-size -O1 -g1
      "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
endfunction()
