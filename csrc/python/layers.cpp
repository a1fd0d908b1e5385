// SPDX-License-Identifier: BSD-3-Clause
#include "python/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace py = pybind11;

namespace torchalgo {
namespace {

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // ma_version_tag, since Python 3.12
#endif

// Returns a number that differs after each change of the dict. From Python 3.13 on, an object may
// change without a new number for its dict; 0 means that the dict must be compared.
std::uint64_t version_of(const py::object& dict) {
#if PY_VERSION_HEX < 0x030D0000
  return reinterpret_cast<const PyDictObject*>(dict.ptr())->ma_version_tag;
#else
  return 0;
#endif
}

PyObject* forward_of(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("forward");
  return _PyType_Lookup(type, name);
}

bool hides_method(PyTypeObject* type, PyObject* attribute) {
  PyObject* const hidden = _PyType_Lookup(type, attribute);
  return hidden != nullptr && PyCallable_Check(hidden) != 0;
}

Py_ssize_t count_methods(PyTypeObject* type, PyObject* attributes) {
  Py_ssize_t at = 0, count = 0;
  PyObject* key = nullptr;
  while (PyDict_Next(attributes, &at, &key, nullptr) != 0) count += hides_method(type, key) ? 1 : 0;
  return count;
}

// A user may set an equal value again.
bool is_equal(PyObject* now, PyObject* before) {
  if (now == before) return true;
  if (now == nullptr || before == nullptr || Py_TYPE(now) != Py_TYPE(before)) return false;
  const int answer = PyObject_RichCompareBool(now, before, Py_EQ);
  if (answer < 0) PyErr_Clear();
  return answer == 1;
}

std::string text_of(PyObject* key) { return py::str(py::handle(key)); }

// The attributes of a module that hold its hooks, in the order of hooks_.
constexpr std::array kHookNames = {"_forward_hooks", "_forward_pre_hooks"};

// Returns PyTorch's number of the next hook of any kind. It grows with each hook that is added.
py::object next_hook() {
  static const py::handle handle =
      py::object(py::module_::import("torch.utils.hooks").attr("RemovableHandle")).release();
  return py::getattr(handle, "next_id");
}

}  // namespace

LayerWatch::LayerWatch(const std::vector<Entry>& weights) { add_settings(weights, weights_); }

PyObject* LayerWatch::own(py::handle object) {
  owned_.push_back(py::reinterpret_borrow<py::object>(object));
  return object.ptr();
}

LayerWatch::Table LayerWatch::table_of(const py::object& dict, Kind kind) const {
  return {dict,
          0,
          static_cast<std::uint32_t>(entries_.size()),
          0,
          static_cast<std::uint32_t>(layers_.size()) - 1,
          kind};
}

LayerWatch::Table LayerWatch::whole_table_of(const py::dict& dict, Kind kind) {
  Table table = table_of(dict, kind);
  for (const auto& [key, value] : dict) entries_.emplace_back(own(key), own(value));
  table.size = static_cast<std::uint32_t>(entries_.size()) - table.first;
  return table;
}

void LayerWatch::add_settings(const std::vector<Entry>& settings, std::vector<Table>& to) {
  for (const auto& [dict, key] : settings) {
    if (to.empty() || !to.back().dict.is(dict)) to.push_back(table_of(dict, Kind::kSettings));
    PyObject* const value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
    entries_.emplace_back(own(key), value == nullptr ? nullptr : own(value));
    ++to.back().size;
  }
}

void LayerWatch::add(const py::object& module, std::string path, bool has_layers,
                     const std::vector<Entry>& settings) {
  const auto attributes = module.attr("__dict__").cast<py::dict>();
  PyTypeObject* const type = Py_TYPE(own(module));
  own(reinterpret_cast<PyObject*>(type));
  const auto is_known = [&](const auto& known) { return known.first == type; };
  if (std::none_of(forwards_.begin(), forwards_.end(), is_known)) {
    PyObject* const forward = forward_of(type);
    forwards_.emplace_back(type, forward == nullptr ? nullptr : own(forward));
  }
  layers_.push_back({module.ptr(), type, PyDict_Size(attributes.ptr()),
                     count_methods(type, attributes.ptr()), -1});
  paths_.push_back(std::move(path));
  std::vector<Entry> methods;
  for (const auto& [key, value] : attributes) {
    if (hides_method(type, key.ptr()))
      methods.emplace_back(attributes, py::reinterpret_borrow<py::str>(key));
  }
  tables_.push_back(table_of(attributes, Kind::kAttributes));
  add_settings(methods, tables_);
  add_settings(settings, tables_);  // those of other dicts get tables of their own
  if (has_layers) {
    layers_.back().layers = static_cast<int>(tables_.size());
    tables_.push_back(whole_table_of(attributes["_modules"], Kind::kLayers));
  }
  for (const char* const name : kHookNames) {
    hooks_.push_back(whole_table_of(attributes[name], Kind::kHooks));
    if (hooks_.back().size > 0) used_hooks_.push_back(hooks_.size() - 1);
  }
}

void LayerWatch::add_global_hooks(const py::dict& hooks) {
  used_hooks_.push_back(hooks_.size());
  hooks_.push_back(whole_table_of(hooks, Kind::kGlobalHooks));
}

void LayerWatch::prefetch() const {
  const auto load = [](const PyObject* object) {  // its type, and the version of a dict
    __builtin_prefetch(object);
    __builtin_prefetch(reinterpret_cast<const std::byte*>(object) +
                       offsetof(PyDictObject, ma_keys));
  };
  for (const Table& table : tables_) load(table.dict.ptr());
  for (const Table& table : weights_) load(table.dict.ptr());
  for (const Layer& layer : layers_) __builtin_prefetch(layer.module);
}

std::string LayerWatch::first_change() {
  prefetch();
  for (const auto& [type, forward] : forwards_) {
    if (forward_of(type) != forward)
      return fmt::format("method 'forward' of class {} was replaced after optimize", type->tp_name);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (Py_TYPE(layers_[i].module) != layers_[i].type)
      return fmt::format("the class of {} was changed after optimize", subject(i));
  }
  for (Table& table : tables_) {
    const std::uint64_t version = version_of(table.dict);
    if (version != 0 && version == table.version) continue;
    if (table.kind == Kind::kAttributes) find_dicts(table);
    if (std::string change = change_in(table); !change.empty()) return change;
    table.version = version;
  }
  return change_of_hooks();
}

std::optional<std::size_t> LayerWatch::first_weight() {
  for (Table& table : weights_) {
    const std::uint64_t version = version_of(table.dict);
    if (version != 0 && version == table.version) continue;
    for (std::size_t i = table.first; i < table.first + table.size; ++i) {
      const auto& [key, before] = entries_[i];
      if (PyDict_GetItemWithError(table.dict.ptr(), key) != before) return i;
    }
    table.version = version;
  }
  return std::nullopt;
}

// A user, or torch.nn.Sequential after `del`, may give a module another dict of layers or hooks.
void LayerWatch::find_dicts(const Table& attributes) {
  const auto update = [&](Table& table, PyObject* name) {
    PyObject* const now = PyDict_GetItemWithError(attributes.dict.ptr(), name);
    if (now == nullptr || now == table.dict.ptr() || PyDict_Check(now) == 0) return;
    table.dict = py::reinterpret_borrow<py::object>(now);
    table.version = 0;
    next_hook_ = py::none();
  };
  const int layers = layers_[attributes.layer].layers;
  static const std::array names = {PyUnicode_InternFromString("_modules"),
                                   PyUnicode_InternFromString(kHookNames[0]),
                                   PyUnicode_InternFromString(kHookNames[1])};
  if (layers >= 0) update(tables_[layers], names[0]);
  for (std::size_t i = 0; i < kHookNames.size(); ++i)
    update(hooks_[kHookNames.size() * attributes.layer + i], names[i + 1]);
}

bool LayerWatch::is_whole_equal(const Table& table) const {
  if (PyDict_Size(table.dict.ptr()) != table.size) return false;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (std::size_t i = table.first; PyDict_Next(table.dict.ptr(), &at, &key, &value) != 0; ++i) {
    if (value != entries_[i].second || !is_equal(key, entries_[i].first)) return false;
  }
  return true;
}

std::string LayerWatch::change_in(const Table& table) const {
  if (table.kind == Kind::kLayers) return change_of_layers(table);
  for (std::size_t i = table.first; i < table.first + table.size; ++i) {
    const auto& [key, before] = entries_[i];
    if (!is_equal(PyDict_GetItemWithError(table.dict.ptr(), key), before))
      return fmt::format("'{}' of {} was changed after optimize", text_of(key),
                         subject(table.layer));
  }
  const Layer& layer = layers_[table.layer];
  // Without versions this runs in each call, so only a new size makes it count.
  const bool may_differ =
      version_of(table.dict) != 0 || PyDict_Size(table.dict.ptr()) != layer.size;
  if (table.kind == Kind::kAttributes && may_differ &&
      count_methods(layer.type, table.dict.ptr()) != layer.methods)
    return fmt::format("a method of {} was replaced after optimize", subject(table.layer));
  return {};
}

std::string LayerWatch::change_of_layers(const Table& table) const {
  if (is_whole_equal(table)) return {};
  const std::string& path = paths_[table.layer];
  const auto named = [&](PyObject* key, const char* what) {
    return fmt::format("layer '{}{}{}' was {} after optimize", path, path.empty() ? "" : ".",
                       text_of(key), what);
  };
  py::dict before;
  for (std::size_t i = table.first; i < table.first + table.size; ++i) {
    const auto& [key, layer] = entries_[i];
    PyObject* const now = PyDict_GetItemWithError(table.dict.ptr(), key);
    if (now != layer) return named(key, now == nullptr ? "removed" : "replaced");
    before[py::handle(key)] = py::handle(layer);
  }
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(table.dict)) {
    if (!before.contains(key)) return named(key.ptr(), "added");
  }
  return fmt::format("the layers of {} were put in another order after optimize",
                     subject(table.layer));
}

// All tables are compared only after PyTorch has added a hook anywhere.
std::string LayerWatch::change_of_hooks() {
  py::object next = next_hook();
  const bool is_new = !next_hook_ || !next_hook_.equal(next);
  for (std::size_t i = 0; i < (is_new ? hooks_.size() : used_hooks_.size()); ++i) {
    const Table& table = hooks_[is_new ? i : used_hooks_[i]];
    if (is_whole_equal(table)) continue;
    const bool is_global = table.kind == Kind::kGlobalHooks;
    return is_global ? "a global forward hook was added or removed after optimize"
                     : fmt::format("a forward hook of {} was added or removed after optimize",
                                   subject(table.layer));
  }
  next_hook_ = std::move(next);
  return {};
}

std::string LayerWatch::subject(std::size_t layer) const {
  return paths_[layer].empty() ? "the model" : fmt::format("layer '{}'", paths_[layer]);
}

int LayerWatch::traverse(visitproc visit, void* arg) const {
  for (const py::object& each : owned_) Py_VISIT(each.ptr());
  for (const auto* const tables : {&weights_, &tables_, &hooks_}) {
    for (const Table& table : *tables) Py_VISIT(table.dict.ptr());
  }
  return 0;
}

void LayerWatch::clear() {
  LayerWatch emptied({});
  std::swap(*this, emptied);  // what is freed may run Python code, which finds an empty watch
}

void LayerWatch::leak() {
  for (py::object& each : owned_) each.release();
  for (auto* const tables : {&weights_, &tables_, &hooks_}) {
    for (Table& table : *tables) table.dict.release();
  }
  next_hook_.release();
}

}  // namespace torchalgo
