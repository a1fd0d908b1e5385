// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/api.h"

#include <fmt/format.h>

#include <string>

#include "provider/symbols.h"

namespace torchalgo::cudnn {
namespace {

constexpr const char* kLibrary = "libcudnn.so.9";
// cuDNN answers questions about a described device since version 9.8.
constexpr std::size_t kOldestVersion = 90800;

void fill_graph_api(Symbols& symbols, Api& api) {
  symbols.require(api.get_version, "cudnnGetVersion");
  symbols.require(api.get_error_string, "cudnnGetErrorString");
  symbols.require(api.get_last_error_string, "cudnnGetLastErrorString");
  symbols.require(api.create_handle, "cudnnCreate");
  symbols.require(api.set_stream, "cudnnSetStream");
  symbols.require(api.create_descriptor, "cudnnBackendCreateDescriptor");
  symbols.require(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  symbols.require(api.finalize, "cudnnBackendFinalize");
  symbols.require(api.set_attribute, "cudnnBackendSetAttribute");
  symbols.require(api.get_attribute, "cudnnBackendGetAttribute");
  symbols.require(api.execute, "cudnnBackendExecute");
}

void fill_legacy_api(Symbols& symbols, Api::Legacy& legacy) {
  symbols.find(legacy.create_tensor, "cudnnCreateTensorDescriptor");
  symbols.find(legacy.create_filter, "cudnnCreateFilterDescriptor");
  symbols.find(legacy.create_convolution, "cudnnCreateConvolutionDescriptor");
  symbols.find(legacy.destroy_tensor, "cudnnDestroyTensorDescriptor");
  symbols.find(legacy.destroy_filter, "cudnnDestroyFilterDescriptor");
  symbols.find(legacy.destroy_convolution, "cudnnDestroyConvolutionDescriptor");
  symbols.find(legacy.set_tensor, "cudnnSetTensorNdDescriptor");
  symbols.find(legacy.set_filter, "cudnnSetFilterNdDescriptor");
  symbols.find(legacy.set_convolution, "cudnnSetConvolutionNdDescriptor");
  symbols.find(legacy.set_groups, "cudnnSetConvolutionGroupCount");
  symbols.find(legacy.set_math_type, "cudnnSetConvolutionMathType");
  symbols.find(legacy.get_forward_workspace, "cudnnGetConvolutionForwardWorkspaceSize");
  symbols.find(legacy.get_backward_data_workspace, "cudnnGetConvolutionBackwardDataWorkspaceSize");
  symbols.find(legacy.get_backward_filter_workspace,
               "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  symbols.find(legacy.run_forward, "cudnnConvolutionForward");
  symbols.find(legacy.run_backward_data, "cudnnConvolutionBackwardData");
  symbols.find(legacy.run_backward_filter, "cudnnConvolutionBackwardFilter");
}

std::string absence_text() {
  if (find_mapped_library({"libtorch_cuda.so"}) == nullptr) {
    return "this torch has no CUDA: cuDNN's algorithms need a CUDA build of torch";
  }
  return fmt::format("torch has CUDA, but no {} is mapped: is this torch built without cuDNN?",
                     kLibrary);
}

LoadedApi fill_from(void* library) {
  auto api = std::make_shared<Api>();
  Symbols symbols(library);
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
  // Version numbers count the major version in thousands before cuDNN 9, and in ten thousands
  // since.
  const std::size_t unit = version >= 90000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

LoadedApi load_api() {
  void* library = find_mapped_library({kLibrary});
  if (library == nullptr) return {nullptr, absence_text()};
  return fill_from(library);
}

}  // namespace torchalgo::cudnn
