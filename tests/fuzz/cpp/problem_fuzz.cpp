// SPDX-License-Identifier: BSD-3-Clause
// A problem is refused with an Error, or it survives its spelling and has sizes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "ir/arithmetic.h"
#include "ir/problem.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torchalgo;
  Problem problem;
  try {
    problem = parse_problem(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error&) {
    return 0;
  }
  if (parse_problem(to_string(problem)) != problem) std::abort();
  if (!(flop_count(problem) >= 0)) std::abort();
  for (const Problem& layer : layers_of(problem)) {
    for (const std::int64_t length : weight_sizes(layer))
      if (length < 0) std::abort();
  }
  for (const std::int64_t length : result_sizes(problem))
    if (length < 0) std::abort();
  if (with_input_sizes(problem, input_sizes(problem)) != problem) std::abort();
  return 0;
}
