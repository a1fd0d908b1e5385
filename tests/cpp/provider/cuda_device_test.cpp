// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "provider/cpu_device.h"

namespace torchalgo {
namespace {

constexpr int kInvalidDevice = 101;

// A CUDA runtime with two GPUs; attributes are those of an H100.
struct FakeGpus {
  int count = 2;
  int status = 0;
  std::map<int, int> attributes = {
      {1, 1024},     {2, 1024},      {3, 1024},    {4, 64},   {5, 2147483647},
      {6, 65535},    {7, 65535},     {8, 49152},   {10, 32},  {12, 65536},
      {13, 1980000}, {16, 132},      {34, 0},      {35, 0},   {36, 2619000},
      {37, 5120},    {38, 52428800}, {39, 2048},   {75, 9},   {76, 0},
      {82, 65536},   {95, 1},        {97, 232448}, {106, 32}, {111, 1024}};

  [[nodiscard]] CudaRuntime runtime() const {
    CudaRuntime runtime;
    runtime.get_device_count = [this](int* value) {
      *value = count;
      return status;
    };
    runtime.get_attribute = [this](int* value, int attribute, int device) {
      if (device >= count || !attributes.contains(attribute)) return kInvalidDevice;
      *value = attributes.at(attribute);
      return 0;
    };
    runtime.get_driver_version = [](int* version) {
      *version = 13000;
      return 0;
    };
    runtime.get_error_string = [](int) { return "no CUDA-capable device is detected"; };
    runtime.get_name = [](char* name, int size, int) {
      std::strncpy(name, "NVIDIA \"H100\" 80GB HBM3", static_cast<std::size_t>(size));
      return 0;
    };
    runtime.get_total_memory = [](std::size_t* bytes, int) {
      *bytes = 84942979072;
      return 0;
    };
    return runtime;
  }
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ReadCudaDevice, GivesWhatCudnnAsksFor) {
  const FakeGpus gpus;
  const Device device = read_cuda_device(gpus.runtime(), 1);
  EXPECT_EQ(device.kind, DeviceKind::kCuda);
  EXPECT_EQ(device.name, "NVIDIA \"H100\" 80GB HBM3");
  EXPECT_EQ(device.isa, "sm_90");
  EXPECT_EQ(device.l2_bytes, 52428800);
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device.provenance, "this machine");
  EXPECT_EQ(device.properties,
            R"({"deviceVer":900,"multiProcessorCount":132,"warpSize":32,)"
            R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
            R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
            R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"regsPerBlock":65536,)"
            R"("totalGlobalMem":84942979072,"smClockRateKHz":1980000,"l2CacheSize":52428800,)"
            R"("maxBlockSize":[1024,1024,64],"memClockRateKHz":2619000,"memoryBusWidth":5120,)"
            R"("maxGridSize":[2147483647,65535,65535],"supportCoopLaunch":1,"pciDeviceId":0,)"
            R"("isTccDriver":0,"cudaDeviceId":0,"driverVer":13000,)"
            R"("deviceName":"NVIDIA \"H100\" 80GB HBM3"})");
}

TEST(ReadCudaDevice, IsTheSameForEqualGpusButForTheIndex) {
  const FakeGpus gpus;
  const Device first = read_cuda_device(gpus.runtime(), 0);
  Device second = read_cuda_device(gpus.runtime(), 1);
  second.index = 0;
  EXPECT_EQ(first, second);
}

TEST(ReadCudaDevice, SaysWhyThereIsNone) {
  FakeGpus none;
  none.count = 0;
  none.status = 100;
  const std::string text =
      error_of([&] { static_cast<void>(read_cuda_device(none.runtime(), 0)); });
  EXPECT_NE(text.find("no CUDA-capable device is detected (100)"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_VISIBLE_DEVICES"), std::string::npos) << text;
  const FakeGpus two;
  EXPECT_NE(error_of([&] {
              static_cast<void>(read_cuda_device(two.runtime(), 2));
            }).find("no GPU 2; expected a number below 2"),
            std::string::npos);
}

TEST(ReadCudaDevice, NamesTheFunctionThatFailed) {
  FakeGpus gpus;
  gpus.attributes.erase(97);
  EXPECT_NE(error_of([&] {
              static_cast<void>(read_cuda_device(gpus.runtime(), 0));
            }).find("cudaDeviceGetAttribute failed"),
            std::string::npos);
}

TEST(DeviceOf, IsTheCpuForTheCpuAndAnErrorForOtherKinds) {
  EXPECT_EQ(torchalgo::device_of(at::kCPU), cpu_device());
  EXPECT_NE(error_of([&] { static_cast<void>(torchalgo::device_of(at::kMeta)); }).find("on meta"),
            std::string::npos);
}

TEST(TorchDevice, RefusesWhatIsOnlyDescribed) {
  Device device = {.kind = DeviceKind::kCuda, .name = "h100", .provenance = "public figures"};
  EXPECT_NE(error_of([&] {
              static_cast<void>(torch_device(device));
            }).find("'h100' is only described (public figures)"),
            std::string::npos);
  device.index = 2;
  EXPECT_EQ(torch_device(device), at::Device(at::kCUDA, 2));
  EXPECT_EQ(torch_device(cpu_device()), at::Device(at::kCPU));
}

}  // namespace
}  // namespace torchalgo
