// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_device.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <mutex>

#include "base/error.h"
#include "provider/cpu_device.h"

namespace torchalgo {
namespace {

// cudaDeviceAttr of driver_types.h: numbers are never reused.
enum Attribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockDimX = 2,
  kMaxGridDimX = 5,
  kMaxSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kMaxRegistersPerBlock = 12,
  kClockRate = 13,
  kMultiProcessorCount = 16,
  kPciDeviceId = 34,
  kTccDriver = 35,
  kMemoryClockRate = 36,
  kMemoryBusWidth = 37,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiProcessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxRegistersPerMultiprocessor = 82,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
  kMaxBlocksPerMultiprocessor = 106,
  kReservedSharedMemoryPerBlock = 111,
};

class DeviceAttributes {
 public:
  DeviceAttributes(const CudaRuntime& runtime, int index) : runtime_(runtime), index_(index) {}

  [[nodiscard]] int get(int attribute) const {
    int value = 0;
    check_cuda(runtime_, runtime_.get_attribute(&value, attribute, index_),
               "cudaDeviceGetAttribute");
    return value;
  }
  [[nodiscard]] std::array<int, 3> get_three(int first) const {
    return {get(first), get(first + 1), get(first + 2)};
  }
  [[nodiscard]] std::string name() const {
    std::array<char, 256> text = {};
    check_cuda(runtime_, runtime_.get_name(text.data(), static_cast<int>(text.size()) - 1, index_),
               "cuDeviceGetName");
    return text.data();
  }
  [[nodiscard]] std::size_t total_memory() const {
    std::size_t bytes = 0;
    check_cuda(runtime_, runtime_.get_total_memory(&bytes, index_), "cuDeviceTotalMem");
    return bytes;
  }
  [[nodiscard]] int driver_version() const {
    int version = 0;
    check_cuda(runtime_, runtime_.get_driver_version(&version), "cudaDriverGetVersion");
    return version;
  }

 private:
  const CudaRuntime& runtime_;
  int index_;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    if (static_cast<unsigned char>(letter) >= 0x20) result += letter;
  }
  return result + '"';
}

// The keys of cuDNN 9.8 to 9.19, and memoryBusWidth of 9.28; a key that a version lacks is ignored.
std::string properties_json(const DeviceAttributes& device, int compute_capability) {
  const std::vector<std::pair<const char*, std::string>> fields = {
      {"deviceVer", fmt::to_string(compute_capability * 10)},
      {"multiProcessorCount", fmt::to_string(device.get(kMultiProcessorCount))},
      {"warpSize", fmt::to_string(device.get(kWarpSize))},
      {"maxSharedMemoryPerBlock", fmt::to_string(device.get(kMaxSharedMemoryPerBlock))},
      {"maxSharedMemoryPerBlockOptin", fmt::to_string(device.get(kMaxSharedMemoryPerBlockOptin))},
      {"reservedSharedMemoryPerBlock", fmt::to_string(device.get(kReservedSharedMemoryPerBlock))},
      {"maxRegistersPerSM", fmt::to_string(device.get(kMaxRegistersPerMultiprocessor))},
      {"maxCtasPerSM", fmt::to_string(device.get(kMaxBlocksPerMultiprocessor))},
      {"maxThreadsPerBlock", fmt::to_string(device.get(kMaxThreadsPerBlock))},
      {"maxThreadsPerSM", fmt::to_string(device.get(kMaxThreadsPerMultiProcessor))},
      {"regsPerBlock", fmt::to_string(device.get(kMaxRegistersPerBlock))},
      {"totalGlobalMem", fmt::to_string(device.total_memory())},
      {"smClockRateKHz", fmt::to_string(device.get(kClockRate))},
      {"l2CacheSize", fmt::to_string(device.get(kL2CacheSize))},
      {"maxBlockSize", fmt::format("[{}]", fmt::join(device.get_three(kMaxBlockDimX), ","))},
      {"memClockRateKHz", fmt::to_string(device.get(kMemoryClockRate))},
      {"memoryBusWidth", fmt::to_string(device.get(kMemoryBusWidth))},
      {"maxGridSize", fmt::format("[{}]", fmt::join(device.get_three(kMaxGridDimX), ","))},
      {"supportCoopLaunch", fmt::to_string(device.get(kCooperativeLaunch))},
      {"pciDeviceId", fmt::to_string(device.get(kPciDeviceId))},
      {"isTccDriver", fmt::to_string(device.get(kTccDriver))},
      // A plan is valid for all GPUs of the same kind, so the JSON must not distinguish them.
      {"cudaDeviceId", "0"},
      {"driverVer", fmt::to_string(device.driver_version())},
      {"deviceName", quoted(device.name())},
  };
  std::string json;
  for (const auto& [key, value] : fields) {
    json += fmt::format("{}\"{}\":{}", json.empty() ? "{" : ",", key, value);
  }
  return json + "}";
}

}  // namespace

Device read_cuda_device(const CudaRuntime& runtime, int index) {
  int count = 0;
  const int status = runtime.get_device_count(&count);
  TORCHALGO_CHECK(status == 0 && count > 0,
                  "TA5002 torchalgo: no GPU can be used here: {} ({}); check nvidia-smi, the "
                  "driver's version and CUDA_VISIBLE_DEVICES",
                  status == 0 ? "CUDA finds none" : runtime.get_error_string(status), status);
  TORCHALGO_CHECK(0 <= index && index < count,
                  "TA5003 torchalgo: there is no GPU {}; expected a number below {}, the count of "
                  "GPUs that this process sees",
                  index, count);
  const DeviceAttributes device(runtime, index);
  const int capability =
      10 * device.get(kComputeCapabilityMajor) + device.get(kComputeCapabilityMinor);
  return {.kind = DeviceKind::kCuda,
          .name = device.name(),
          .isa = fmt::format("sm_{}", capability),
          .threads = 1,
          .l2_bytes = device.get(kL2CacheSize),
          .properties = properties_json(device, capability),
          .provenance = "this machine",
          .index = index};
}

const Device& cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> devices;  // nodes stay where they are
  const std::lock_guard lock(mutex);
  const auto it = devices.find(index);
  if (it != devices.end()) return it->second;
  return devices.emplace(index, read_cuda_device(cuda_runtime(), index)).first->second;
}

Device device_of(at::Device device) {
  if (device.is_cpu()) return cpu_device();
  TORCHALGO_CHECK(device.is_cuda(),
                  "TA5005 torchalgo: a tensor is on {}, expected cpu or cuda: move it there",
                  device.str());
  return cuda_device(device.index());
}

at::Device torch_device(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return at::kCPU;
  TORCHALGO_CHECK(device.index >= 0,
                  "TA5006 torchalgo: '{}' is only described ({}), so nothing can run on it: use a "
                  "GPU of this machine",
                  device.name, device.provenance);
  return {at::kCUDA, static_cast<at::DeviceIndex>(device.index)};
}

void* current_cuda_stream(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  return guard.getStream(device).native_handle();
}

void keep_fake_cuda_guard() {
  static const auto* const guard = new c10::impl::FakeGuardImpl<at::kCUDA>;  // never deleted
  // The registered guard is not read: it may be one of a thread that has ended.
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) c10::impl::registerDeviceGuard(at::kCUDA, guard);
}

}  // namespace torchalgo
