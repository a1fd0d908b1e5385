// SPDX-License-Identifier: BSD-3-Clause
// The kernels of csrc/cuda, and functions of the driver by name. Most kernels are compiled as C++,
// and found by the names that they have there too. Transposes, which are many, are computed without
// the kernel's turns of threads.
#include "kernels.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <tuple>

#include "cuda/software_gpu.h"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // unroll
#include "cuda/depthwise.cu"
#include "cuda/layer_norm.cu"
#include "cuda/pointwise.cu"
#include "cuda/pool.cu"
#include "cuda/rows.cu"
#include "cuda/tiles.h"

namespace software_gpu {
namespace {

using torchalgo::cuda::Tiling;
using torchalgo::cuda::Transpose;

template <typename T>
float to_float(T value) {
  return static_cast<float>(value);
}

template <typename Src, typename Dst, typename Cast>
void transpose(const void* src_data, void* dst_data, const Transpose& problem, const Cast& cast) {
  const auto* const src = static_cast<const Src*>(src_data);
  auto* const dst = static_cast<Dst*>(dst_data);
  const std::int64_t size = problem.rows * problem.cols;
  for (std::int64_t image = 0; image < problem.images; ++image) {
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      for (std::int64_t col = 0; col < problem.cols; ++col) {
        dst[image * size + col * problem.rows + row] =
            cast(src[image * size + row * problem.cols + col]);
      }
    }
  }
}

std::string readable(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  return text != nullptr ? text.get() : mangled;
}

int refuse() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace

// Returns a call of the kernel in all threads of a grid.
template <typename... Parameters>
std::function<void()> in_all_threads(const std::string& mangled_name, const Grid& grid,
                                     void** arguments) {
  using Kernel = void (*)(Parameters...);
  const auto kernel = reinterpret_cast<Kernel>(dlsym(RTLD_DEFAULT, mangled_name.c_str()));
  if (kernel == nullptr) return {};
  std::size_t next = 0;
  const std::tuple<Parameters...> values{*static_cast<Parameters*>(arguments[next++])...};
  return [=] {
    static std::mutex one_grid;  // has the indices of blocks and threads
    const std::lock_guard lock(one_grid);
    run_grid(grid.blocks, grid.threads, [&] { std::apply(kernel, values); });
  };
}

std::function<void()> kernel_work(const std::string& mangled_name, const Grid& grid,
                                  void** arguments) {
  using namespace torchalgo::cuda;
  using In = const void*;
  using Out = void*;
  const auto is = [&](const char* kernel) {
    return mangled_name.find(kernel) != std::string::npos;
  };
  if (is("max_pool") || is("average_pool"))
    return in_all_threads<In, Out, Pool, std::uint32_t>(mangled_name, grid, arguments);
  if (is("mean_with_barriers"))
    return in_all_threads<In, Out, unsigned, int, int>(mangled_name, grid, arguments);
  if (is("9pointwise"))
    return in_all_threads<In, In, In, Out, Pointwise, std::uint32_t, std::uint32_t>(
        mangled_name, grid, arguments);
  if (is("join_rows"))
    return in_all_threads<Out, RowsInVectors, std::uint32_t>(mangled_name, grid, arguments);
  if (is("9depthwise"))
    return in_all_threads<In, In, In, In, Out, Depthwise, std::uint32_t>(mangled_name, grid,
                                                                         arguments);
  if (is("layer_norm"))
    return in_all_threads<In, In, In, Out, LayerNorm, int>(mangled_name, grid, arguments);
  if (!is("transpose_tiles")) return {};
  const std::string name = readable(mangled_name);
  const auto at = name.find('<');
  const auto comma = name.find(',', at);
  const std::string from = name.substr(at + 1, comma - at - 1);
  const std::string to = name.substr(comma + 2, name.find(',', comma + 1) - comma - 2);
  const void* const src = *static_cast<const void**>(arguments[0]);
  void* const dst = *static_cast<void**>(arguments[1]);
  const Transpose problem = static_cast<const Tiling*>(arguments[2])->problem;
  const auto same = [](auto value) { return value; };
  if (from == "unsigned int") {
    return [=] { transpose<std::uint32_t, std::uint32_t>(src, dst, problem, same); };
  }
  if (from == "unsigned short") {
    return [=] { transpose<std::uint16_t, std::uint16_t>(src, dst, problem, same); };
  }
  if (to == "__half") {
    return [=] { transpose<float, __half>(src, dst, problem, __float2half_rn); };
  }
  if (to == "__nv_bfloat16") {
    return [=] { transpose<float, __nv_bfloat16>(src, dst, problem, __float2bfloat16_rn); };
  }
  if (from == "__half") {
    return [=] { transpose<__half, float>(src, dst, problem, to_float<__half>); };
  }
  if (from == "__nv_bfloat16") {
    return [=] { transpose<__nv_bfloat16, float>(src, dst, problem, to_float<__nv_bfloat16>); };
  }
  return {};
}

void* driver_function(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void* const found = driver != nullptr ? dlsym(driver, name) : nullptr;
  return found != nullptr ? found : reinterpret_cast<void*>(&refuse);
}

}  // namespace software_gpu
