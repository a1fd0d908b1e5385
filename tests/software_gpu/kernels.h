// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <functional>
#include <string>

namespace software_gpu {

struct Grid {
  dim3 blocks;
  unsigned threads;  // of a block
};

/// Returns a function that computes the kernel; an empty one if the kernel is not imitated.
std::function<void()> kernel_work(const std::string& mangled_name, const Grid& grid,
                                  void** arguments);

/// Returns the function of libcuda.so.1 with this name, or one that refuses.
void* driver_function(const char* name);

}  // namespace software_gpu
