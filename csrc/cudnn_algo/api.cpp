// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace torchalgo::cudnn {
namespace {

constexpr const char* kLibrary = "libcudnn.so.9";
// From 9.8 on engines can be asked for a described device.
constexpr std::size_t kOldestVersion = 90800;

// Fills std::functions from symbols of a library and remembers the first that is missing.
class SymbolTable {
 public:
  explicit SymbolTable(void* library) : library_(library) {}

  template <typename Result, typename... Arguments>
  void require(std::function<Result(Arguments...)>& function, const char* symbol) {
    fill(function, symbol);
    if (!function && missing_.empty()) missing_ = symbol;
  }

  template <typename Result, typename... Arguments>
  void fill(std::function<Result(Arguments...)>& function, const char* symbol) {
    // POSIX promises that a function's address fits a void*.
    using Pointer = Result (*)(Arguments...);
    if (void* address = dlsym(library_, symbol)) function = reinterpret_cast<Pointer>(address);
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

void fill_graph_api(SymbolTable& symbols, Api& api) {
  symbols.require(api.get_version, "cudnnGetVersion");
  symbols.require(api.get_error_string, "cudnnGetErrorString");
  symbols.require(api.get_last_error_string, "cudnnGetLastErrorString");
  symbols.require(api.set_stream, "cudnnSetStream");
  symbols.require(api.create_descriptor, "cudnnBackendCreateDescriptor");
  symbols.require(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  symbols.require(api.finalize, "cudnnBackendFinalize");
  symbols.require(api.set_attribute, "cudnnBackendSetAttribute");
  symbols.require(api.get_attribute, "cudnnBackendGetAttribute");
  symbols.require(api.execute, "cudnnBackendExecute");
}

void fill_legacy_api(SymbolTable& symbols, Api::Legacy& legacy) {
  symbols.fill(legacy.create_tensor, "cudnnCreateTensorDescriptor");
  symbols.fill(legacy.create_filter, "cudnnCreateFilterDescriptor");
  symbols.fill(legacy.create_convolution, "cudnnCreateConvolutionDescriptor");
  symbols.fill(legacy.destroy_tensor, "cudnnDestroyTensorDescriptor");
  symbols.fill(legacy.destroy_filter, "cudnnDestroyFilterDescriptor");
  symbols.fill(legacy.destroy_convolution, "cudnnDestroyConvolutionDescriptor");
  symbols.fill(legacy.set_tensor, "cudnnSetTensorNdDescriptor");
  symbols.fill(legacy.set_filter, "cudnnSetFilterNdDescriptor");
  symbols.fill(legacy.set_convolution, "cudnnSetConvolutionNdDescriptor");
  symbols.fill(legacy.set_groups, "cudnnSetConvolutionGroupCount");
  symbols.fill(legacy.set_math_type, "cudnnSetConvolutionMathType");
  symbols.fill(legacy.get_forward_workspace, "cudnnGetConvolutionForwardWorkspaceSize");
  symbols.fill(legacy.get_backward_data_workspace, "cudnnGetConvolutionBackwardDataWorkspaceSize");
  symbols.fill(legacy.get_backward_filter_workspace,
               "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  symbols.fill(legacy.run_forward, "cudnnConvolutionForward");
  symbols.fill(legacy.run_backward_data, "cudnnConvolutionBackwardData");
  symbols.fill(legacy.run_backward_filter, "cudnnConvolutionBackwardFilter");
}

std::string absence_text() {
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
    return "this torch has no CUDA: cuDNN's algorithms need a CUDA build of torch";
  }
  return fmt::format("torch has CUDA, but no {} is mapped: is this torch built without cuDNN?",
                     kLibrary);
}

LoadedApi fill_from(void* library) {
  auto api = std::make_shared<Api>();
  SymbolTable symbols(library);
  fill_graph_api(symbols, *api);
  if (!symbols.missing().empty()) {
    return {nullptr,
            fmt::format("the {} that torch has mapped lacks {}", kLibrary, symbols.missing())};
  }
  const std::size_t version = api->get_version();
  if (version < kOldestVersion || version >= 100000) {
    return {nullptr, fmt::format("cuDNN {} is not supported: expected 9.8 or a later 9",
                                 version_text(*api))};
  }
  fill_legacy_api(symbols, api->legacy);
  return {std::move(api), {}};
}

}  // namespace

std::string version_text(const Api& api) {
  const std::size_t version = api.get_version();
  // Before 9 the major number stood at the thousands.
  const std::size_t unit = version >= 90000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

LoadedApi load_api() {
  // The mapping stays as long as torch does, so its count is not given back.
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {nullptr, absence_text()};
  return fill_from(library);
}

}  // namespace torchalgo::cudnn
