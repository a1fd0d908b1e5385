// SPDX-License-Identifier: BSD-3-Clause
#include "provider/attention.h"

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_attention(const Problem& problem, const Device&) {
  if (!std::holds_alternative<AttentionProblem>(problem)) return {{}, "runs attention only"};
  return {{{"aten.attention", Layout::kNchw, Layout::kNchw, 0}}, {}};
}

Kernel prepare_attention(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [attention = std::get<AttentionProblem>(problem)](const KernelArgs& args) {
                return to_strided(attend(attention, args.src), Layout::kNchw);
              },
          .least_work = [problem] { return direct_work(problem); },
          .makes_dst = true};
}

}  // namespace

Algorithm attention() {
  return {.name = "aten.attention",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_attention,
          .prepare = prepare_attention,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
