// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torchalgo {

/// The Python objects of a model as they were when it was captured. It detects layers and weights
/// that were replaced, added or removed, forward hooks that were, methods and classes that were
/// replaced, and other values of the recorded settings. All functions need the GIL.
class [[gnu::visibility("hidden")]] LayerWatch {
 public:
  /// A value of a module: a dict and a key in it.
  using Entry = std::pair<pybind11::dict, pybind11::str>;

  /// @param weights  weights of one module follow each other.
  explicit LayerWatch(const std::vector<Entry>& weights);

  /// Records a layer and the values of its settings.
  /// @param path  the layer's name in the model; empty for the model itself.
  /// @param has_layers  false if the layer's own layers do not matter.
  void add(const pybind11::object& module, std::string path, bool has_layers,
           const std::vector<Entry>& settings);
  /// Records the hooks that PyTorch calls for each module.
  void add_global_hooks(const pybind11::dict& hooks);

  /// Describes the first change of the layers, such as "layer 'head' was replaced after optimize".
  /// Returns an empty text if there is none.
  [[nodiscard]] std::string first_change();
  /// Returns the number of the first weight that was replaced by another tensor; nullopt if none
  /// was.
  [[nodiscard]] std::optional<std::size_t> first_weight();

  /// Calls `visit` with each object that the watch owns, for Python's garbage collector.
  int traverse(visitproc visit, void* arg) const;
  /// Forgets everything.
  void clear();
  /// Forgets everything without Python, which has ended.
  void leak();

 private:
  enum class Kind : std::uint8_t { kAttributes, kSettings, kLayers, kHooks, kGlobalHooks };
  // A dict, and what it held: entries_[first] to entries_[first + size - 1].
  struct Table {
    pybind11::object dict;
    std::uint64_t version = 0;  // when it was compared last; 0: it must be compared
    std::uint32_t first = 0, size = 0;
    std::uint32_t layer = 0;
    Kind kind = Kind::kSettings;
  };
  struct Layer {
    PyObject* module;
    PyTypeObject* type;
    Py_ssize_t size;     // of its attributes
    Py_ssize_t methods;  // attributes that hide a method of the class
    int layers;          // the table of its layers; -1: they do not matter
  };

  PyObject* own(pybind11::handle object);
  [[nodiscard]] Table table_of(const pybind11::object& dict, Kind kind) const;
  [[nodiscard]] Table whole_table_of(const pybind11::dict& dict, Kind kind);
  void add_settings(const std::vector<Entry>& settings, std::vector<Table>& to);
  void prefetch() const;
  void find_dicts(const Table& attributes);
  [[nodiscard]] bool is_whole_equal(const Table& table) const;
  [[nodiscard]] std::string change_in(const Table& table) const;
  [[nodiscard]] std::string change_of_hooks();
  [[nodiscard]] std::string change_of_layers(const Table& table) const;
  [[nodiscard]] std::string subject(std::size_t layer) const;

  std::vector<Table> weights_, tables_;
  std::vector<Table> hooks_;             // two for each layer, then the global ones
  std::vector<std::size_t> used_hooks_;  // those that had hooks at capture, and the global ones
  std::vector<Layer> layers_;
  std::vector<std::string> paths_;                             // of the layers
  std::vector<std::pair<PyObject*, PyObject*>> entries_;       // keys and values
  std::vector<std::pair<PyTypeObject*, PyObject*>> forwards_;  // of each class
  std::vector<pybind11::object> owned_;  // keeps all addresses above from being used again
  pybind11::object next_hook_;           // PyTorch's number of it when all hooks were compared last
};

}  // namespace torchalgo
