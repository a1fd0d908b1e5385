// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>
#include <torch/extension.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "runner/weight_watch.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

// Also detects weights that were replaced by others in the dictionaries of their modules.
class ModuleWeights : public WeightWatch {
 public:
  ModuleWeights(const std::vector<at::Tensor>& weights, std::vector<std::string> names,
                std::vector<std::pair<py::dict, py::str>> entries)
      : WeightWatch(weights, std::move(names)) {
    for (auto& [owner, key] : entries) {
      PyObject* const tensor = PyDict_GetItemWithError(owner.ptr(), key.ptr());
      entries_.push_back(
          {std::move(owner), std::move(key),
           py::reinterpret_borrow<py::object>(tensor == nullptr ? Py_None : tensor)});
    }
  }
  ~ModuleWeights() override {
    if (Py_IsInitialized() == 0) {  // the process ends
      for (Entry& each : entries_) each.owner.release(), each.key.release(), each.tensor.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    entries_.clear();
  }

  [[nodiscard]] const std::string* first_changed() const override {
    const py::gil_scoped_acquire gil;
    for (const Entry& each : entries_) __builtin_prefetch(each.owner.ptr());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& each = entries_[i];
      if (PyDict_GetItemWithError(each.owner.ptr(), each.key.ptr()) != each.tensor.ptr())
        return &name(i);
    }
    return WeightWatch::first_changed();
  }

 private:
  struct Entry {
    py::dict owner;
    py::str key;
    py::object tensor;
  };
  std::vector<Entry> entries_;
};

}  // namespace

void bind_weights(py::module_& m) {
  py::class_<WeightWatch, std::shared_ptr<WeightWatch>>(m, "WeightWatch")
      .def(py::init([](const std::vector<at::Tensor>& weights, std::vector<std::string> names,
                       std::vector<std::pair<py::dict, py::str>> entries)
                        -> std::shared_ptr<WeightWatch> {
             return std::make_shared<ModuleWeights>(weights, std::move(names), std::move(entries));
           }),
           py::arg("weights"), py::arg("names"), py::arg("entries"))
      .def("first_changed", [](const WeightWatch& watch) {
        const std::string* const name = watch.first_changed();
        return name == nullptr ? std::string() : *name;
      });
}

}  // namespace torchalgo
