// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// One function per row of layout_algorithms(), each defined in the file of its name.

#include <functional>
#include <string>

#include "layout_algo/cuda_library.h"
#include "provider/algorithm.h"

namespace torchalgo::layout {

/// The two layouts of a transform, or why there is none.
struct LayoutPair {
  Layout from = Layout::kNchw, to = Layout::kNchw;
  std::string refusal;
};
[[nodiscard]] LayoutPair layout_pair(const Problem& problem);

/// ATen's copy: nchw <-> nhwc of any type, 4-D or 5-D.
[[nodiscard]] Algorithm aten();

/// Own cache-blocked transposes: f32, any two layouts; 3-D between nchw and nhwc.
[[nodiscard]] Algorithm tiled(const std::string& isa = cpu_device().isa);

/// Own tiled transposes on CUDA (csrc/cuda): nchw <-> nhwc of f32, f16, bf16, 4-D or 5-D. The
/// library is asked for when a CUDA problem first comes.
[[nodiscard]] Algorithm cuda_tiled(
    const std::function<const CudaLibrary&()>& library = cuda_library);

}  // namespace torchalgo::layout
