// SPDX-License-Identifier: BSD-3-Clause
// The bits of the results of our own kernels, beside those in tests/golden/result_bits.txt. A
// change that only moves code leaves them as they are. TORCHALGO_WRITE_BITS=1 writes the lines of
// the builds that run here, after a change that is meant.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/hash.h"
#include "cpu_algo/problems.h"
#include "cpu_algo/row_check.h"
#include "ir/algorithm.h"
#include "ir/primitive.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

const char* const kFile = TORCHALGO_TEST_DATA "/golden/result_bits.txt";
const char* const kCure = ": if that is meant, run this test once with TORCHALGO_WRITE_BITS=1";

// Numbers in [-0.5, 0.5), the same on each machine; those of torch's generators are not.
at::Tensor fixed_like(const at::Tensor& tensor, double start) {
  const at::Tensor steps = at::arange(tensor.numel(), at::kDouble).mul(0.6180339887).add(start);
  return steps.sub(steps.floor()).sub(0.5).to(tensor.scalar_type()).reshape(tensor.sizes());
}

Sample fixed_sample(const Problem& problem) {
  Sample sample = make_sample(problem, 0);
  double start = 0;
  const auto fix = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = fixed_like(tensor, start += 0.1);
  };
  for (at::Tensor& src : sample.src) fix(src);
  fix(sample.residual);
  for (LayerWeights& layer : sample.weights) {
    fix(layer.weights);
    fix(layer.bias);
  }
  return sample;
}

std::string bits_of(const at::Tensor& result) {
  const at::Tensor plain = result.contiguous();
  const auto* bytes = static_cast<const char*>(plain.const_data_ptr());
  return fmt::format("{:016x}", fnv1a64({bytes, plain.nbytes()}));
}

// By build, primitive and problem.
std::map<std::string, std::string> found_here() {
  const Threads one(1);
  std::map<std::string, std::string> found;
  for (const std::string& isa : isas()) {
    for (const Algorithm& algorithm : prepared_algorithms(isa)) {
      // A processor that multiplies in bf16 runs other kernels, which add up in another order.
      if (isa == "avx512" && algorithm.name.starts_with("cpu.bf16_c")) continue;
      for (const char* text : kProblems) {
        const Problem problem = parse_problem(text);
        for (const Primitive& primitive : algorithm.offer(problem, device_with_bf16()).primitives) {
          const at::Tensor result = run_once(algorithm, problem, primitive, fixed_sample(problem));
          found[fmt::format("{} {} {}", isa, to_string(primitive), text)] = bits_of(result);
        }
      }
    }
  }
  return found;
}

std::map<std::string, std::string> golden() {
  std::map<std::string, std::string> found;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) {
    const std::size_t end = line.rfind(' ');
    found[line.substr(0, end)] = line.substr(end + 1);
  }
  return found;
}

TEST(Bits, OfEachKernelAreThoseOfTheGoldenFile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "other optimizations fuse other products and sums";
#endif
  const auto found = found_here();
  // A machine that cannot run a build has no results of it.
  const auto runs_here = [](const auto& line) {
    const std::vector<std::string> here = isas();
    return std::find(here.begin(), here.end(), line.first.substr(0, line.first.find(' '))) !=
           here.end();
  };
  auto expected = golden();
  if (std::getenv("TORCHALGO_WRITE_BITS") != nullptr) {
    std::erase_if(expected, runs_here);
    expected.insert(found.begin(), found.end());
    std::ofstream file(kFile);
    for (const auto& [what, bits] : expected) file << what << ' ' << bits << '\n';
  }
  std::erase_if(expected, [&](const auto& line) { return !runs_here(line); });
  EXPECT_GT(expected.size(), 100U);
  for (const auto& [what, bits] : expected) {
    const auto own = found.find(what);
    EXPECT_TRUE(own != found.end() && own->second == bits) << what << " has other bits" << kCure;
  }
  for (const auto& [what, bits] : found)
    EXPECT_TRUE(expected.contains(what)) << what << " is new" << kCure;
}

TEST(Bits, AreInTheGoldenFileForEachAlgorithm) {
  const auto expected = golden();
  for (const Algorithm& algorithm : prepared_algorithms()) {
    const bool is_there = std::any_of(expected.begin(), expected.end(), [&](const auto& line) {
      const std::size_t begin = line.first.find(' ') + 1;
      return matches_name(line.first.substr(begin, line.first.find(' ', begin) - begin),
                          algorithm.name);
    });
    EXPECT_TRUE(is_there) << algorithm.name << " is new" << kCure;
  }
}

}  // namespace
}  // namespace torchalgo
