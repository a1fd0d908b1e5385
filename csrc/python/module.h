// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <string>

#include "ir/layout.h"

// Each file here binds one part for Python; no logic. The contract is python/torchalgo/_C.pyi.

namespace torchalgo {

/// Reads the keyword arguments of a bound function as the fields of an options struct. The struct
/// is bound with one property per field, so that names, types and defaults are stated once.
template <typename Options>
Options options_from(const pybind11::kwargs& fields) {
  pybind11::object options = pybind11::cast(Options());
  for (const auto& [name, value] : fields) pybind11::setattr(options, name, value);
  return options.cast<Options>();
}

/// Releases the GIL in its scope, for calls of models. It differs from py::gil_scoped_release if
/// the main thread has ended Python meanwhile: the thread then sleeps until the process ends.
///
/// Before version 3.14, Python ends such a thread with pthread_exit(), which unwinds its stack. A
/// destructor may not be left so: the process would be aborted.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // pthread_exit()
      for (;;) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Returns the layout with the name `text`. @throws Error  if there is none.
[[nodiscard]] Layout require_layout(const std::string& text);

void bind_cuda(pybind11::module_& m);      // GPUs of this process
void bind_ops(pybind11::module_& m);       // settings of convolutions
void bind_cudnn(pybind11::module_& m);     // the cuDNN that torch has mapped
void bind_pbqp(pybind11::module_& m);      // the solver on its own
void bind_bounds(pybind11::module_& m);    // peak rates of this machine
void bind_planner(pybind11::module_& m);   // plans, fronts, training
void bind_runner(pybind11::module_& m);    // modules without TorchScript's interpreter
void bind_schedule(pybind11::module_& m);  // what a plan runs, in which order
void bind_training(pybind11::module_& m);  // regions of a model that is trained
void bind_weights(pybind11::module_& m);   // changes of a model

}  // namespace torchalgo
