// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>
#include <torch/extension.h>

#include <cstddef>
#include <functional>
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
  struct Entry {
    py::dict owner;
    py::str key;
    py::object tensor;
  };

  ModuleWeights(std::vector<Entry> entries, std::vector<std::string> names)
      : WeightWatch(tensors_of(entries), std::move(names)), entries_(std::move(entries)) {}
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
  // The tensors are inside of the Python objects, so a swap of two objects' tensors is seen.
  static std::vector<std::reference_wrapper<const at::Tensor>> tensors_of(
      const std::vector<Entry>& entries) {
    std::vector<std::reference_wrapper<const at::Tensor>> tensors;
    for (const Entry& each : entries) tensors.emplace_back(THPVariable_Unpack(each.tensor.ptr()));
    return tensors;
  }

  std::vector<Entry> entries_;
};

}  // namespace

void bind_weights(py::module_& m) {
  py::class_<WeightWatch, std::shared_ptr<WeightWatch>>(m, "WeightWatch")
      .def(py::init([](std::vector<std::string> names,
                       const std::vector<std::pair<py::dict, py::str>>& places)
                        -> std::shared_ptr<WeightWatch> {
             std::vector<ModuleWeights::Entry> entries;
             for (const auto& [owner, key] : places)
               entries.push_back({owner, key, py::object(owner[key])});
             return std::make_shared<ModuleWeights>(std::move(entries), std::move(names));
           }),
           py::arg("names"), py::arg("places"))
      .def("first_changed", [](const WeightWatch& watch) {
        const std::string* const name = watch.first_changed();
        return name == nullptr ? std::string() : *name;
      });
}

}  // namespace torchalgo
