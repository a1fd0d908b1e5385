// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "cudnn_algo/fake_cudnn.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/list.h"
#include "ir/algorithm.h"
#include "ir/device.h"

namespace torchalgo::cudnn::fake {

/// The GPU behind the fake's handles; with index -1 a described one.
inline Device fake_device(int sm = 90, int index = 0) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.name = "a fake";
  device.isa = "sm_" + std::to_string(sm);
  device.properties = device_properties(sm);
  device.provenance = "a test";
  device.index = index;
  return device;
}

/// The rows on a fake.
struct FakeRows {
  FakeCudnn cudnn;
  Algorithms rows;

  explicit FakeRows(const Options& options = {})
      : cudnn(options), rows(cudnn_algorithms(cudnn.api(), cudnn.runtime())) {}

  /// The plans of this thread.
  ExecutableCache& plans() const {
    return handle_of_thread(cudnn.api(), cudnn.runtime()).executables;
  }

  const Algorithm& row(const std::string& primitive) const {
    return *find_algorithm(rows, primitive);
  }
};

}  // namespace torchalgo::cudnn::fake
