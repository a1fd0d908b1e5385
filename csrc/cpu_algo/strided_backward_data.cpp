// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/strided_backward_data.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/same_layout.h"
#include "ir/arithmetic.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;

// One axis of a part: the taps that contribute, and the padding of the forward convolution.
struct PartAxis {
  std::int64_t count = 0;  // of results
  std::int64_t first = 0, taps = 0;
  std::int64_t pad = 0, extra = 0;
};

// Result `begin` + i * stride is the sum over t of diff_dst[i + shift - t] times tap
// first + t * stride.
PartAxis axis_of(std::int64_t begin, std::int64_t size, std::int64_t filter, std::int64_t stride,
                 std::int64_t pad, std::int64_t dst) {
  PartAxis axis;
  axis.count = ceil_div(size - begin, stride);
  axis.first = (begin + pad) % stride;
  axis.taps = axis.first < filter ? ceil_div(filter - axis.first, stride) : 0;
  const std::int64_t shift = (begin + pad - axis.first) / stride;
  axis.pad = axis.taps - 1 - shift;
  axis.extra = axis.count - dst - 2 * axis.pad + axis.taps - 1;
  return axis;
}

// True if a forward convolution has this padding, or if no tap contributes.
bool is_padding(const PartAxis& axis) {
  return axis.taps == 0 || (axis.pad >= 0 && axis.pad + axis.extra >= 0);
}

StridedPart part_of(const ConvProblem& conv, std::int64_t row, std::int64_t column) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const PartAxis y = axis_of(row, conv.h, conv.r, conv.stride_h, conv.pad_h, dst[2]);
  const PartAxis x = axis_of(column, conv.w, conv.s, conv.stride_w, conv.pad_w, dst[3]);
  StridedPart part = {row, column, y.count, x.count, y.first, x.first, std::nullopt};
  if (y.taps == 0 || x.taps == 0) return part;
  ConvProblem twin = conv;
  twin.direction = Direction::kForward;
  twin.c = conv.k;
  twin.k = conv.c;
  twin.h = dst[2];
  twin.w = dst[3];
  twin.r = y.taps;
  twin.s = x.taps;
  twin.stride_h = twin.stride_w = 1;
  twin.pad_h = y.pad;
  twin.pad_w = x.pad;
  twin.extra_h = y.extra;
  twin.extra_w = x.extra;
  part.twin = twin;
  return part;
}

bool has_paddings(const ConvProblem& conv, std::int64_t row, std::int64_t column) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  return is_padding(axis_of(row, conv.h, conv.r, conv.stride_h, conv.pad_h, dst[2])) &&
         is_padding(axis_of(column, conv.w, conv.s, conv.stride_w, conv.pad_w, dst[3]));
}

// A part and the kernel that computes it.
struct PartKernel {
  StridedPart part;
  std::optional<PlainKernel> kernel;
  std::int64_t bias_floats = 0;  // copied here, because the kernel reads the model's own
};

// All that a run needs. The workspace holds the result of a part, then the workspace of its kernel.
struct Run {
  ConvProblem conv;
  Layout layout = Layout::kNchw;
  std::vector<PartKernel> parts;
  std::int64_t result_bytes = 0, workspace_bytes = 0;
};

// Copies the result of a part to its pixels of dst, or zeros if `from` is null.
template <class Element>
void scatter(const Run& run, const StridedPart& part, const Element* from, Element* to,
             const Threads& threads) {
  const ConvProblem& conv = run.conv;
  const LaneShape shape = lane_shape(run.layout, conv.n, conv.c);
  const std::int64_t lanes = shape.lanes, row_elements = part.columns * lanes;
  parallel_for(threads, shape.groups * part.rows, grain_of(row_elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t y = i % part.rows * conv.stride_h + part.row;
                   Element* at = to + ((i / part.rows * conv.h + y) * conv.w + part.column) * lanes;
                   for (std::int64_t x = 0; x < part.columns; ++x, at += conv.stride_w * lanes) {
                     if (from == nullptr) {
                       std::fill_n(at, lanes, Element{});
                     } else {
                       std::copy_n(from + i * row_elements + x * lanes, lanes, at);
                     }
                   }
                 }
               });
}

void scatter(const Run& run, const StridedPart& part, const float* from, float* to,
             const Threads& threads) {
  if (is_typed(run.layout)) {
    scatter<std::uint16_t>(run, part, as_bf16(from), as_bf16(to), threads);
  } else {
    scatter<float>(run, part, from, to, threads);
  }
}

void run_parts(const Run& run, const RunArgs& args, const Threads& threads) {
  auto* const result = static_cast<float*>(args.workspace);
  void* const workspace = static_cast<char*>(args.workspace) + run.result_bytes;
  const LayerPointers* weights = args.weights.data();
  for (const PartKernel& own : run.parts) {
    if (!own.kernel) {
      scatter(run, own.part, nullptr, args.dst, threads);
      continue;
    }
    own.kernel->run({args.src, {weights++, 1}, nullptr, result, workspace}, threads);
    scatter(run, own.part, result, args.dst, threads);
  }
}

void pack_parts(const Run& run, std::span<const LayerPointers> model,
                std::span<const PackedPointers> packed, const Threads& threads) {
  const PackedPointers* to = packed.data();
  for (const PartKernel& own : run.parts) {
    if (!own.kernel) continue;
    FilterTaps taps = all_taps(run.conv);
    taps.first_r = own.part.first_r, taps.step_r = run.conv.stride_h, taps.rows = own.part.twin->r;
    taps.first_s = own.part.first_s, taps.step_s = run.conv.stride_w;
    taps.columns = own.part.twin->s;
    std::vector<float> turned(static_cast<std::size_t>(taps.floats()));
    turn_filters(taps, model[0].weights, turned.data());
    const LayerPointers layer = {turned.data(), model[0].bias};
    own.kernel->pack({&layer, 1}, {to, 1}, threads);
    if (own.bias_floats > 0) std::copy_n(layer.bias, own.bias_floats, to->bias);
    ++to;
  }
}

Primitive exchanged(Primitive primitive) {
  std::swap(primitive.src, primitive.dst);
  return primitive;
}

std::int64_t result_bytes_of(const ConvProblem& conv, Layout layout) {
  const std::int64_t floats = element_count(
      layout, conv.n, conv.c, ceil_div(conv.h, conv.stride_h) * ceil_div(conv.w, conv.stride_w));
  return ceil_div(floats * std::int64_t{sizeof(float)}, kAlignment) * kAlignment;
}

// Keeps those of `primitives` that `more` has too, with the larger workspace.
void intersect(std::vector<Primitive>& primitives, const std::vector<Primitive>& more) {
  std::erase_if(primitives, [&](Primitive& primitive) {
    const auto same = std::ranges::find_if(more, [&](const Primitive& other) {
      return other.name == primitive.name && other.src == primitive.src &&
             other.dst == primitive.dst;
    });
    if (same == more.end()) return true;
    primitive.workspace_bytes = std::max(primitive.workspace_bytes, same->workspace_bytes);
    return false;
  });
}

}  // namespace

std::vector<StridedPart> strided_parts(const ConvProblem& conv) {
  if (conv.is_3d || conv.dilation_h != 1 || conv.dilation_w != 1) return {};
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  if (dst[2] < 1 || dst[3] < 1 || has(conv.epilogue, PostOp::kAdd)) return {};
  // All sizes must have the same parts, because packed weights are used for all sizes.
  if (conv.h < conv.stride_h || conv.w < conv.stride_w) return {};
  std::vector<StridedPart> parts;
  for (std::int64_t row = 0; row < conv.stride_h; ++row) {
    for (std::int64_t column = 0; column < conv.stride_w; ++column) {
      if (!has_paddings(conv, row, column)) return {};
      parts.push_back(part_of(conv, row, column));
      const std::optional<ConvProblem>& twin = parts.back().twin;
      if (twin ? !refuse_sizes(*twin).empty() : !conv.epilogue.empty()) return {};
    }
  }
  return parts;
}

Offer offer_strided_backward_data(const OfferOf& forward, const ConvProblem& conv,
                                  const Device& device) {
  const std::vector<StridedPart> parts = strided_parts(conv);
  std::optional<Offer> all;
  for (const StridedPart& part : parts) {
    if (!part.twin) continue;
    Offer own = forward(*part.twin, device);
    if (!own.refusal.empty()) return own;
    if (all) {
      intersect(all->primitives, own.primitives);
    } else {
      all = std::move(own);
    }
  }
  if (!all || all->primitives.empty()) {
    return {{}, "runs a strided bwd_data as forward convolutions of stride 1, which cannot be"};
  }
  for (Primitive& primitive : all->primitives) {
    primitive = exchanged(std::move(primitive));
    primitive.workspace_bytes += result_bytes_of(conv, primitive.src);
  }
  all->traits.clear();
  return std::move(*all);
}

PlainKernel bind_strided_backward_data(const BindOf& forward, const ConvProblem& conv,
                                       const Primitive& primitive, const Device& device) {
  auto run = std::make_shared<Run>();
  run->conv = conv;
  run->layout = primitive.src;
  run->result_bytes = result_bytes_of(conv, primitive.src);
  std::vector<PackedFloats> packed;
  std::string packing;
  for (StridedPart& part : strided_parts(conv)) {
    PartKernel own;
    own.part = std::move(part);
    if (own.part.twin) {
      own.kernel = forward(*own.part.twin, exchanged(primitive), device);
      TORCHALGO_ASSERT(own.kernel->packed.size() == 1);
      packed.push_back(own.kernel->packed[0]);
      packing += own.kernel->packing + "; ";
      if (packed.back().bias == 0 && has(conv.epilogue, PostOp::kBias))
        packed.back().bias = own.bias_floats = conv.c;
      run->workspace_bytes = std::max(run->workspace_bytes, own.kernel->workspace_bytes);
    }
    run->parts.push_back(std::move(own));
  }
  return {
      .workspace_bytes = run->result_bytes + run->workspace_bytes,
      .packed = std::move(packed),
      .packing = std::move(packing),
      .pack = [run](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                    const Threads& threads) { pack_parts(*run, model, to, threads); },
      .run = [run](const RunArgs& args, const Threads& threads) { run_parts(*run, args, threads); },
      .least_work =
          [run] {
            Work work = {0, least_bytes(run->conv)};
            for (const PartKernel& own : run->parts) {
              if (own.kernel && own.kernel->least_work)
                work.flops += own.kernel->least_work().flops;
            }
            return work;
          }};
}

}  // namespace torchalgo::cpu
