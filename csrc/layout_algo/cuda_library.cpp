// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/cuda_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "cuda/transform.h"

namespace torchalgo::layout {
namespace {

std::filesystem::path own_folder() {
  Dl_info info = {};
  const bool is_found = dladdr(reinterpret_cast<const void*>(&cuda_library), &info) != 0;
  return is_found ? std::filesystem::path(info.dli_fname).parent_path() : std::filesystem::path();
}

CudaLibrary load() {
  const std::filesystem::path path = own_folder() / "libtorchalgo_cuda.so";
  if (!std::filesystem::exists(path)) {
    return {nullptr,
            "needs libtorchalgo_cuda.so, which this build lacks: build where nvcc is found"};
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {nullptr, fmt::format("needs libtorchalgo_cuda.so: {}", dlerror())};
  const auto abi =
      reinterpret_cast<decltype(&torchalgo_cuda_abi)>(dlsym(library, "torchalgo_cuda_abi"));
  const auto transform = reinterpret_cast<decltype(&torchalgo_cuda_transform)>(
      dlsym(library, "torchalgo_cuda_transform"));
  if (abi == nullptr || transform == nullptr || abi() != cuda::kTransformAbi) {
    return {nullptr, "needs the libtorchalgo_cuda.so of this build, found another: build again"};
  }
  return {transform, {}};
}

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary kLibrary = load();
  return kLibrary;
}

}  // namespace torchalgo::layout
