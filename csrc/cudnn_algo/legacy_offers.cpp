// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/legacy.h"
#include "cudnn_algo/legacy_call.h"
#include "cudnn_algo/lru_cache.h"
#include "cudnn_algo/offers.h"
#include "cudnn_algo/refusal.h"
#include "cudnn_algo/run.h"
#include "provider/epilogue.h"
#include "provider/packing.h"

namespace torchalgo::cudnn {
namespace {

constexpr std::size_t kKeptOffers = 64;
constexpr std::size_t kKeptAnswers = 1024;

constexpr std::array<MathType, 4> kMaths = {MathType::kDefault, MathType::kTensorOp,
                                            MathType::kTensorOpAllowConversion, MathType::kFma};

// Returns false for @fma with f32 and f64, where it equals the default math.
bool is_listed(MathType math, DType dtype) {
  return math != MathType::kFma || (dtype != DType::kF32 && dtype != DType::kF64);
}

const LegacyAlgorithm& algorithm_of(const LegacySpec& spec) {
  return legacy_algorithms(spec.direction)[static_cast<std::size_t>(spec.number)];
}

// The answer for one variant. Exactly one field is set.
struct Answer {
  std::optional<std::int64_t> workspace_bytes;
  std::string refusal;
};

// Returns the traits that follow from the math type and the algorithm's family.
Traits traits_of(const LegacySpec& spec, DType dtype, bool is_asked) {
  Traits traits;
  traits.is_deterministic = algorithm_of(spec).is_deterministic;
  traits.hidden_bytes = std::nullopt;
  traits.repeats = "the engines of cudnn9";
  const std::string_view word = algorithm_of(spec).word;
  if (word.starts_with("WINOGRAD")) traits.numerics.emplace_back("winograd");
  if (word.starts_with("FFT")) traits.numerics.emplace_back("fft");
  const MathType math = math_type(spec, dtype);
  if (math == MathType::kFma) {
    traits.numerics.emplace_back("fma");
  } else if (dtype != DType::kF64) {
    traits.numerics.emplace_back("tensor_core_allowed");
  }
  if (!is_asked) traits.numerics.emplace_back("documented, not asked");
  return traits;
}

bool has_only_bias(const ConvProblem& conv) { return conv.epilogue == Epilogue{PostOp::kBias}; }

// Asks cuDNN for one GPU. If the device is only described, it uses the documented rules instead:
// the library's questions need a handle, and a handle needs a GPU.
class LegacyQuery {
 public:
  LegacyQuery(const Library& library, const Api& api, const ConvProblem& conv, const Device& device)
      : api_(api), conv_(conv), device_(device), is_live_(device.index >= 0) {
    if (!is_live_) return;
    on_device_ = library.runtime.on_device(device.index);
    handle_ = handle_of_thread(require_api(library), library.runtime).raw;
  }

  [[nodiscard]] bool is_live() const { return is_live_; }

  Answer ask(const LegacySpec& spec, const Layouts& layouts) {
    if (auto refusal = math_refusal(spec.math, conv_.dtype)) return {{}, std::move(*refusal)};
    auto documented = documented_refusal(conv_, spec, layouts, device_.isa);
    if (is_live_) return ask_gpu(spec, layouts, documented);
    if (documented) return {{}, std::move(*documented)};
    const auto bytes = documented_workspace(conv_, spec);
    if (!bytes) return {{}, "is documented, but its workspace is known on the GPU itself only"};
    return {bytes, {}};
  }

 private:
  Answer ask_gpu(const LegacySpec& spec, const Layouts& layouts,
                 const std::optional<std::string>& documented) {
    const MathType math = math_type(spec, conv_.dtype);
    if (!descriptors_ || described_ != std::pair(layouts, math)) {
      descriptors_ = std::make_unique<LegacyDescriptors>(api_, conv_, layouts, math);
      described_ = {layouts, math};
    }
    std::size_t bytes = 0;
    const Status status = descriptors_->ask_workspace(handle_, spec.number, &bytes);
    if (status == kSuccess) return {static_cast<std::int64_t>(bytes), {}};
    const std::string said = refusal_text(api_, status, device_.isa);
    return {{},
            documented ? fmt::format("{}; cuDNN says: {}", *documented, said)
                       : fmt::format("is refused by cuDNN: {}", said)};
  }

  const Api& api_;
  const ConvProblem& conv_;
  const Device& device_;
  const bool is_live_;
  std::shared_ptr<void> on_device_;
  Handle handle_ = nullptr;
  std::unique_ptr<LegacyDescriptors> descriptors_;
  std::pair<Layouts, MathType> described_;
};

// Collects the refusals of one algorithm number and reports each reason once. Layouts and math
// types are named only if the refusal depends on them.
class Refusals {
 public:
  void add(const LegacySpec& spec, const Layouts& layouts, const std::string& reason) {
    by_reason_[reason][spec.math].push_back(layouts);
  }

  // Adds the refusals to `offer`. `maths` is the number of math types that were tried for each
  // choice of layouts.
  void report(const LegacySpec& number, std::size_t maths, Offer& offer) const {
    for (const auto& [reason, by_math] : by_reason_) {
      const std::vector<Layouts>& first = by_math.begin()->second;
      const bool is_same =
          by_math.size() == maths &&
          std::ranges::all_of(by_math, [&](const auto& entry) { return entry.second == first; });
      if (is_same) {
        offer.refused.push_back({to_string(number), with_layouts(reason, first)});
        continue;
      }
      for (const auto& [math, layouts] : by_math) {
        LegacySpec spec = number;
        spec.math = math;
        offer.refused.push_back({to_string(spec), with_layouts(reason, layouts)});
      }
    }
  }

 private:
  std::map<std::string, std::map<MathType, std::vector<Layouts>>> by_reason_;
};

// Makes the offers of one direction and keeps the latest answers.
class LegacyOffers {
 public:
  LegacyOffers(Direction direction, Library library)
      : direction_(direction), library_(std::move(library)) {}

  Offer offer(const Problem& problem, const Device& device) {
    return check_first(problem, device, [&](const Api& api, const ConvProblem& conv) {
      return *offers_.find_or_make(key_of(problem, device),
                                   [&] { return list(api, conv, device); });
    });
  }

  Offer offer_one(const Problem& problem, const Device& device, const Primitive& primitive) {
    return check_first(problem, device, [&](const Api& api, const ConvProblem& conv) {
      const auto spec = parse_legacy_spec(primitive.name);
      if (!spec || spec->direction != direction_) {
        return refuse(
            fmt::format("'{}' is no legacy algorithm: expected {}.<0 to {}>[.krsc]"
                        "[@tensor_op|@tensor_op_conversion|@fma]",
                        primitive.name, legacy_algorithm_name(direction_),
                        legacy_algorithms(direction_).size() - 1));
      }
      if (is_blocked(primitive.src) || is_blocked(primitive.dst)) {
        return refuse(kStridedOnly);
      }
      return *answers_.find_or_make(key_of(problem, device) + "\n" + to_string(primitive),
                                    [&] { return answer(api, conv, device, *spec, primitive); });
    });
  }

 private:
  // Checks the conditions of every question, then calls `then`, which asks for algorithms.
  template <typename Then>
  Offer check_first(const Problem& problem, const Device& device, const Then& then) {
    const auto refusal = [](const ConvProblem& conv) {
      if (!is_padded_evenly(conv)) return "needs as many zeros before the image as after it";
      return conv.epilogue.empty() || has_only_bias(conv) ? "" : "fuses nothing but a bias";
    };
    return ask_library(library_, direction_, refusal, problem, device,
                       [&](const Api& api, const ConvProblem& conv) {
                         auto absence = legacy_absence(api, conv);
                         return absence ? refuse(std::move(*absence)) : then(api, conv);
                       });
  }

  static std::string key_of(const Problem& problem, const Device& device) {
    return fmt::format("{}\n{}\n{}\n{}", to_string(problem), device.index, device.isa,
                       device.properties);
  }

  static void add(const ConvProblem& conv, const LegacySpec& spec, const Layouts& layouts,
                  std::int64_t workspace_bytes, bool is_asked, Offer& offer) {
    offer.primitives.push_back({to_string(spec), layouts.src, layouts.dst, workspace_bytes});
    offer.traits.push_back(traits_of(spec, conv.dtype, is_asked));
  }

  // Returns the math types that are allowed and differ for this data type. Math types that are not
  // allowed are refused once, for all algorithm numbers.
  std::vector<MathType> usable_maths(DType dtype, Offer& offer) const {
    std::vector<MathType> usable;
    for (const MathType math : kMaths) {
      if (auto refusal = math_refusal(math, dtype)) {
        offer.refused.push_back(
            {fmt::format("{}{}", legacy_algorithm_name(direction_), math_word(math)),
             std::move(*refusal)});
      } else if (is_listed(math, dtype)) {
        usable.push_back(math);
      }
    }
    return usable;
  }

  Offer list(const Api& api, const ConvProblem& conv, const Device& device) const {
    Offer offer;
    LegacyQuery query(library_, api, conv, device);
    const std::vector<Layouts> layouts = all_layouts();
    const std::vector<MathType> maths = usable_maths(conv.dtype, offer);
    for (const LegacyAlgorithm& algorithm : legacy_algorithms(direction_)) {
      Refusals refusals;
      for (const MathType math : maths) {
        for (const Layouts& each : layouts) {
          const LegacySpec spec = {direction_, algorithm.number, each.weights, math};
          const Answer answer = query.ask(spec, each);
          if (answer.workspace_bytes) {
            add(conv, spec, each, *answer.workspace_bytes, query.is_live(), offer);
          } else {
            refusals.add(spec, each, fmt::format("{} {}", algorithm.word, answer.refusal));
          }
        }
      }
      refusals.report({direction_, algorithm.number}, maths.size(), offer);
    }
    if (offer.primitives.empty()) {
      offer.refusal = fmt::format("none of the {} legacy algorithms takes this problem on {}",
                                  legacy_algorithms(direction_).size(), device.isa);
    }
    return offer;
  }

  Offer answer(const Api& api, const ConvProblem& conv, const Device& device,
               const LegacySpec& spec, const Primitive& primitive) const {
    LegacyQuery query(library_, api, conv, device);
    const Layouts layouts = layouts_of(primitive);
    const Answer answer = query.ask(spec, layouts);
    if (!answer.workspace_bytes) {
      const bool is_math = math_refusal(spec.math, conv.dtype).has_value();
      return refuse(is_math ? answer.refusal
                            : fmt::format("{} {}", algorithm_of(spec).word, answer.refusal));
    }
    Offer offer;
    add(conv, spec, layouts, *answer.workspace_bytes, query.is_live(), offer);
    return offer;
  }

  const Direction direction_;
  const Library library_;
  AnswerCache<Offer> offers_{kKeptOffers};
  AnswerCache<Offer> answers_{kKeptAnswers};
};

LegacySpec require_spec(const Primitive& primitive) {
  const auto spec = parse_legacy_spec(primitive.name);
  TORCHALGO_CHECK(
      spec, "TA5106 '{}' is no algorithm of cuDNN: expected cudnn_legacy.<direction>.<number>",
      primitive.name);
  return *spec;
}

Kernel prepare_legacy(const Library& library, const Problem& problem, const Primitive& primitive) {
  const LegacySpec spec = require_spec(primitive);
  const auto& conv = std::get<ConvProblem>(problem);
  Kernel kernel = {.problem = problem, .primitive = primitive, .packing = to_string(primitive)};
  const auto states = std::make_shared<LegacyStates>();
  kernel.run = [=, epilogue = conv.epilogue](const KernelArgs& args) {
    at::Tensor dst = run_legacy(require_api(library), library.runtime, spec,
                                {problem, primitive, args}, *states);
    // The legacy functions take no bias. torch adds it in the same way.
    if (!epilogue.empty()) apply_epilogue(dst, epilogue, args.packed[0].bias, {});
    return dst;
  };
  if (conv.direction != Direction::kBackwardFilter) {
    const Layout layout = weights_layout(primitive);
    kernel.pack = [layout](const Weights& weights) -> Packed {
      return {{pack_weights(weights[0].weights, layout), weights[0].bias}};
    };
    kernel.packed_bytes = [=] { return strided_copy_bytes(problem, layout); };
  }
  return kernel;
}

}  // namespace

Algorithm make_legacy_algorithm(Direction direction, const Library& library) {
  return cudnn_algorithm(
      legacy_algorithm_name(direction), std::make_shared<LegacyOffers>(direction, library),
      [library](const Problem& problem, const Primitive& primitive, const Device&) {
        return prepare_legacy(library, problem, primitive);
      });
}

}  // namespace torchalgo::cudnn
