// SPDX-License-Identifier: BSD-3-Clause
// The checker is Python and has its own tests; here: what is written.
#include "pbqp/certificate.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "pbqp/sha256.h"
#include "pbqp/text.h"
#include "random_problem.h"

namespace torchalgo::pbqp {
namespace {

TEST(Sha256, EqualsTheExamplesOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, IsTheSameInPieces) {
  std::mt19937_64 random(7);
  for (int size = 0; size < 400; ++size) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(random() % 256);
    const std::string whole = sha256(bytes);
    Sha256 hash;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = random() % 130;
      hash.add(std::string_view(bytes).substr(at, count));
      at += count;
    }
    EXPECT_EQ(hash.digits(), whole) << size << " bytes";
  }
}

TEST(Certificate, LooksLikeThis) {
  const Problem problem{{{3, 0}, {1, 2}}, {{0, 1, {0, 5, kForbidden, 0}}}};
  EXPECT_EQ(certificate_text(problem, solve(problem)),
            "pbqp-certificate 2\n"
            "problem " +
                sha256(to_text(problem)) +
                "\n"
                "choice 1 1\ncost 2\nbound 2\n"
                "eliminate 0 1\nclose\n");
}

TEST(Certificate, IsThereForEveryWayOfSolving) {
  RandomProblem random(61);
  int messages = 0, branches = 0;
  for (int i = 0; i < 60; ++i) {
    const Problem problem = random.dense(6, 4, 60);
    const Solution solution = solve(problem, {0, std::numeric_limits<double>::infinity()});
    messages += solution.certificate.kind == Certificate::Kind::kMessages;
    branches += solution.certificate.kind == Certificate::Kind::kBranches;
    EXPECT_NE(solution.certificate.kind, Certificate::Kind::kNone);
    EXPECT_TRUE(solution.certificate.proof.ends_with("close\n"));
  }
  EXPECT_GT(messages, 5);
  EXPECT_GT(branches, 5);
}

TEST(Certificate, IsGivenUpWhereItDoesNotFit) {
  RandomProblem random(62);
  SolveOptions options{0, std::numeric_limits<double>::infinity()};
  options.proof_cap = 100;
  const Solution solution = solve(random.dense(7, 4, 60), options);
  EXPECT_EQ(solution.status, Status::kOptimal);
  EXPECT_EQ(solution.certificate.kind, Certificate::Kind::kNone);
  EXPECT_TRUE(solution.certificate.proof.empty());
}

}  // namespace
}  // namespace torchalgo::pbqp
