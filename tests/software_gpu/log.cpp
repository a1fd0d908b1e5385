// SPDX-License-Identifier: BSD-3-Clause
// The log, and the faults that a test asks for.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "gpu.h"

namespace {

// After these errors of a kernel, each call of CUDA returns the same error.
constexpr int kIllegalAddress = 700, kLaunchFailure = 719;

struct Fault {
  std::string function;
  int at = 0, status = 0;
};

Fault wanted_fault() {
  const char* const text = std::getenv("SOFTWARE_GPU_FAULT");
  if (text == nullptr || *text == '\0') return {};
  const std::string words = text;
  const auto first = words.find(':'), second = words.find(':', first + 1);
  return {words.substr(0, first), std::stoi(words.substr(first + 1)),
          std::stoi(words.substr(second + 1))};
}

}  // namespace

void software_gpu_log(const char* line) {
  static std::mutex mutex;
  static std::FILE* const file = [] {
    const char* const path = std::getenv("SOFTWARE_GPU_LOG");
    return path != nullptr ? std::fopen(path, "a") : nullptr;
  }();
  if (file == nullptr) return;
  const std::lock_guard lock(mutex);
  std::fprintf(file, "%s\n", line);
  std::fflush(file);  // a process may crash later
}

int software_gpu_fault(const char* function) {
  static std::mutex mutex;
  static const Fault fault = wanted_fault();
  static int calls = 0, lost = 0;
  const std::lock_guard lock(mutex);
  if (lost != 0) {
    constexpr int kExecutionFailed = 5000;  // CUDNN_STATUS_EXECUTION_FAILED
    return std::string_view(function).starts_with("cudnn") ? kExecutionFailed : lost;
  }
  if (fault.function != function || ++calls != fault.at) return 0;
  software_gpu_log(("fault " + fault.function).c_str());
  if (fault.status == kIllegalAddress || fault.status == kLaunchFailure) lost = fault.status;
  return fault.status;
}
