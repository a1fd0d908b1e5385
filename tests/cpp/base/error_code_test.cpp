// SPDX-License-Identifier: BSD-3-Clause
#include "base/error_code.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

TEST(ErrorCode, OfTheWrappedErrorGoesToTheFront) {
  EXPECT_EQ(with_inner_code("TA4303 layer 'a': TA4301 got 2 inputs"),
            "TA4301 layer 'a': got 2 inputs");
  EXPECT_EQ(with_inner_code("TA4303 a: TA4301 b: TA4001 c"), "TA4001 a: b: c");
}

TEST(ErrorCode, OfTheWrapperRemainsIfTheWrappedTextHasNone) {
  EXPECT_EQ(with_inner_code("TA4303 layer 'a': out of memory"), "TA4303 layer 'a': out of memory");
  EXPECT_EQ(with_inner_code("out of memory"), "out of memory");
  EXPECT_EQ(with_inner_code("TA4303 "), "TA4303 ");
}

TEST(ErrorCode, IsAWordOfItsOwn) {
  for (const char* text : {"xTA4303 a", "TA430 a", "TA43031 a", "TA4303", "TAB4303 a", "TA430"}) {
    EXPECT_EQ(with_inner_code(text), text);
    EXPECT_EQ(without_code(text), text);
  }
}

TEST(ErrorCode, IsLeftOutOfATextThatIsNotAnError) {
  EXPECT_EQ(without_code("TA5102 cuDNN: TA5104 no workspace"), "cuDNN: no workspace");
  EXPECT_EQ(without_code(""), "");
}

}  // namespace
}  // namespace torchalgo
