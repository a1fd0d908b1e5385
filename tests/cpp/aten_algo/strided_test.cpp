// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace torchalgo {
namespace {

TEST(ToStrided, GivesTheOneStrideVectorOfTheLayoutWhateverTheInput) {
  const std::vector<std::vector<std::int64_t>> all_sizes = {
      {2, 3, 4, 5}, {2, 1, 4, 5},    {2, 8, 1, 1},   {1, 1, 1, 1},
      {1, 8, 4, 1}, {2, 3, 2, 4, 5}, {2, 1, 2, 4, 5}};
  for (const auto& sizes : all_sizes) {
    const at::Tensor nchw = at::randn(sizes);
    const at::Tensor reversed = nchw.permute([&] {
                                      std::vector<std::int64_t> order(sizes.size());
                                      for (std::size_t i = 0; i < order.size(); ++i)
                                        order[i] = order.size() - 1 - i;
                                      return order;
                                    }())
                                    .contiguous();
    std::vector<std::int64_t> back(sizes.size());
    for (std::size_t i = 0; i < back.size(); ++i) back[i] = back.size() - 1 - i;
    const auto format =
        sizes.size() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
    for (const at::Tensor& input :
         {nchw, nchw.clone(format), reversed.permute(back), nchw.expand(sizes)}) {
      for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
        const at::Tensor dense = to_strided(input, layout);
        EXPECT_EQ(dense.strides(), at::IntArrayRef(dense_strides(sizes, layout)));
        EXPECT_TRUE(dense.equal(nchw));
      }
    }
  }
}

TEST(ToStrided, CopiesNothingWhereTheMemoryLiesRight) {
  const at::Tensor one_channel = at::randn({2, 1, 4, 5});
  EXPECT_EQ(to_strided(one_channel, Layout::kNhwc).data_ptr(), one_channel.data_ptr());
  const at::Tensor image = at::randn({2, 3, 4, 5});
  EXPECT_EQ(to_strided(image, Layout::kNchw).data_ptr(), image.data_ptr());
}

TEST(DenseStrides, EqualThoseOfAnEmptyTensorInThatFormat) {
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{2, 3, 4, 5}, {2, 1, 1, 1}}) {
    const auto options = at::TensorOptions().dtype(at::kFloat);
    EXPECT_EQ(at::IntArrayRef(dense_strides(sizes, Layout::kNchw)),
              at::empty(sizes, options).strides());
    EXPECT_EQ(at::IntArrayRef(dense_strides(sizes, Layout::kNhwc)),
              at::empty(sizes, options.memory_format(at::MemoryFormat::ChannelsLast)).strides());
  }
}

}  // namespace
}  // namespace torchalgo
