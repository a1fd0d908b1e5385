// SPDX-License-Identifier: BSD-3-Clause
#include "runner/plan_object.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace torchalgo {
namespace {

std::string error_of(std::vector<c10::IValue> fields) {
  try {
    static_cast<void>(PlanObject::from_state(c10::ivalue::Tuple::create(std::move(fields))));
  } catch (const Error& error) {
    return std::string(error.what()).substr(0, 6);
  }
  return "";
}

TEST(PlanObject, ReadsTheVersionOfAStateBeforeTheRest) {
  const c10::IValue none = c10::ivalue::Tuple::create(std::vector<c10::IValue>{});
  EXPECT_EQ(error_of({std::int64_t{7}}), "TA2008");
  EXPECT_EQ(error_of({std::int64_t{7}, 1, 2, 3, 4}), "TA2008");
  EXPECT_EQ(error_of({std::int64_t{1}, "2.11"}), "TA2005");
  EXPECT_EQ(error_of({std::int64_t{1}, "2.11", none}), "TA2005");
  EXPECT_EQ(error_of({"1", "2.11", none}), "TA2005");
  EXPECT_EQ(error_of({}), "TA2005");
}

}  // namespace
}  // namespace torchalgo
