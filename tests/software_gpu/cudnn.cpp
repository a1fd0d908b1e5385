// SPDX-License-Identifier: BSD-3-Clause
// libcudnn.so.9 of the GPU in software: the imitation of cuDNN that the C++ tests use, as a
// library. CMake adds functions that refuse for all others.
#include <fmt/format.h>
#include <library_types.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "cudnn_algo/fake_cudnn.h"
#include "gpu.h"

using namespace torchalgo::cudnn;

namespace {

// Returns the description of the GPU in JSON. csrc/provider/cuda_device.cpp makes the same text
// from the attributes that cuda_runtime.cpp returns.
std::string properties() {
  return fmt::format(
      R"({{"deviceVer":900,"multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
      R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"regsPerBlock":65536,"totalGlobalMem":{},"smClockRateKHz":1980000,)"
      R"("l2CacheSize":{},"maxBlockSize":[1024,1024,64],"memClockRateKHz":2619000,)"
      R"("memoryBusWidth":5120,"maxGridSize":[2147483647,65535,65535],"supportCoopLaunch":1,)"
      R"("pciDeviceId":0,"isTccDriver":0,"cudaDeviceId":0,"driverVer":13000,"deviceName":"{}"}})",
      software_gpu::kStreamingMultiprocessors, software_gpu::kTotalBytes, software_gpu::kL2Bytes,
      software_gpu::kName);
}

const Api& api() {
  static const auto* const kCudnn = new fake::FakeCudnn(
      {.properties = properties(), .enqueue = [](Stream stream, const std::function<void()>& work) {
         const auto handle = static_cast<cudaStream_t>(stream);
         return software_gpu_enqueue(handle, &work) == cudaSuccess ? kSuccess : kExecutionFailed;
       }});
  static const auto* const kApi = new std::shared_ptr<const Api>(kCudnn->api());
  return **kApi;
}

// Calls `function`, unless the test wants the call to fail.
template <typename Function, typename... Arguments>
Status call(const char* name, const Function& function, Arguments... arguments) {
  const int fault = software_gpu_fault(name);
  return fault != 0 ? fault : function(arguments...);
}

template <typename Function, typename... Arguments>
Status run(const char* name, const Function& function, Arguments... arguments) {
  software_gpu_log(name);
  return call(name, function, arguments...);
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return api().get_version(); }
std::size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
Status cudnnGetProperty(libraryPropertyType part, int* value) {
  const auto version = static_cast<int>(api().get_version());
  const std::array<int, 3> parts = {version / 10000, version % 10000 / 100, version % 100};
  *value = parts.at(static_cast<std::size_t>(part));
  return kSuccess;
}
const char* cudnnGetErrorString(Status status) { return api().get_error_string(status); }
void cudnnGetLastErrorString(char* text, std::size_t size) {
  api().get_last_error_string(text, size);
}
Status cudnnCreate(Handle* handle) { return call("cudnnCreate", api().create_handle, handle); }
Status cudnnSetStream(Handle handle, Stream stream) {
  return call("cudnnSetStream", api().set_stream, handle, stream);
}

Status cudnnBackendCreateDescriptor(DescriptorType type, Descriptor* made) {
  return call("cudnnBackendCreateDescriptor", api().create_descriptor, type, made);
}
Status cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  return api().destroy_descriptor(descriptor);
}
Status cudnnBackendFinalize(Descriptor descriptor) {
  return call("cudnnBackendFinalize", api().finalize, descriptor);
}
Status cudnnBackendSetAttribute(Descriptor descriptor, AttributeName name, AttributeType type,
                                std::int64_t count, const void* data) {
  return call("cudnnBackendSetAttribute", api().set_attribute, descriptor, name, type, count, data);
}
Status cudnnBackendGetAttribute(Descriptor descriptor, AttributeName name, AttributeType type,
                                std::int64_t requested, std::int64_t* count, void* data) {
  return call("cudnnBackendGetAttribute", api().get_attribute, descriptor, name, type, requested,
              count, data);
}
Status cudnnBackendExecute(Handle handle, Descriptor plan, Descriptor pack) {
  return run("cudnnBackendExecute", api().execute, handle, plan, pack);
}

Status cudnnCreateTensorDescriptor(Descriptor* made) { return api().legacy.create_tensor(made); }
Status cudnnCreateFilterDescriptor(Descriptor* made) { return api().legacy.create_filter(made); }
Status cudnnCreateConvolutionDescriptor(Descriptor* made) {
  return api().legacy.create_convolution(made);
}
Status cudnnDestroyTensorDescriptor(Descriptor it) { return api().legacy.destroy_tensor(it); }
Status cudnnDestroyFilterDescriptor(Descriptor it) { return api().legacy.destroy_filter(it); }
Status cudnnDestroyConvolutionDescriptor(Descriptor it) {
  return api().legacy.destroy_convolution(it);
}
Status cudnnSetTensorNdDescriptor(Descriptor tensor, DataType type, int rank, const int* sizes,
                                  const int* strides) {
  return api().legacy.set_tensor(tensor, type, rank, sizes, strides);
}
Status cudnnSetFilterNdDescriptor(Descriptor filter, DataType type, TensorFormat format, int rank,
                                  const int* sizes) {
  return api().legacy.set_filter(filter, type, format, rank, sizes);
}
Status cudnnSetConvolutionNdDescriptor(Descriptor convolution, int rank, const int* pad,
                                       const int* stride, const int* dilation, ConvolutionMode mode,
                                       DataType compute) {
  return api().legacy.set_convolution(convolution, rank, pad, stride, dilation, mode, compute);
}
Status cudnnSetConvolutionGroupCount(Descriptor convolution, int groups) {
  return api().legacy.set_groups(convolution, groups);
}
Status cudnnSetConvolutionMathType(Descriptor convolution, MathType type) {
  return api().legacy.set_math_type(convolution, type);
}
Status cudnnGetConvolutionForwardWorkspaceSize(Handle handle, Descriptor x, Descriptor w,
                                               Descriptor convolution, Descriptor y, int algorithm,
                                               std::size_t* bytes) {
  return api().legacy.get_forward_workspace(handle, x, w, convolution, y, algorithm, bytes);
}
Status cudnnGetConvolutionBackwardDataWorkspaceSize(Handle handle, Descriptor w, Descriptor dy,
                                                    Descriptor convolution, Descriptor dx,
                                                    int algorithm, std::size_t* bytes) {
  return api().legacy.get_backward_data_workspace(handle, w, dy, convolution, dx, algorithm, bytes);
}
Status cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle handle, Descriptor x, Descriptor dy,
                                                      Descriptor convolution, Descriptor dw,
                                                      int algorithm, std::size_t* bytes) {
  return api().legacy.get_backward_filter_workspace(handle, x, dy, convolution, dw, algorithm,
                                                    bytes);
}
Status cudnnConvolutionForward(Handle handle, const void* alpha, Descriptor x, const void* x_data,
                               Descriptor w, const void* w_data, Descriptor convolution,
                               int algorithm, void* workspace, std::size_t bytes, const void* beta,
                               Descriptor y, void* y_data) {
  return run("cudnnConvolutionForward", api().legacy.run_forward, handle, alpha, x, x_data, w,
             w_data, convolution, algorithm, workspace, bytes, beta, y, y_data);
}
Status cudnnConvolutionBackwardData(Handle handle, const void* alpha, Descriptor w,
                                    const void* w_data, Descriptor dy, const void* dy_data,
                                    Descriptor convolution, int algorithm, void* workspace,
                                    std::size_t bytes, const void* beta, Descriptor dx,
                                    void* dx_data) {
  return run("cudnnConvolutionBackwardData", api().legacy.run_backward_data, handle, alpha, w,
             w_data, dy, dy_data, convolution, algorithm, workspace, bytes, beta, dx, dx_data);
}
Status cudnnConvolutionBackwardFilter(Handle handle, const void* alpha, Descriptor x,
                                      const void* x_data, Descriptor dy, const void* dy_data,
                                      Descriptor convolution, int algorithm, void* workspace,
                                      std::size_t bytes, const void* beta, Descriptor dw,
                                      void* dw_data) {
  return run("cudnnConvolutionBackwardFilter", api().legacy.run_backward_filter, handle, alpha, x,
             x_data, dy, dy_data, convolution, algorithm, workspace, bytes, beta, dw, dw_data);
}

}  // extern "C"
