// SPDX-License-Identifier: BSD-3-Clause
// Loads an optimized file, runs it, and writes a copy of it: LibTorch and libtorchalgo, no Python.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchalgo/module_runner.h>
#include <torchalgo/save.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "../input.h"

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fprintf(stderr,
                 "usage: cpp_deploy optimized.pt 1x3x224x224 [copy.pt [number of timed calls]]\n");
    return 2;
  }
  try {
    // The plan, and how Python calls the model, lie beside the module: the copy gets them too.
    torch::jit::ExtraFilesMap extra = {{"plan.json", ""}, {"calls.json", ""}};
    torch::jit::Module model = torch::jit::load(argv[1], std::nullopt, extra);
    std::erase_if(extra, [](const auto& file) { return file.second.empty(); });
    if (argc > 3) torchalgo::save(model, argv[3], extra);
    const c10::InferenceMode inference;
    const torchalgo::ModuleRunner runner(model);
    const at::Tensor input = make_input(parse_sizes(argv[2]));
    run([&] { return runner.forward({input}).toTensor(); }, argc == 5 ? std::atoi(argv[4]) : 0);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_deploy: %s\n", error.what());
    return 1;
  }
}
