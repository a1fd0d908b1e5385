// SPDX-License-Identifier: BSD-3-Clause
// Dropping <name>.pbqp and <name>.opt (the optimum's cost, or "infeasible") into tests/regressions
// is a new test.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "pbqp/solve.h"
#include "pbqp/text.h"

namespace torchalgo::pbqp {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << "cannot read " << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::filesystem::path> problem_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TORCHALGO_TEST_DATA) + "/regressions"))
    if (entry.path().extension() == ".pbqp") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void expect_optimum(const Problem& problem, const SolveOptions& options,
                    const std::string& optimum) {
  const Solution solution = solve(problem, options);
  if (optimum == "infeasible") {
    EXPECT_EQ(solution.status, Status::kInfeasible) << solution.method;
    return;
  }
  EXPECT_EQ(solution.status, Status::kOptimal) << solution.method;
  EXPECT_EQ(std::to_string(solution.cost), optimum) << solution.method;
}

TEST(Regressions, KeepTheirOptimum) {
  const auto files = problem_files();
  ASSERT_FALSE(files.empty());
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename());
    std::filesystem::path answer = file;
    std::string optimum = read_text(answer.replace_extension(".opt"));
    optimum.erase(optimum.find_last_not_of(" \r\n") + 1);
    const Problem problem = parse_problem(read_text(file));
    expect_optimum(problem, {}, optimum);
    const SolveOptions no_tables{0, std::numeric_limits<double>::infinity()};
    expect_optimum(problem, no_tables, optimum);
  }
}

}  // namespace
}  // namespace torchalgo::pbqp
