# Headers are most of the work of compiling an average source. A group of folders precompiles those that most of its
# sources include, and small folders whose sources need more of torch are compiled several sources at a time. No
# header of torchalgo is precompiled: a change of one would compile the whole group again. Nor are torch's larger
# ones: an object pays for all templates in its precompiled header, 0.5 s for ATen/core/Tensor.h, 1.4 s with ATen/ops.
#
# Sources include what they use all the same: `-DTORCHALGO_PCH=OFF` compiles each of them without this help.
option(TORCHALGO_PCH "precompile headers and compile small folders several sources at a time" ON)
if(TORCHALGO_SANITIZE)
  set(TORCHALGO_PCH OFF)  # instrumented folders have other options than the rest of their group
endif()

if(TORCHALGO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the source folder become relative, so that checkouts in other folders share objects. Without the
  # sloppiness ccache compiles everything that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${TORCHALGO_CCACHE})
  if(TORCHALGO_PCH)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  endif()
endif()

set(_std <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <charconv> <cstddef> <cstdint> <cstring>
  <functional> <initializer_list> <iterator> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span>
  <string> <string_view> <tuple> <unordered_map> <utility> <variant> <vector>)
set(_aten ${_std} <ATen/core/Tensor.h> <ATen/Parallel.h>)
set(TORCHALGO_HEADERS_std ${_std})
set(TORCHALGO_HEADERS_aten ${_aten})
set(TORCHALGO_HEADERS_jit ${_aten} <torch/csrc/jit/api/module.h>
  <torch/csrc/jit/ir/constants.h> <torch/csrc/jit/ir/ir.h>)
set(TORCHALGO_HEADERS_python ${_aten} <torch/csrc/jit/python/pybind_utils.h> <pybind11/functional.h>
  <pybind11/stl.h>)
set(TORCHALGO_HEADERS_tests ${_std} <gtest/gtest.h>)
set(TORCHALGO_HEADERS_aten_tests ${_aten} <ATen/TensorOperators.h> <ATen/ops/empty.h> <gtest/gtest.h>)

# Precompiles the headers of `group` for `target`. All targets of a group share those of the first one, so their
# options must be the same as far as they change what headers mean, such as -fopenmp.
function(torchalgo_precompile target group)
  if(NOT TORCHALGO_PCH)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY TORCHALGO_PRECOMPILED_${group})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${TORCHALGO_HEADERS_${group}})
    set_property(GLOBAL PROPERTY TORCHALGO_PRECOMPILED_${group} ${target})
  endif()
endfunction()
