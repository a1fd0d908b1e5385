// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "cuda/interface.h"
#include "provider/symbols.h"

namespace torchalgo {
namespace {

std::filesystem::path own_folder() {
  Dl_info info = {};
  const bool is_found = dladdr(reinterpret_cast<const void*>(&cuda_library), &info) != 0;
  return is_found ? std::filesystem::path(info.dli_fname).parent_path() : std::filesystem::path();
}

CudaLibrary absent(std::string reason) {
  CudaLibrary none;
  none.absence = std::move(reason);
  return none;
}

CudaLibrary load() {
  const std::filesystem::path path = own_folder() / "libtorchalgo_cuda.so";
  if (!std::filesystem::exists(path)) {
    return absent("needs libtorchalgo_cuda.so, which this build lacks: build where nvcc is found");
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absent(fmt::format("needs libtorchalgo_cuda.so: {}", dlerror()));
  CudaLibrary loaded;
  std::function<int()> abi;
  Symbols symbols(library);
  symbols.require(abi, "torchalgo_cuda_abi");
  symbols.require(loaded.transform, "torchalgo_cuda_transform");
  symbols.require(loaded.pool, "torchalgo_cuda_pool");
  symbols.require(loaded.pointwise, "torchalgo_cuda_pointwise");
  symbols.require(loaded.rows, "torchalgo_cuda_rows");
  symbols.require(loaded.depthwise, "torchalgo_cuda_depthwise");
  symbols.require(loaded.layer_norm, "torchalgo_cuda_layer_norm");
  symbols.require(loaded.open_pool, "torchalgo_cuda_open_pool");
  symbols.require(loaded.close_pool, "torchalgo_cuda_close_pool");
  symbols.require(loaded.free_pool, "torchalgo_cuda_free_pool");
  if (!symbols.missing().empty() || abi() != cuda::kInterfaceAbi) {
    return absent("needs the libtorchalgo_cuda.so of this build, found another: build again");
  }
  return loaded;
}

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary kLibrary = load();
  return kLibrary;
}

}  // namespace torchalgo
