// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cudnn_algo/abi.h"

namespace torchalgo::cudnn {

using Handle = void*;      // cudnnHandle_t
using Descriptor = void*;  // cudnnBackendDescriptor_t, and the legacy API's descriptors
using Stream = void*;      // cudaStream_t

/// The functions of cuDNN that torchalgo calls. load_api() fills them from the library that torch
/// has mapped, or a test does. Nothing is linked, so the same libtorchalgo.so works with a torch
/// without CUDA. Names, arguments and status codes are those of cuDNN 9 (cudnn_graph_v9.h,
/// cudnn_ops_v9.h, cudnn_cnn_v9.h).
struct Api {
  std::function<std::size_t()> get_version;  // 91900 = 9.19.0
  std::function<const char*(Status)> get_error_string;
  std::function<void(char* message, std::size_t size)> get_last_error_string;
  std::function<Status(Handle*)> create_handle;  // for the current GPU
  std::function<Status(Handle, Stream)> set_stream;

  // The graph API.
  std::function<Status(DescriptorType, Descriptor*)> create_descriptor;
  std::function<Status(Descriptor)> destroy_descriptor;
  std::function<Status(Descriptor)> finalize;
  std::function<Status(Descriptor, AttributeName, AttributeType, std::int64_t count, const void*)>
      set_attribute;
  std::function<Status(Descriptor, AttributeName, AttributeType, std::int64_t requested,
                       std::int64_t* count, void*)>
      get_attribute;
  std::function<Status(Handle, Descriptor plan, Descriptor variant_pack)> execute;

  // The legacy API. It is deprecated since 9.0, so each function may be missing (null) in a later
  // cuDNN.
  struct Legacy {
    std::function<Status(Descriptor*)> create_tensor, create_filter, create_convolution;
    std::function<Status(Descriptor)> destroy_tensor, destroy_filter, destroy_convolution;
    std::function<Status(Descriptor, DataType, int rank, const int* sizes, const int* strides)>
        set_tensor;
    std::function<Status(Descriptor, DataType, TensorFormat, int rank, const int* sizes)>
        set_filter;
    std::function<Status(Descriptor, int rank, const int* pad, const int* stride,
                         const int* dilation, ConvolutionMode, DataType compute)>
        set_convolution;
    std::function<Status(Descriptor, int groups)> set_groups;
    std::function<Status(Descriptor, MathType)> set_math_type;
    // The arguments are those of cudnnGetConvolutionForwardWorkspaceSize and its counterparts.
    using GetWorkspace = std::function<Status(Handle, Descriptor, Descriptor, Descriptor,
                                              Descriptor, int algorithm, std::size_t* bytes)>;
    GetWorkspace get_forward_workspace, get_backward_data_workspace, get_backward_filter_workspace;
    // (handle, alpha, a, a_data, b, b_data, convolution, algorithm, workspace, bytes, beta, c,
    // c_data): forward x, w, y; backward data w, dy, dx; backward filter x, dy, dw.
    using Run =
        std::function<Status(Handle, const void*, Descriptor, const void*, Descriptor, const void*,
                             Descriptor, int, void*, std::size_t, const void*, Descriptor, void*)>;
    Run run_forward, run_backward_data, run_backward_filter;
  } legacy;
};

/// Returns the version as text, for example "9.19.0".
[[nodiscard]] std::string version_text(const Api& api);

/// The process's cuDNN, or the reason why there is none.
struct LoadedApi {
  std::shared_ptr<const Api> api;  // null: `absence` says why
  std::string absence;
};

/// Looks up the functions in the libcudnn.so.9 that is mapped already. Torch maps its own at
/// import. It maps no library itself, so that the process never holds two. A torch without CUDA has
/// none.
[[nodiscard]] LoadedApi load_api();

}  // namespace torchalgo::cudnn
