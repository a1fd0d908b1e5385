// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

// Each module_*.cpp binds one part for Python; no logic. The contract is python/torchalgo/_C.pyi.

namespace torchalgo {

void bind_cuda(pybind11::module_& m);     // GPUs of this process
void bind_ops(pybind11::module_& m);      // settings of convolutions
void bind_cudnn(pybind11::module_& m);    // the cuDNN that torch has mapped
void bind_pbqp(pybind11::module_& m);     // the solver on its own
void bind_bounds(pybind11::module_& m);   // what nothing on this machine is faster than
void bind_planner(pybind11::module_& m);  // plans under limits, fronts, training

void bind_runner(pybind11::module_& m);  // modules without TorchScript's interpreter

}  // namespace torchalgo
