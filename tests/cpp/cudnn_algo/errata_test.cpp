// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/errata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cudnn_algo/fake_device.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;

constexpr const char* kProblem = "fwd_f16_n2c8h12w12_k16r3s3_st1x1_pad1x1_dil1x1_g1";

bool is_refused(Pattern pattern, std::int64_t engine, std::size_t version, const char* isa) {
  return errata_refusal(pattern, engine, version, isa).has_value();
}

TEST(Errata, RefusesTheEnginesThatPyTorchRefuses) {
  EXPECT_TRUE(is_refused(Pattern::kConvBackwardData, 23, 91900, "sm_90"));
  EXPECT_TRUE(is_refused(Pattern::kConv, 23, 91400, "sm_90"));
  EXPECT_FALSE(is_refused(Pattern::kConv, 23, 91500, "sm_90"));
  EXPECT_FALSE(is_refused(Pattern::kConvBiasRelu, 23, 91400, "sm_90"));  // numbered anew
  EXPECT_FALSE(is_refused(Pattern::kConvBackwardFilter, 23, 91900, "sm_90"));
}

TEST(Errata, MayNameAGpu) {
  EXPECT_TRUE(is_refused(Pattern::kConv, 5, 92301, "sm_86"));
  EXPECT_FALSE(is_refused(Pattern::kConv, 5, 92301, "sm_90"));
  EXPECT_TRUE(is_refused(Pattern::kConvBackwardFilter, 58, 91900, "sm_120"));
  EXPECT_FALSE(is_refused(Pattern::kConvBackwardFilter, 58, 91900, "sm_90"));
}

// Sets the rules of the user.
struct UserErrata {
  explicit UserErrata(std::vector<Erratum> rules) { set_errata(std::move(rules)); }
  ~UserErrata() { set_errata({}); }
  UserErrata(const UserErrata&) = delete;
  UserErrata& operator=(const UserErrata&) = delete;
};

Primitive engine_primitive(int engine) {
  return {"cudnn9.conv.e" + std::to_string(engine), Layout::kNchw, Layout::kNchw};
}

TEST(Errata, OfTheUserAreNeitherEnumeratedNorProposedNorTakenByName) {
  const UserErrata errata({{.id = "mine", .operation = "ConvFwd", .engine = 0}});
  const FakeRows fake;
  const Algorithm& row = fake.row("cudnn9.conv");
  const Problem problem = parse_problem(kProblem);
  const Offer all = row.offer(problem, fake_device());
  ASSERT_FALSE(all.primitives.empty());
  const Offer best = row.offer_one(problem, fake_device(), {"cudnn9.conv"});
  ASSERT_FALSE(best.primitives.empty());
  for (const Offer* offer : {&all, &best}) {
    for (const Primitive& primitive : offer->primitives) {
      EXPECT_FALSE(primitive.name.starts_with("cudnn9.conv.e0")) << primitive.name;
    }
  }
  const std::string reason = "the rule 'mine' of CUDNN_ERRATA_JSON_FILE refuses it";
  EXPECT_TRUE(std::any_of(all.refused.begin(), all.refused.end(), [&](const auto& refused) {
    return refused.primitive == "cudnn9.conv.e0" && refused.reason == reason;
  }));
  const FakeRows fresh;  // has no enumeration to look into
  EXPECT_EQ(fresh.row("cudnn9.conv").offer_one(problem, fake_device(), engine_primitive(0)).refusal,
            reason);
  EXPECT_EQ(fresh.row("cudnn9.conv").offer_one(problem, fake_device(), engine_primitive(1)).refusal,
            "");
}

}  // namespace
}  // namespace torchalgo::cudnn
