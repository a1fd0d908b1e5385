// SPDX-License-Identifier: BSD-3-Clause
// Runs a .pt2 file of an optimized model with LibTorch's nativert and libtorchalgo: no Python, no
// TorchScript.
#include <c10/core/InferenceMode.h>
#include <torch/nativert/ModelRunnerHandle.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "../input.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: cpp_pt2 optimized.pt2 1x3x224x224 [number of timed calls]\n");
    return 2;
  }
  try {
    const c10::InferenceMode inference;
    torch::nativert::ModelRunnerHandle model(argv[1], "model");
    const at::Tensor input = make_input(parse_sizes(argv[2]));
    run([&] { return model.runWithFlatInputsAndOutputs({input}).at(0).toTensor(); },
        argc == 4 ? std::atoi(argv[3]) : 0);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_pt2: %s\n", error.what());
    return 1;
  }
}
