// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/stl.h>
#include <torch/extension.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/layers.h"
#include "python/module.h"
#include "runner/weight_watch.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

// Also detects changes of the layers, and weights that were replaced by others in the dicts of
// their modules.
class ModelWatch : public WeightWatch {
 public:
  ModelWatch(std::vector<std::string> names, const std::vector<LayerWatch::Entry>& places)
      : WeightWatch(tensors_of(places), std::move(names)), layers(places) {}
  ~ModelWatch() override {
    if (Py_IsInitialized() == 0) {  // the process ends
      layers.leak();
      return;
    }
    const py::gil_scoped_acquire gil;
    layers.clear();
  }

  // Returns the first change of the layers, then of the weights: a call of a model whose layers
  // were changed runs the original, whose weights are of no matter then.
  [[nodiscard]] std::optional<ModelChange> first_change() const override {
    const py::gil_scoped_acquire gil;
    if (is_cleared) return std::nullopt;
    if (std::string change = layers.first_change(); !change.empty())
      return ModelChange{std::move(change), false};
    if (const auto weight = layers.first_weight()) return change_of(*weight);
    return WeightWatch::first_change();
  }

  mutable LayerWatch layers;  // it remembers what it has compared, and owns the weights
  // Says why no plan of the model runs, for example because it had hooks at capture; empty if one
  // may run.
  std::string why_original;
  bool is_cleared = false;  // by Python's garbage collector; there are no weights then

 private:
  // The tensors are inside of the Python objects, so a swap of two objects' tensors is seen.
  static std::vector<std::reference_wrapper<const at::Tensor>> tensors_of(
      const std::vector<LayerWatch::Entry>& places) {
    std::vector<std::reference_wrapper<const at::Tensor>> tensors;
    for (const auto& [owner, key] : places)
      tensors.emplace_back(THPVariable_Unpack(py::object(owner[key]).ptr()));
    return tensors;
  }
};

// A watch holds the layers, and these may hold the optimized module that holds the watch. Python's
// garbage collector frees such a circle.
void let_collect(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return py::detail::is_holder_constructed(self)
               ? py::cast<const ModelWatch&>(py::handle(self)).layers.traverse(visit, arg)
               : 0;
  };
  type.tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) {
      auto& watch = py::cast<ModelWatch&>(py::handle(self));
      watch.is_cleared = true;
      watch.layers.clear();
    }
    return 0;
  };
}

}  // namespace

void bind_weights(py::module_& m) {
  py::class_<WeightWatch, std::shared_ptr<WeightWatch>>(m, "WeightWatch")
      .def("first_change", [](const WeightWatch& watch) -> py::object {
        const std::optional<ModelChange> change = watch.first_change();
        if (!change) return py::none();
        return py::make_tuple(change->text, change->is_weight);
      });
  py::class_<ModelWatch, WeightWatch, std::shared_ptr<ModelWatch>>(
      m, "ModelWatch", py::custom_type_setup(let_collect))
      .def(py::init<std::vector<std::string>, const std::vector<LayerWatch::Entry>&>(),
           py::arg("names"), py::arg("places"))
      .def(
          "add_layer",
          [](ModelWatch& watch, const py::object& module, std::string path, bool has_layers,
             const std::vector<LayerWatch::Entry>& settings) {
            watch.layers.add(module, std::move(path), has_layers, settings);
          },
          py::arg("module"), py::arg("path"), py::arg("has_layers"), py::arg("settings"))
      .def("add_global_hooks",
           [](ModelWatch& watch, const py::dict& hooks) { watch.layers.add_global_hooks(hooks); })
      .def_readwrite("why_original", &ModelWatch::why_original);
}

}  // namespace torchalgo
