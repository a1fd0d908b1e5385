// SPDX-License-Identifier: BSD-3-Clause
// What both example programs do with sizes, inputs and outputs.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>

#include <chrono>
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

// Prints one line about an output of floats, to be compared with Python's: its size, its sum, and a
// sum of the bits of all elements, each times its position.
inline void print_summary(const at::Tensor& result) {
  const at::Tensor output = result.flatten();
  const at::Tensor bits = output.view(at::kInt).to(at::kLong);
  const at::Tensor positions = at::arange(1, output.numel() + 1, at::kLong);
  std::printf("elements %lld, sum %.6f, bits %lld\n", static_cast<long long>(output.numel()),
              output.sum().item<double>(),
              static_cast<long long>(bits.mul(positions).sum().item<std::int64_t>()));
}

// Prints the output of a call, and then the mean time of further calls.
template <typename Call>
void run(const Call& call, int further_calls) {
  print_summary(call());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < further_calls; ++i) static_cast<void>(call());
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
  if (further_calls > 0) std::fprintf(stderr, "%.3f ms per call\n", all.count() / further_calls);
}
