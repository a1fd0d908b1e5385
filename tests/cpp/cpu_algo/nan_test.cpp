// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "all_algorithms.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/winograd.h"
#include "cpu_algo/problems.h"
#include "cpu_algo/row_check.h"
#include "ir/algorithm.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

// What the first of a problem's inputs holds in one place, the middle of the first image.
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sample with_value(const Problem& problem, float value) {
  Sample sample = make_sample(problem, 3);
  at::Tensor place = sample.src[0][0];
  place = place.select(0, place.size(0) / 2);
  while (place.dim() > 0) place = place.select(0, place.size(0) / 2);
  place.fill_(value);
  return sample;
}

struct Case {
  const Algorithm& algorithm;
  Primitive primitive;
  std::string what;
};

void visit_offers(const Algorithm& algorithm, const Problem& problem, const std::string& build,
                  const std::function<void(const Case&)>& visit) {
  for (const Primitive& primitive : algorithm.offer(problem, device_with_bf16()).primitives) {
    visit({algorithm, primitive, to_string(primitive) + " " + to_string(problem) + build});
  }
}

// Calls `visit` for each primitive that any provider offers on a CPU, and for each build of our own
// kernels that runs on this machine.
void for_each_primitive(const Problem& problem, const std::function<void(const Case&)>& visit) {
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.runs_on_cpu) visit_offers(algorithm, problem, "", visit);
  }
  for (const std::string& isa : isas()) {
    if (isa == cpu_device().isa) continue;
    for (const Algorithm& algorithm : prepared_algorithms(isa))
      visit_offers(algorithm, problem, " in the " + isa + " build", visit);
  }
}

bool is_any(const at::Tensor& mask) { return mask.any().item<bool>(); }

// How far from a NaN, in rows and columns, an algorithm may make results NaN that are none in
// PyTorch: all of each tile that reads it. Nothing: nowhere.
struct Reach {
  std::int64_t h, w;
};
std::optional<Reach> reach_of(const Case& run) {
  if (run.algorithm.name == "cpu.fft") {
    const std::int64_t reach = cpu::variant_number(run.primitive) - 1;
    return Reach{reach, reach};
  }
  // All taps of a gradient with respect to weights lie within a NaN's reach.
  if (run.algorithm.name == "cpu.winograd_f3x3_4x4") return Reach{2, 2};
  for (const kernels::WinogradTile& tile : kernels::kWinogradTiles) {
    const std::string name = fmt::format("cpu.winograd_f{}x{}_{}x{}{}", tile.h.m, tile.w.m,
                                         tile.h.r, tile.w.r, tile.h.stride == 2 ? "s2" : "");
    if (run.algorithm.name.starts_with(name)) return Reach{tile.h.size() - 1, tile.w.size() - 1};
  }
  return std::nullopt;
}

bool is_strassen(const Case& run) {
  return run.primitive.name.find("strassen") != std::string::npos;
}

void expect_near_the_middle(const at::Tensor& more, const Reach& reach, const std::string& what) {
  const at::Tensor places = more.nonzero();  // [count, 4]
  for (std::int64_t i = 0; i < places.size(0); ++i) {
    EXPECT_EQ(places[i][0].item<std::int64_t>(), 0) << what;
    for (const int axis : {2, 3}) {
      const std::int64_t middle = more.size(axis) / 2;
      EXPECT_LE(std::abs(places[i][axis].item<std::int64_t>() - middle),
                axis == 2 ? reach.h : reach.w)
          << what;
    }
  }
}

// Strassen's algorithm adds a pixel to one other.
void expect_one_pixel(const at::Tensor& more, const std::string& what) {
  EXPECT_LE(more.any(1).sum().item<std::int64_t>(), 1) << what;
}

bool is_onednn_in_bf16(const Case& run) {
  return run.primitive.name == "aten.prepacked" && is_typed(run.primitive.src);
}

TEST(Nan, IsNeverLostAndSpreadsAsDocumented) {
  const Threads one(1);
  std::int64_t primitives = 0, winograd = 0, strassen = 0;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    const Sample sample = with_value(problem, kNan);
    const at::Tensor expected = at::isnan(reference_result(problem, sample));
    ASSERT_TRUE(is_any(expected)) << text;
    for_each_primitive(problem, [&](const Case& run) {
      const at::Tensor found = at::isnan(run_once(run.algorithm, problem, run.primitive, sample));
      EXPECT_FALSE(is_any(expected.logical_and(found.logical_not()))) << run.what << " loses a NaN";
      const at::Tensor more = found.logical_and(expected.logical_not());
      const std::optional<Reach> reach = reach_of(run);
      if (is_onednn_in_bf16(run)) {
        // Tiles of AMX are filled with what lies beside the image's row, times zero.
      } else if (reach) {
        expect_near_the_middle(more, *reach, run.what);
      } else if (is_strassen(run)) {
        expect_one_pixel(more, run.what);
      } else {
        EXPECT_FALSE(is_any(more)) << run.what << " spreads a NaN";
      }
      ++primitives;
      winograd += reach ? 1 : 0;
      strassen += is_strassen(run) ? 1 : 0;
    });
  }
  EXPECT_GT(primitives, 200);
  EXPECT_GT(winograd, 4);
  EXPECT_GT(strassen, 2);
}

TEST(Nan, IsNeverLostInAnyLaneNorInTheResidual) {
  const Threads one(1);
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    Sample inputs = make_sample(problem, 3), residual = inputs;
    for (std::size_t i = 0; i < inputs.src.size(); ++i) inputs.src[i] = with_nans(inputs.src[i], i);
    if (residual.residual.defined()) residual.residual = with_nans(residual.residual, 0);
    for (const Sample& sample : {inputs, residual}) {
      const at::Tensor expected = at::isnan(reference_result(problem, sample));
      for_each_primitive(problem, [&](const Case& run) {
        const at::Tensor found = at::isnan(run_once(run.algorithm, problem, run.primitive, sample));
        EXPECT_FALSE(is_any(expected.logical_and(found.logical_not()))) << run.what;
      });
    }
  }
}

// Where PyTorch's result is an infinity or NaN, so is that of every algorithm; the same one, unless
// the algorithm subtracts elements of its input, which makes NaN of two infinities. GELU is not
// asked: PyTorch itself makes infinity a NaN in f32 and not in f64, and ours has its limits.
TEST(Infinity, StaysAnInfinityOrNan) {
  const Threads one(1);
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    if (std::string_view(text).starts_with("gelu")) continue;
    for (const float value : {kInfinity, -kInfinity}) {
      const Sample sample = with_value(problem, value);
      const at::Tensor expected = reference_result(problem, sample);
      for_each_primitive(problem, [&](const Case& run) {
        const at::Tensor found =
            run_once(run.algorithm, problem, run.primitive, sample).to(at::kDouble);
        const at::Tensor is_lost =
            at::isfinite(found).logical_and(at::isfinite(expected).logical_not());
        EXPECT_FALSE(is_any(is_lost)) << run.what << " loses " << value;
        if (reach_of(run) || is_strassen(run) || is_onednn_in_bf16(run)) return;
        const at::Tensor differs =
            at::isnan(found)
                .ne(at::isnan(expected))
                .logical_or(found.eq(kInfinity).ne(expected.eq(kInfinity)))
                .logical_or(found.eq(-kInfinity).ne(expected.eq(-kInfinity)));
        EXPECT_FALSE(is_any(differs)) << run.what << " differs from PyTorch with " << value;
      });
    }
  }
}

}  // namespace
}  // namespace torchalgo
