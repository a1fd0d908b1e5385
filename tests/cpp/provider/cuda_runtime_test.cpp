// SPDX-License-Identifier: BSD-3-Clause
#include "provider/cuda_runtime.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace torchalgo {
namespace {

// A stream's answer to the question whether it captures a CUDA graph.
struct FakeStream {
  int status = 0, capture = 0, errors_cleared = 0;

  CudaRuntime runtime() {
    CudaRuntime runtime;
    runtime.get_capture_status = [this](void* stream, int* answer) {
      EXPECT_EQ(stream, this);
      *answer = capture;
      return status;
    };
    runtime.get_last_error = [this] { return ++errors_cleared, 0; };
    return runtime;
  }
};

TEST(IsCapturing, ReturnsTheAnswerOfTheStream) {
  FakeStream stream;
  const CudaRuntime runtime = stream.runtime();
  EXPECT_FALSE(is_capturing(runtime, &stream));
  for (const int capture : {1, 2}) {  // active, invalidated
    stream.capture = capture;
    EXPECT_TRUE(is_capturing(runtime, &stream)) << capture;
  }
  EXPECT_EQ(stream.errors_cleared, 0);
}

TEST(IsCapturing, IsTrueAndClearsTheErrorIfACaptureForbidsTheQuestion) {
  FakeStream stream;
  stream.status = 906;  // cudaErrorStreamCaptureImplicit
  EXPECT_TRUE(is_capturing(stream.runtime(), &stream));
  EXPECT_EQ(stream.errors_cleared, 1);
}

TEST(IsCapturing, ThrowsOtherErrors) {
  FakeStream stream;
  stream.status = 700;  // cudaErrorIllegalAddress
  try {
    static_cast<void>(is_capturing(stream.runtime(), &stream));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("TA5004"), 0U) << error.what();
  }
}

}  // namespace
}  // namespace torchalgo
