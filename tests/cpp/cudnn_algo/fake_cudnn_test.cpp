// SPDX-License-Identifier: BSD-3-Clause
// The fake notices what the tests rely on it to notice.
#include "cudnn_algo/fake_cudnn.h"

#include <gtest/gtest.h>

#include <thread>

#include "cudnn_algo/descriptor.h"

namespace torchalgo::cudnn::fake {
namespace {

TEST(FakeCudnn, CountsLeaksDoubleDestroysAndUsesAfterDestroy) {
  FakeCudnn fake;
  Descriptor tensor = nullptr;
  ASSERT_EQ(fake.api()->create_descriptor(DescriptorType::kTensor, &tensor), kSuccess);
  EXPECT_EQ(fake.stats().alive, 1);
  EXPECT_EQ(fake.api()->destroy_descriptor(tensor), kSuccess);
  EXPECT_EQ(fake.stats().alive, 0);
  EXPECT_NE(fake.api()->destroy_descriptor(tensor), kSuccess);
  EXPECT_EQ(fake.stats().double_destroys, 1);
  EXPECT_NE(fake.api()->finalize(tensor), kSuccess);
  EXPECT_EQ(fake.stats().uses_after_destroy, 1);
}

TEST(FakeCudnn, CountsDescriptorsSharedBetweenThreads) {
  FakeCudnn fake;
  OwnedDescriptor tensor(*fake.api(), DescriptorType::kTensor);
  std::thread([&] { tensor.set(AttributeName::kTensorDataType, DataType::kFloat); }).join();
  EXPECT_EQ(fake.stats().shared_between_threads, 1);
  Handle handle = nullptr;
  ASSERT_EQ(fake.api()->create_handle(&handle), kSuccess);
  std::thread([&] { static_cast<void>(fake.api()->set_stream(handle, nullptr)); }).join();
  EXPECT_EQ(fake.stats().shared_between_threads, 2);
}

TEST(FakeCudnn, WantsEveryAttributeOfItsTypeOnceAndFinalizedParts) {
  FakeCudnn fake;
  OwnedDescriptor choice(*fake.api(), DescriptorType::kKnobChoice);
  EXPECT_THROW(choice.set(AttributeName::kKnobChoiceValue, true), StatusError);
  EXPECT_THROW(choice.set(AttributeName::kTensorStrides, std::int64_t{1}), StatusError);
  choice.set(AttributeName::kKnobChoiceValue, std::int64_t{1});
  EXPECT_EQ(choice.try_finalize(), kBadParam) << "the knob's type is missing";
  OwnedDescriptor config(*fake.api(), DescriptorType::kEngineConfig);
  OwnedDescriptor engine(*fake.api(), DescriptorType::kEngine);
  EXPECT_THROW(config.set(AttributeName::kEngineConfigEngine, engine), StatusError);
}

TEST(FakeCudnn, CountsWhatWouldCrash) {
  FakeCudnn fake;
  EXPECT_NE(fake.api()->set_stream(nullptr, nullptr), kSuccess);
  std::size_t bytes = 0;
  EXPECT_NE(fake.api()->legacy.get_forward_workspace(nullptr, nullptr, nullptr, nullptr, nullptr, 0,
                                                     &bytes),
            kSuccess);
  EXPECT_EQ(fake.stats().crashes, 2);
}

TEST(Fault, FailsExactlyTheCallItIsGiven) {
  FakeCudnn fake;
  const Fault fault(fake.api(), 1, kInternalError);
  Descriptor first = nullptr, second = nullptr;
  EXPECT_EQ(fault.api()->create_descriptor(DescriptorType::kTensor, &first), kSuccess);
  EXPECT_FALSE(fault.failed());
  EXPECT_EQ(fault.api()->create_descriptor(DescriptorType::kEngine, &second), kInternalError);
  EXPECT_EQ(fault.failed()->created, DescriptorType::kEngine);
  EXPECT_EQ(fault.api()->destroy_descriptor(first), kSuccess);
}

}  // namespace
}  // namespace torchalgo::cudnn::fake
