// SPDX-License-Identifier: BSD-3-Clause
// Loads an optimized file, runs it, and writes a copy of it: LibTorch and libtorchalgo, no Python.
#include <ATen/ops/linspace.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchalgo/save.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

// "1x3x224x224"
std::vector<std::int64_t> parse_sizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  std::stringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) sizes.push_back(std::stoll(size));
  return sizes;
}

int run(torch::jit::Module model, const std::vector<std::int64_t>& sizes) {
  const c10::InferenceMode inference;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor input = at::linspace(-1, 1, count).reshape(sizes);
  const at::Tensor output = model.forward({input}).toTensor().flatten();
  std::printf("elements %lld, sum %.6f, largest at %lld\n", static_cast<long long>(output.numel()),
              output.sum().item<double>(),
              static_cast<long long>(output.argmax().item<std::int64_t>()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: cpp_deploy optimized.pt 1x3x224x224 [copy.pt]\n");
    return 2;
  }
  try {
    // The plan, and how Python calls the model, lie beside the module: the copy gets them too.
    torch::jit::ExtraFilesMap extra = {{"plan.json", ""}, {"calls.json", ""}};
    const torch::jit::Module model = torch::jit::load(argv[1], std::nullopt, extra);
    std::erase_if(extra, [](const auto& file) { return file.second.empty(); });
    if (argc == 4) torchalgo::save(model, argv[3], extra);
    return run(model, parse_sizes(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_deploy: %s\n", error.what());
    return 1;
  }
}
