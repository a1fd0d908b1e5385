// SPDX-License-Identifier: BSD-3-Clause
// Loads an optimized file, runs it, and writes a copy of it: LibTorch and libtorchalgo, no Python.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchalgo/save.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "../input.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: cpp_deploy optimized.pt 1x3x224x224 [copy.pt]\n");
    return 2;
  }
  try {
    // The plan, and how Python calls the model, lie beside the module: the copy gets them too.
    torch::jit::ExtraFilesMap extra = {{"plan.json", ""}, {"calls.json", ""}};
    torch::jit::Module model = torch::jit::load(argv[1], std::nullopt, extra);
    std::erase_if(extra, [](const auto& file) { return file.second.empty(); });
    if (argc == 4) torchalgo::save(model, argv[3], extra);
    const c10::InferenceMode inference;
    print_summary(model.forward({make_input(parse_sizes(argv[2]))}).toTensor());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_deploy: %s\n", error.what());
    return 1;
  }
}
