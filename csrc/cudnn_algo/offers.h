// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_code.h"
#include "cudnn_algo/api.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/graph.h"
#include "cudnn_algo/runtime.h"
#include "ir/algorithm.h"
#include "provider/kernel.h"

namespace torchalgo::cudnn {

/// The cuDNN that algorithms call. `load` is called at the first offer or run, never at start-up,
/// since torch may map cuDNN after torchalgo is loaded.
struct Library {
  std::function<LoadedApi()> load;
  Runtime runtime;
};

/// Returns library.load().api. @throws Error  with the text of `absence` if it is null.
[[nodiscard]] std::shared_ptr<const Api> require_api(const Library& library);

inline Offer refuse(std::string reason) { return {{}, std::move(reason)}; }

inline constexpr const char* kStridedOnly = "has nchw and nhwc only";

/// Returns `reason` and the layouts for which it holds, or `reason` alone if these are all or none.
[[nodiscard]] std::string with_layouts(std::string reason, const std::vector<Layouts>& layouts);

/// Checks the conditions of every algorithm of cuDNN, then returns the offer of `ask(api, conv)`.
/// An Error of cuDNN becomes the refusal. `refusal(conv)` is empty if the algorithm computes the
/// epilogue.
template <typename Refusal, typename Ask>
[[nodiscard]] Offer ask_library(const Library& library, Direction direction, const Refusal& refusal,
                                const Problem& problem, const Device& device, const Ask& ask) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return refuse("computes convolutions only");
  if (conv->direction != direction) return refuse(fmt::format("computes {}", to_string(direction)));
  if (std::string reason = refusal(*conv); !reason.empty()) return refuse(std::move(reason));
  if (device.kind != DeviceKind::kCuda) return refuse("does not run on CPUs");
  const LoadedApi loaded = library.load();
  if (loaded.api == nullptr) return refuse(loaded.absence);
  try {
    return ask(*loaded.api, *conv);
  } catch (const StatusError& error) {
    return refuse(without_code(error.what()));
  }
}

/// Returns an algorithm of cuDNN. `offers` answers it and keeps the last answers.
template <typename Offers, typename Prepare>
[[nodiscard]] Algorithm cudnn_algorithm(std::string_view name,
                                        const std::shared_ptr<Offers>& offers, Prepare prepare) {
  return {
      .name = name,
      .version = 1,
      .runs_on_cpu = false,
      .runs_on_cuda = true,
      .offer = [offers](const Problem& problem,
                        const Device& device) { return offers->offer(problem, device); },
      .offer_one =
          [offers](const Problem& problem, const Device& device, const Primitive& primitive) {
            return offers->offer_one(problem, device, primitive);
          },
      .prepare = std::move(prepare),
  };
}

/// Returns the algorithm of one pattern's engines, such as "cudnn9.conv" (engine_offers.cpp).
[[nodiscard]] Algorithm make_engine_algorithm(const PatternInfo& pattern, const Library& library);

/// Returns the algorithm of one direction's legacy numbers, such as "cudnn_legacy.fwd"
/// (legacy_offers.cpp).
[[nodiscard]] Algorithm make_legacy_algorithm(Direction direction, const Library& library);

}  // namespace torchalgo::cudnn
