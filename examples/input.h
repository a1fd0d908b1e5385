// SPDX-License-Identifier: BSD-3-Clause
// What both example programs do with sizes, inputs and outputs.
#pragma once

#include <ATen/ops/linspace.h>

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

// Returns the sizes in a text such as "1x3x224x224".
inline std::vector<std::int64_t> parse_sizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  std::stringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) sizes.push_back(std::stoll(size));
  return sizes;
}

// Returns a tensor of numbers from -1 to 1, which Python can make as well.
inline at::Tensor make_input(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return at::linspace(-1, 1, count).reshape(sizes);
}

// Prints one line about an output, to be compared with Python's.
inline void print_summary(const at::Tensor& result) {
  const at::Tensor output = result.flatten();
  std::printf("elements %lld, sum %.6f, largest at %lld\n", static_cast<long long>(output.numel()),
              output.sum().item<double>(),
              static_cast<long long>(output.argmax().item<std::int64_t>()));
}
