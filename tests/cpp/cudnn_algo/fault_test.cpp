// SPDX-License-Identifier: BSD-3-Clause
// Every call of cuDNN fails once, with several statuses: each ends in an Error that says so,
// nothing leaks, and the next run is right.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cudnn_algo/repeated.h"
#include "provider/kernel.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;
using fake::Repeated;

constexpr Status kStatuses[] = {kBadParam, kNotSupported, kInternalErrorHostAllocationFailed,
                                kExecutionFailed, 9999};

struct Case {
  std::string problem, primitive;
};

const std::vector<Case>& cases() {
  static const std::string kSizes = "n2c4h6w5_k6r3s3_st1x1_pad1x1_dil1x1_g1";
  static const std::vector<Case> all = {
      {"fwd_tf32_" + kSizes, "cudnn9.conv.e2{SPLIT_K=2}"},
      {"bwd_data_tf32_" + kSizes, "cudnn9.conv_bwd_data.e2.krsc"},
      {"bwd_filter_tf32_" + kSizes, "cudnn9.conv_bwd_filter.e4"},
      {"fwd_tf32_" + kSizes + "+bias+relu", "cudnn9.conv_bias_relu.e1"},
      {"fwd_tf32_" + kSizes, "cudnn_legacy.fwd.1"},
      {"bwd_data_tf32_" + kSizes, "cudnn_legacy.bwd_data.1@fma"},
      {"bwd_filter_tf32_" + kSizes, "cudnn_legacy.bwd_filter.0"},
  };
  return all;
}

bool destroys(const fake::CallRecord& record) {
  return record.function.find("destroy") != std::string::npos;
}

// The run whose call number `at` fails; false: it has fewer calls.
bool run_with_fault(const FakeRows& fake, const Repeated& conv, std::int64_t at, Status status) {
  const fake::Stats before = fake.cudnn.stats();
  const fake::Fault fault(fake.cudnn.api(), at, status);
  const Algorithms rows = cudnn_algorithms(fault.api(), fake.cudnn.runtime());
  Repeated faulty(conv);
  faulty.row_ = find_algorithm(rows, conv.primitive_.name);
  faulty.prepare();
  const std::string error = faulty.error_of_run();
  if (!fault.failed()) return false;
  const std::string where = fmt::format("{}, call {} of {}, status {}: {}", conv.primitive_.name,
                                        at, fault.failed()->function, status, error);
  if (!destroys(*fault.failed())) {
    EXPECT_NE(error.find(std::to_string(status)), std::string::npos) << where;
    EXPECT_NE(error.find(to_string(conv.problem_)), std::string::npos) << where;
    EXPECT_NE(error.find(conv.primitive_.name), std::string::npos) << where;
  }
  EXPECT_TRUE(faulty.is_right(faulty.run())) << where;
  faulty.kernel_ = {};
  handle_of_thread(fault.api(), fake.cudnn.runtime()).executables.clear();
  const fake::Stats stats = fake.cudnn.stats();
  EXPECT_EQ(stats.alive, before.alive) << where;
  EXPECT_EQ(stats.double_destroys + stats.uses_after_destroy + stats.crashes, 0) << where;
  return true;
}

TEST(Faults, EachCallOfARunFailsCleanly) {
  for (const Case& each : cases()) {
    const FakeRows fake;
    const Repeated conv(fake, each.problem, each.primitive);
    for (const Status status : kStatuses) {
      std::int64_t calls = 0;
      while (run_with_fault(fake, conv, calls, status)) ++calls;
      EXPECT_GT(calls, 10) << each.primitive;
    }
  }
}

TEST(Faults, EachCallOfAnOfferIsARefusal) {
  for (const Case& each : cases()) {
    const Problem problem = parse_problem(each.problem);
    std::int64_t calls = 0;
    for (std::int64_t at = 0;; ++at) {
      FakeRows fake;
      const fake::Fault fault(fake.cudnn.api(), at, kInternalError);
      fake.rows = cudnn_algorithms(fault.api(), fake.cudnn.runtime());
      const Offer offer = offer_exact(fake.row(each.primitive), problem, fake_device(),
                                      each.primitive, Layout::kNchw, Layout::kNchw);
      if (!fault.failed()) {
        EXPECT_EQ(offer.primitives.size(), 1U) << each.primitive << ": " << offer.refusal;
        break;
      }
      ++calls;
      const std::string where =
          each.primitive + ", call " + std::to_string(at) + " of " + fault.failed()->function;
      EXPECT_NE(offer.primitives.empty(), offer.refusal.empty()) << where;
      // Without a handle, engines are asked for by the description of the GPU.
      const std::string function = fault.failed()->function;
      const bool makes_handle = function == "create_handle" || function == "set_stream";
      if (makes_handle && each.primitive.starts_with("cudnn9.")) {
        EXPECT_EQ(offer.primitives.size(), 1U) << where;
      } else if (!destroys(*fault.failed())) {
        EXPECT_TRUE(offer.primitives.empty()) << where;
      }
      fake.rows.clear();
      EXPECT_EQ(fake.cudnn.stats().alive, 0) << where;
      EXPECT_EQ(fake.cudnn.stats().double_destroys, 0) << where;
    }
    EXPECT_GT(calls, 10) << each.primitive;
  }
}

// The whole list makes thousands of calls: every one in a stride that no loop of it shares.
TEST(Faults, CallsOfAListFailCleanly) {
  constexpr std::int64_t kStride = 97;
  for (const Case& each : cases()) {
    const Problem problem = parse_problem(each.problem);
    for (std::int64_t at = 0;; at += kStride) {
      FakeRows fake;
      const fake::Fault fault(fake.cudnn.api(), at, kInternalErrorHostAllocationFailed);
      fake.rows = cudnn_algorithms(fault.api(), fake.cudnn.runtime());
      const Offer offer = fake.row(each.primitive).offer(problem, fake_device());
      EXPECT_NE(offer.primitives.empty(), offer.refusal.empty()) << each.primitive << " " << at;
      fake.rows.clear();
      EXPECT_EQ(fake.cudnn.stats().alive, 0) << each.primitive << " " << at;
      if (!fault.failed()) break;
    }
  }
}

}  // namespace
}  // namespace torchalgo::cudnn
