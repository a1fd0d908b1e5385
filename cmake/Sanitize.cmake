# TORCHALGO_SANITIZE instruments what runs on a CPU's tensors, and its tests; scripts/sanitize.sh sets it.
set(TORCHALGO_SANITIZE "" CACHE STRING "address,undefined or thread: a build for tests")
set(_sanitized_folders ir pbqp planner provider cpu_algo layout_algo view_algo cudnn_algo profiler ops runner training)

if(TORCHALGO_SANITIZE)
  add_link_options(-fsanitize=${TORCHALGO_SANITIZE})
endif()

function(torchalgo_sanitize target folder)
  if(NOT TORCHALGO_SANITIZE OR NOT folder IN_LIST _sanitized_folders)
    return()
  endif()
  # Checks as calls, little optimized: a kernel's unrolled loops would take many minutes to compile.
  target_compile_options(${target} PRIVATE -fsanitize=${TORCHALGO_SANITIZE} -O1 -g1)
  if(TORCHALGO_SANITIZE STREQUAL thread)
    target_compile_options(${target} PRIVATE
      "SHELL:-include ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/std_threads.h")
  else()
    # Kernels step to pixels outside of an image that they never read, hence pointer-overflow.
    target_compile_options(${target} PRIVATE -fno-sanitize-recover=all
      -fno-sanitize=vptr,pointer-overflow,null,alignment,object-size
      "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
endfunction()
