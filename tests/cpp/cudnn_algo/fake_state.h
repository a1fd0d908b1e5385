// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cudnn_algo/fake_cudnn.h"
#include "cudnn_algo/fake_engines.h"

// The fake's inside, shared by its graph and its legacy half.

namespace torchalgo::cudnn::fake::detail {

struct Object;
using ObjectPtr = std::shared_ptr<Object>;

/// What was set of an attribute.
struct Value {
  AttributeType type;
  std::int64_t count = 0;
  std::vector<char> bytes;
  std::vector<ObjectPtr> parts;  // of kDescriptor
};

enum class LegacyKind { kTensor, kFilter, kConvolution };

/// A legacy descriptor's content.
struct Legacy {
  LegacyKind kind = LegacyKind::kTensor;
  bool is_set = false;
  Place place;
  bool is_channels_last = false;  // of a filter: its format
  std::vector<std::int64_t> pad, stride, dilation;
  std::int64_t groups = 1;
  MathType math = MathType::kDefault;
};

struct Object {
  DescriptorType type = DescriptorType::kTensor;
  std::optional<Legacy> legacy;
  bool is_finalized = false;
  std::map<AttributeName, Value> values;
  std::thread::id thread;
  // Found by finalizing; an engine has a copy of its graph's, and so on.
  std::optional<Question> question;
  std::int64_t engine = -1;
  KnobValues knobs;
  std::int64_t workspace = 0;
  std::vector<ObjectPtr> results;  // a heuristic's configurations
  KnobModel knob{};                // a knob info's
};

/// The threads that have called a fake and have not ended.
class LiveThreads {
 public:
  static void add_this() {
    thread_local const Entry entry;
    static_cast<void>(entry);
  }
  static bool has(std::thread::id id) {
    const std::lock_guard lock(all().mutex);
    return all().ids.contains(id);
  }

 private:
  struct All {
    std::mutex mutex;
    std::set<std::thread::id> ids;
  };
  struct Entry {
    Entry() {
      const std::lock_guard lock(all().mutex);
      all().ids.insert(std::this_thread::get_id());
    }
    ~Entry() {
      const std::lock_guard lock(all().mutex);
      all().ids.erase(std::this_thread::get_id());
    }
  };
  static All& all() {
    static auto* const threads = new All;
    return *threads;
  }
};

struct State {
  Options options;
  std::mutex mutex;
  Stats stats;
  bool is_capturing = false;
  std::map<std::uintptr_t, ObjectPtr> objects;
  std::uintptr_t last_id = 0x1000;
  std::map<Handle, std::thread::id> handles;
  std::map<Handle, Stream> streams;
  std::map<std::thread::id, std::string> errors;

  /// Notes a use by this thread. What belongs to a thread that has ended belongs to the next user.
  void use(std::thread::id& owner) {
    LiveThreads::add_this();
    if (owner == std::this_thread::get_id()) return;
    if (LiveThreads::has(owner)) ++stats.shared_between_threads;
    owner = std::this_thread::get_id();
  }
  Status fail(Status status, const std::string& text) {
    errors[std::this_thread::get_id()] = text;
    return status;
  }
  Descriptor add(ObjectPtr object) {
    LiveThreads::add_this();
    object->thread = std::this_thread::get_id();
    last_id += 16;
    objects[last_id] = std::move(object);
    ++stats.alive;
    ++stats.created;
    return reinterpret_cast<Descriptor>(last_id);
  }
  /// Null if there is none: a use after its end, which is counted.
  ObjectPtr find(Descriptor descriptor) {
    const auto at = objects.find(reinterpret_cast<std::uintptr_t>(descriptor));
    if (at == objects.end()) {
      ++stats.uses_after_destroy;
      return nullptr;
    }
    use(at->second->thread);
    return at->second;
  }
  Status destroy(Descriptor descriptor) {
    const auto at = objects.find(reinterpret_cast<std::uintptr_t>(descriptor));
    if (at == objects.end()) {
      ++stats.double_destroys;
      return fail(kBadParam, "destroy: no such descriptor");
    }
    use(at->second->thread);
    objects.erase(at);
    --stats.alive;
    return kSuccess;
  }
  /// Returns false if `handle` is null or was never made. Notes a use by this thread.
  bool accepts(Handle handle) {
    if (handle == nullptr) {
      ++stats.crashes;
      return false;
    }
    const auto own = handles.find(handle);
    if (own == handles.end()) {
      ++stats.crashes;
      return false;
    }
    use(own->second);
    return true;
  }
  /// Runs the work of an execution on the stream of `handle`.
  Status enqueue(Handle handle, const std::function<void()>& work) {
    Stream stream = nullptr;
    {
      const std::lock_guard lock(mutex);
      ++stats.executed;
      stream = streams[handle];
    }
    if (options.enqueue) return options.enqueue(stream, work);
    work();
    return kSuccess;
  }
};

/// Fills `workspace` with NaN of every floating point format.
inline void poison(void* workspace, std::int64_t bytes) {
  if (bytes > 0) std::memset(workspace, 0xff, static_cast<std::size_t>(bytes));
}

[[nodiscard]] std::optional<Element> to_element(DataType type);

void add_graph_functions(const std::shared_ptr<State>& state, Api& api);
void add_legacy_functions(const std::shared_ptr<State>& state, Api& api);

/// Attributes of a convolution operation: what each direction calls its parts.
struct ConvolutionNames {
  Role role;
  AttributeName x, w, y, convolution;
};
[[nodiscard]] ConvolutionNames names_of(DescriptorType type);
[[nodiscard]] Place place_of(const Object& tensor);
[[nodiscard]] Geometry geometry_of(const Object& operation);

/// The checks of a descriptor whose required attributes are all set; the caller holds the lock.
[[nodiscard]] Status finalize_by_type(State& state, Object& object);

/// cudnnBackendExecute.
[[nodiscard]] Status execute_plan(State& state, Handle handle, Descriptor plan, Descriptor pack);

/// The attribute's values as T, empty if not set.
template <typename T>
std::vector<T> values_of(const Object& object, AttributeName name) {
  const auto at = object.values.find(name);
  if (at == object.values.end()) return {};
  std::vector<T> values(at->second.bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), at->second.bytes.data(), values.size() * sizeof(T));
  }
  return values;
}
template <typename T>
T value_of(const Object& object, AttributeName name, T otherwise = {}) {
  const auto at = object.values.find(name);
  if (at == object.values.end() || at->second.bytes.size() < sizeof(T)) return otherwise;
  T value;
  std::memcpy(&value, at->second.bytes.data(), sizeof value);
  return value;
}
inline ObjectPtr part_of(const Object& object, AttributeName name, std::size_t index = 0) {
  const auto at = object.values.find(name);
  return at == object.values.end() || index >= at->second.parts.size() ? nullptr
                                                                       : at->second.parts[index];
}

}  // namespace torchalgo::cudnn::fake::detail
