// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/list.h"

#include <mutex>
#include <utility>

#include "base/error.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/offers.h"

namespace torchalgo {
namespace cudnn {
namespace {

Algorithms make_algorithms(const Library& library) {
  Algorithms algorithms;
  for (const PatternInfo& pattern : kPatterns)
    algorithms.push_back(make_engine_algorithm(pattern, library));
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardData, Direction::kBackwardFilter}) {
    algorithms.push_back(make_legacy_algorithm(direction, library));
  }
  return algorithms;
}

}  // namespace

std::string with_layouts(std::string reason, const std::vector<Layouts>& layouts) {
  if (layouts.size() == all_layouts().size()) return reason;
  const char* separator = "; as src/weights/dst ";
  for (const Layouts& each : layouts) {
    reason += fmt::format("{}{}/{}/{}", separator, to_string(each.src),
                          each.weights == Layout::kNhwc ? "krsc" : "kcrs", to_string(each.dst));
    separator = ", ";
  }
  return reason;
}

LoadedApi process_api() {
  static std::mutex mutex;
  static LoadedApi loaded;
  const std::lock_guard lock(mutex);
  if (loaded.api == nullptr) loaded = load_api();
  return loaded;
}

std::shared_ptr<const Api> require_api(const Library& library) {
  LoadedApi loaded = library.load();
  TORCHALGO_CHECK(loaded.api, "TA5101 cuDNN is absent: {}", loaded.absence);
  return std::move(loaded.api);
}

}  // namespace cudnn

const Algorithms& cudnn_algorithms() {
  static const Algorithms kAlgorithms =
      cudnn::make_algorithms({cudnn::process_api, cudnn::torch_runtime()});
  return kAlgorithms;
}

Algorithms cudnn_algorithms(std::shared_ptr<const cudnn::Api> api, cudnn::Runtime runtime) {
  const auto load = [api = std::move(api)] { return cudnn::LoadedApi{api, {}}; };
  return cudnn::make_algorithms({load, std::move(runtime)});
}

}  // namespace torchalgo
