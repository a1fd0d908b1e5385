// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_algo/api.h"
#include "cudnn_algo/runtime.h"

namespace torchalgo::cudnn::fake {

struct Options {
  std::size_t version = 91900;
  int sm = 90;  // of the GPU behind the handles
  bool has_legacy = true;
  bool has_compiler = true;     // whether run-time compiled engines can be configured
  std::string properties = {};  // the JSON of the GPU behind the handles
  /// Runs the work of an execution on the handle's stream; empty: at once.
  std::function<Status(Stream, const std::function<void()>&)> enqueue = {};
};

/// What a correct caller leaves at zero, and what it did.
struct Stats {
  std::int64_t alive = 0;  // descriptors created and not destroyed
  std::int64_t created = 0;
  std::int64_t plans = 0;     // execution plans finalized
  std::int64_t executed = 0;  // convolutions computed
  std::int64_t double_destroys = 0, uses_after_destroy = 0;
  std::int64_t shared_between_threads = 0;  // uses by a thread that did not create it, handles too
  std::int64_t crashes = 0;                 // calls that kill the process in the real library
};

namespace detail {
struct State;
}

/// A cuDNN in software behind cudnn::Api: descriptors with checked attributes, a handful of engines
/// (fake_engines.h) and heuristics, plans that really compute, on CPU memory, and the legacy
/// functions likewise. Each execution fills its workspace with NaN before and after. It answers as
/// the real library does for what torchalgo asks of it (see notes in fake_graph.cpp).
class FakeCudnn {
 public:
  explicit FakeCudnn(const Options& options = {});

  /// Its functions; they keep its state alive.
  [[nodiscard]] std::shared_ptr<const Api> api() const { return api_; }

  /// One GPU with one stream; `is_capturing` answers as set below.
  [[nodiscard]] Runtime runtime() const;
  void set_capturing(bool is_capturing);

  [[nodiscard]] Stats stats() const;

 private:
  std::shared_ptr<detail::State> state_;
  std::shared_ptr<const Api> api_;
};

/// The JSON of a described GPU as far as the fake reads it.
[[nodiscard]] std::string device_properties(int sm);

/// One call of the interface.
struct CallRecord {
  std::string function;  // "set_attribute", "legacy.run_forward", ...
  std::optional<AttributeName> attribute;
  std::optional<DescriptorType> created;
  bool operator==(const CallRecord&) const = default;
};

/// `inner` with `before` called first; a status that it returns is answered instead of calling
/// `inner`. (What destroys still destroys.) For recording and for injecting faults.
[[nodiscard]] std::shared_ptr<const Api> intercept(
    const std::shared_ptr<const Api>& inner,
    std::function<std::optional<Status>(const CallRecord&)> before);

/// Answers `status` at the call number `at` (from 0) of all calls that return one.
class Fault {
 public:
  Fault(const std::shared_ptr<const Api>& inner, std::int64_t at, Status status);
  [[nodiscard]] std::shared_ptr<const Api> api() const { return api_; }
  /// The call that was made to fail; nothing: there were fewer calls.
  [[nodiscard]] std::optional<CallRecord> failed() const { return *failed_; }

 private:
  std::shared_ptr<std::optional<CallRecord>> failed_;
  std::shared_ptr<const Api> api_;
};

}  // namespace torchalgo::cudnn::fake
