// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "cudnn_algo/fake_device.h"
#include "profiler/check.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo::cudnn::fake {

// One primitive on its own inputs, to run again and again.
class Repeated {
 public:
  Repeated(const FakeRows& fake, const std::string& problem, const std::string& name,
           Layout src = Layout::kNchw, Layout dst = Layout::kNchw)
      : problem_(parse_problem(problem)),
        row_(&fake.row(name)),
        sample_(make_sample(problem_, 7)),
        reference_(reference_result(problem_, sample_)) {
    const Offer offer = offer_exact(*row_, problem_, fake_device(), name, src, dst);
    EXPECT_EQ(offer.refusal, "");
    if (offer.refusal.empty()) primitive_ = offer.primitives.at(0);
    prepare();
    packed_ = pack(kernel_, sample_.weights);
    for (std::size_t i = 0; i < sample_.src.size(); ++i) {
      src_.push_back(to_layout(sample_.src[i], input_layout(problem_, primitive_, i)));
    }
    dst_ = empty_result(problem_, result_layout(problem_, primitive_));
    workspace_ = at::empty({primitive_.workspace_bytes}, at::TensorOptions().dtype(at::kByte));
  }

  // To be called again after row_ or primitive_ changed.
  void prepare() { kernel_ = row_->prepare(problem_, primitive_, fake_device()); }
  at::Tensor run() { return run_on(src_[0], dst_); }
  at::Tensor run_on(const at::Tensor& src, const at::Tensor& dst) {
    std::vector<at::Tensor> all = src_;
    all[0] = src;
    void* const scratch = primitive_.workspace_bytes > 0 ? workspace_.data_ptr() : nullptr;
    return kernel_.run({packed_, all, {}, dst, scratch});
  }
  bool is_right(const at::Tensor& result) const {
    return at::allclose(
        from_layout(result, result_layout(problem_, primitive_), result_sizes(problem_))
            .to(at::kDouble),
        reference_, 1e-5, 1e-5);
  }
  std::string error_of_run() {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  Problem problem_;
  const Algorithm* row_;
  Sample sample_;
  at::Tensor reference_;
  Primitive primitive_;
  Kernel kernel_;
  Packed packed_;
  std::vector<at::Tensor> src_;
  at::Tensor dst_, workspace_;
};

}  // namespace torchalgo::cudnn::fake
