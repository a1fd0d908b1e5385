// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/text.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

void expect_refused(const std::string& text, const std::string& words) {
  try {
    (void)parse_problem(text);
    FAIL() << "accepted: " << text;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << "got: " << error.what() << "\nwanted: " << words;
  }
}

TEST(ProblemText, LooksLikeThis) {
  const Problem problem{{{1, kForbidden}, {}, {7}}, {{2, 0, {3, kForbidden}}, {0, 1, {}}}};
  EXPECT_EQ(to_text(problem), "pbqp 1\nnode 1 -\nnode\nnode 7\nedge 2 0 3 -\nedge 0 1\n");
}

TEST(ProblemText, ReadsBackWhatItWrites) {
  RandomProblem random(21);
  for (int i = 0; i < 500; ++i) {
    const Problem problem = random.small();
    EXPECT_EQ(parse_problem(to_text(problem)), problem) << to_text(problem);
  }
  const Problem largest{{{kForbidden - 1}}, {}};
  EXPECT_EQ(parse_problem(to_text(largest)), largest);
}

TEST(ProblemText, SkipsCommentsAndBlankLines) {
  const Problem problem{{{1, 2}}, {}};
  EXPECT_EQ(parse_problem("# why\r\n\n  pbqp   1\r\n\t\n# more\nnode\t1 2"), problem);
}

TEST(ProblemText, RefusesMalformedTextAndNamesTheLine) {
  expect_refused("", "got nothing");
  expect_refused("# only a comment\n", "got nothing");
  expect_refused("pbqp 2\n", "line 1");
  expect_refused("node 1\n", "line 1: expected \"pbqp 1\"");
  expect_refused("pbqp 1\nnodes 1\n", "line 2: expected \"node\" or \"edge\"");
  expect_refused("pbqp 1\nnode 1 x\n", "line 2: expected an integer");
  expect_refused("pbqp 1\nnode 1.5\n", "line 2");
  expect_refused("pbqp 1\nnode -1\n", "line 2");
  expect_refused("pbqp 1\n\nnode 9223372036854775808\n", "line 3");
  expect_refused("pbqp 1\nnode 9223372036854775807\n", "line 2: the cost is too large");
  expect_refused("pbqp 1\nnode 1\nedge 0\n", "line 3: an edge needs two nodes");
  expect_refused("pbqp 1\nnode 1\nedge 0 1 5\nnode 1\n", "line 3: node 1 is not there");
  expect_refused("pbqp 1\nnode 1\nedge 0 0 5\n", "line 3: the edge joins node 0 to itself");
  expect_refused("pbqp 1\nnode 1\nnode 1 2\nedge 0 1 5\n", "line 4: expected 1 x 2 costs, got 1");
  expect_refused("pbqp 1\nnode 9223372036854775806\nnode 9\n", "exceeds 64 bits");
}

}  // namespace
}  // namespace torchalgo::pbqp
