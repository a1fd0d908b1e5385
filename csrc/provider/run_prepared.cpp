// SPDX-License-Identifier: BSD-3-Clause
#include "provider/run_prepared.h"

#include <utility>

#include "provider/memory.h"

namespace torchalgo {

ResultForm result_form(const Problem& problem, Layout layout, at::Device device) {
  return {shape_in(result_sizes(problem), layout),
          scalar_type(element_type(layout, dtype_of(problem))), device};
}

at::Tensor run_prepared(const Kernel& kernel, const Packed& packed, std::span<const at::Tensor> src,
                        const at::Tensor& residual, const ResultForm& form, at::Tensor dst) {
  if (!kernel.makes_dst && !dst.defined())
    dst = empty_reused(form.shape.sizes, form.shape.strides, form.dtype, form.device);
  at::Tensor workspace;
  const std::int64_t bytes = kernel.primitive.workspace_bytes;
  if (bytes > 0) workspace = empty_bytes(bytes, form.device);
  return kernel.run({packed, src, residual, std::move(dst),
                     workspace.defined() ? workspace.data_ptr() : nullptr});
}

}  // namespace torchalgo
