// SPDX-License-Identifier: BSD-3-Clause
// The kernels of csrc/cuda/transform.cu, and functions of the driver by name.
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

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

std::function<void()> kernel_work(const std::string& mangled_name, void** arguments) {
  if (mangled_name.find("transpose_tiles") == std::string::npos) return {};
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
