// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ir/primitive.h"
#include "ir/problem.h"
#include "ir/work.h"
#include "provider/weights.h"

namespace torchalgo {

/// The tensors of one run of a kernel. They lie in the primitive's layouts; blocked ones are 5-D.
/// Those of attention have any strides.
struct KernelArgs {
  const Packed& packed;             // what the kernel's `pack` returned
  std::span<const at::Tensor> src;  // data inputs in call order, without the residual
  at::Tensor residual;              // in dst's layout; undefined unless the epilogue has kAdd
  at::Tensor dst;                   // allocated; undefined if the kernel has `makes_dst`
  void* workspace = nullptr;        // primitive.workspace_bytes, 64-byte aligned, content undefined
};

/// A primitive that is prepared for one problem on one device. Names and sizes are decoded when it
/// is made, so that `run` parses nothing.
struct Kernel {
  Problem problem;
  Primitive primitive;  // with its workspace_bytes
  /// Writes all of args.dst, with zeros in pad lanes, and returns it. It allocates nothing. Several
  /// threads may call it at once with different dst and workspace. A kernel with `makes_dst`
  /// returns a tensor of its library instead.
  std::function<at::Tensor(const KernelArgs& args)> run = nullptr;
  /// Converts the weights to the form that `run` reads. It is called once per set of weights. Null
  /// if there are none; see pack() below.
  std::function<Packed(const Weights&)> pack = nullptr;
  /// Returns the bytes that `pack` allocates beside the model's own weights, which it may share.
  /// Null if packing is the only way to know: see packed_bytes() below.
  std::function<std::int64_t()> packed_bytes = nullptr;
  /// Returns the work that every run must do. Null for libraries that may choose any algorithm; see
  /// least_work() below.
  std::function<Work()> least_work = nullptr;
  std::string packing = {};  // as PlainKernel::packing, for what `pack` returns
  bool makes_dst = false;
};

/// Packs `weights` for `kernel`. Returns no tensors if the kernel has no weights.
[[nodiscard]] Packed pack(const Kernel& kernel, const Weights& weights);

/// Returns the bytes that packing allocates. If kernel.packed_bytes is null, it packs weights of
/// zeros to measure them.
[[nodiscard]] std::int64_t packed_bytes(const Kernel& kernel);

/// Returns the work that every run of `kernel` must do. If kernel.least_work is null, it is each
/// byte once and no arithmetic.
[[nodiscard]] Work least_work(const Kernel& kernel);

}  // namespace torchalgo
