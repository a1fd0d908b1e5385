// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cudnn_algo/device_properties.h"
#include "cudnn_algo/enumerate.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/lru_cache.h"
#include "cudnn_algo/offers.h"
#include "cudnn_algo/refusal.h"
#include "cudnn_algo/run.h"
#include "cudnn_algo/traits.h"
#include "provider/packing.h"

namespace torchalgo::cudnn {
namespace {

// An enumeration takes about 0.2 MB.
constexpr std::size_t kKeptEnumerations = 64;
constexpr std::size_t kKeptAnswers = 1024;
// The number of proposals to request: enough to find a deterministic one.
constexpr std::size_t kBestProposals = 8;

std::string words_of(const PatternInfo& pattern) {
  std::string words;
  if (pattern.bias) words += "+bias";
  if (pattern.add) words += "+add";
  if (pattern.activation) words += fmt::format("+{}", to_string(*pattern.activation));
  return words.empty() ? "no epilogue" : words;
}

Traits traits_of(const EngineConfig& config) {
  Traits traits = traits_of(config.notes);
  traits.hidden_bytes = config.hidden_bytes;
  traits.proposal = config.proposal;
  return traits;
}

void add(const EngineConfig& config, Offer& offer) {
  offer.primitives.push_back(
      {to_string(config.spec), config.layouts.src, config.layouts.dst, config.workspace_bytes});
  offer.traits.push_back(traits_of(config));
}

// Makes the offers of one pattern and keeps the latest answers.
class EngineOffers {
 public:
  EngineOffers(const PatternInfo& pattern, Library library)
      : pattern_(pattern), library_(std::move(library)) {}

  Offer offer(const Problem& problem, const Device& device) {
    return ask(problem, device, [&](const Question& question) {
      const auto found = enumerations_.find_or_make(key_of(question), [&] {
        return enumerate(question.api, question.target, question.conv);
      });
      return to_offer(question, *found);
    });
  }

  // Offers one primitive. The name of the algorithm itself stands for the proposals of cuDNN's
  // heuristics, best first.
  Offer offer_one(const Problem& problem, const Device& device, const Primitive& primitive) {
    const bool is_algorithm =
        primitive.name == pattern_.algorithm || primitive.name == krsc_algorithm();
    const auto spec = parse_engine_spec(primitive.name);
    if (!is_algorithm && (!spec || spec->pattern != pattern_.pattern)) {
      return refuse(
          fmt::format("'{}' is no engine of {}: expected {}.e<number>[.krsc][{{KNOB=v,"
                      "...}}], knobs sorted by name",
                      primitive.name, pattern_.algorithm, pattern_.algorithm));
    }
    if (is_blocked(primitive.src) || is_blocked(primitive.dst)) {
      return refuse(kStridedOnly);
    }
    return ask(problem, device, [&](const Question& question) {
      const std::string key = key_of(question) + "\n" + to_string(primitive);
      const Layouts layouts = layouts_of(primitive);
      const auto answer = answers_.find_or_make(key, [&] {
        return is_algorithm ? answer_best(question, layouts) : answer_one(question, *spec, layouts);
      });
      return *answer;
    });
  }

 private:
  struct Question {
    const Api& api;
    const Target target;
    const ConvProblem& conv;
    const Device& device;
  };

  // Checks the conditions of every question, then calls `then`, which asks cuDNN.
  template <typename Then>
  Offer ask(const Problem& problem, const Device& device, const Then& then) const {
    const auto refusal = [&](const ConvProblem& conv) {
      return pattern_of(conv) == pattern_.pattern
                 ? std::string()
                 : fmt::format("computes convolutions with {}", words_of(pattern_));
    };
    return ask_library(
        library_, pattern_.direction, refusal, problem, device,
        [&](const Api& api, const ConvProblem& conv) {
          if (auto reason = size_refusal(conv)) return refuse(*std::move(reason));
          const auto on_device = library_.runtime.on_device(device.index);  // nothing for -1
          if (Handle handle = handle_for(device); handle != nullptr) {
            return then({api, {handle, nullptr, device.isa}, conv, device});
          }
          const auto properties = make_device_properties(api, device.properties);
          if (!properties.descriptor) return refuse(properties.refusal);
          return then({api, {nullptr, &*properties.descriptor, device.isa}, conv, device});
        });
  }

  // Returns this thread's handle of a GPU of this process, which offers more engines than the
  // description of the same GPU. Returns nullptr for other devices. It also does so while a CUDA
  // graph is captured, when no handle may be made, and if cuDNN makes none, for want of memory.
  [[nodiscard]] Handle handle_for(const Device& device) const {
    if (device.index < 0 || library_.runtime.is_capturing()) return nullptr;
    try {
      return handle_of_thread(require_api(library_), library_.runtime).raw;
    } catch (const StatusError&) {
      return nullptr;
    }
  }

  static std::string key_of(const Question& question) {
    const int index = question.target.handle == nullptr ? -1 : question.device.index;
    return fmt::format("{}\n{}\n{}", to_string(question.conv), index, question.device.properties);
  }

  Offer to_offer(const Question& question, const Enumeration& found) const {
    Offer offer;
    for (const EngineConfig& config : found.configs) add(config, offer);
    if (offer.primitives.empty()) {
      offer.refusal =
          fmt::format("none of the {} engines of cuDNN {} takes this problem on {}",
                      found.engine_count, version_text(question.api), question.device.isa);
    }
    add_family_statement(question, found, offer);
    for (const RefusedEngine& refused : found.refused) {
      offer.refused.push_back({fmt::format("{}.e{}", pattern_.algorithm, refused.engine),
                               with_layouts(refused.reason, refused.layouts)});
    }
    return offer;
  }

  // Adds a refusal that says that no Winograd or FFT engine exists here, for readers who look for
  // these algorithms.
  void add_family_statement(const Question& question, const Enumeration& found,
                            Offer& offer) const {
    if (offer.primitives.empty() || (found.has_winograd && found.has_fft)) return;
    const char* families = found.has_winograd ? "FFT"
                           : found.has_fft    ? "Winograd"
                                              : "Winograd or FFT";
    offer.refused.push_back(
        {std::string(pattern_.algorithm),
         fmt::format("no {} engine of cuDNN {} takes this problem on {}", families,
                     version_text(question.api), question.device.isa)});
  }

  Offer answer_one(const Question& question, const EngineSpec& spec, const Layouts& layouts) {
    Offer offer;
    if (const auto known = enumerations_.find(key_of(question))) {
      const auto config = std::ranges::find_if(known->configs, [&](const EngineConfig& one) {
        return one.layouts == layouts && one.spec == spec;
      });
      if (config != known->configs.end()) {
        add(*config, offer);
        return offer;
      }
    }
    ConfigAnswer asked = ask_config(question.api, question.target, question.conv, layouts, spec);
    if (!asked.config) return refuse(std::move(asked.reason));
    add(*asked.config, offer);
    return offer;
  }

  Offer answer_best(const Question& question, const Layouts& layouts) const {
    Offer offer;
    for (const EngineConfig& config :
         propose(question.api, question.target, question.conv, layouts, kBestProposals)) {
      add(config, offer);
    }
    if (offer.primitives.empty()) {
      offer.refusal = fmt::format("the heuristics of cuDNN {} propose no engine for this problem",
                                  version_text(question.api));
    }
    return offer;
  }

  [[nodiscard]] std::string krsc_algorithm() const {
    return std::string(pattern_.algorithm) + ".krsc";
  }

  const PatternInfo pattern_;
  const Library library_;
  AnswerCache<Enumeration> enumerations_{kKeptEnumerations};
  AnswerCache<Offer> answers_{kKeptAnswers};
};

Kernel prepare_engine(const Library& library, const Problem& problem, const Primitive& primitive) {
  const EngineSpec spec = require_engine_spec(primitive);
  Kernel kernel = {.problem = problem, .primitive = primitive, .packing = to_string(primitive)};
  const auto states = std::make_shared<EngineStates>();
  kernel.run = [=](const KernelArgs& args) {
    return run_engine(require_api(library), library.runtime, spec, {problem, primitive, args},
                      *states);
  };
  if (std::get<ConvProblem>(problem).direction != Direction::kBackwardFilter) {
    kernel.pack = [spec](const Weights& weights) { return pack_engine(spec, weights); };
    kernel.packed_bytes = [=] { return strided_copy_bytes(problem, weights_layout(primitive)); };
  }
  return kernel;
}

}  // namespace

Algorithm make_engine_algorithm(const PatternInfo& pattern, const Library& library) {
  return cudnn_algorithm(
      pattern.algorithm, std::make_shared<EngineOffers>(pattern, library),
      [library](const Problem& problem, const Primitive& primitive, const Device&) {
        return prepare_engine(library, problem, primitive);
      });
}

}  // namespace torchalgo::cudnn
