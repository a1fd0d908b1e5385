// SPDX-License-Identifier: BSD-3-Clause
// The chains of cpu.conv_chain in bf16: 1x1 convolutions around a depthwise one, block of
// rows by block of rows. The tensors between them lie in nhwc and stay in L2.
#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "cpu_algo/bf16_conv.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/conv_chain.h"
#include "cpu_algo/depthwise.h"
#include "cpu_algo/kernels/row_range.h"
#include "cpu_algo/same_layout.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {
namespace {

using kernels::Bf16Conv;
using kernels::Depthwise;
using kernels::Rows;

constexpr const char* kName = "cpu.bf16_chain";
constexpr Layout kLayout = Layout::kNhwcBf16;
// The most elements of the tensors between the convolutions. Weights and images need the rest
// of L2.
constexpr std::int64_t kCachedElements = 512 * 1024 / 2;

// The convolutions of one image, cut into blocks of rows of the depthwise result.
struct Plan {
  std::optional<Bf16Plan> wide, narrow;
  Depthwise depthwise;
  std::int64_t images = 1;
  std::int64_t blocks = 1;  // per image
  std::int64_t src_image = 0, dst_image = 0;
  std::int64_t wide_elements = 0;    // of the buffer between wide and depthwise
  std::int64_t middle_elements = 0;  // and between depthwise and narrow
};

std::int64_t slice_bytes(const Plan& plan) {
  return ceil_div((plan.wide_elements + plan.middle_elements) * 2, 64) * 64;
}

void set_buffers(Plan& plan, std::int64_t rows) {
  const Depthwise& conv = plan.depthwise;
  // The second buffer begins at a cache line.
  plan.wide_elements =
      plan.wide ? ceil_div(most_rows_read(conv, rows) * conv.w * conv.pixel, 32) * 32 : 0;
  plan.middle_elements = plan.narrow ? rows * conv.q * conv.pixel : 0;
}

Plan plan_chain(const ChainParts& parts, std::int64_t threads) {
  const Primitive inside = {kName, kLayout, kLayout};
  Plan plan;
  plan.depthwise = depthwise_args(*parts.depthwise, kLayout);
  const Depthwise& conv = plan.depthwise;
  plan.images = parts.depthwise->n;
  plan.src_image = conv.h * conv.w * conv.pixel;
  plan.dst_image = conv.p * conv.q * conv.pixel;
  if (parts.wide != nullptr) {
    plan.wide = plan_bf16_conv(*parts.wide, inside, 1);
    plan.src_image = conv.h * conv.w * parts.wide->c;
  }
  if (parts.narrow != nullptr) {
    plan.narrow = plan_bf16_conv(*parts.narrow, inside, 1);
    plan.dst_image = conv.p * conv.q * parts.narrow->k;
  }
  // Finds the least number of blocks for which the tensors between the convolutions fit.
  constexpr std::int64_t kRowsOfBlock = 4;
  const std::int64_t wanted = tasks_for(threads, conv.p / kRowsOfBlock);
  plan.blocks = plan.images < threads ? std::min(wanted, conv.p) : 1;
  for (;; ++plan.blocks) {
    set_buffers(plan, ceil_div(conv.p, plan.blocks));
    const bool fits = plan.wide_elements + plan.middle_elements <= kCachedElements;
    if (fits || plan.blocks == conv.p) return plan;
  }
}

struct Kernels {
  RunBf16Conv conv;
  DepthwiseRun depthwise;
};

// The arguments of the kernels for a whole image, without the tensors.
struct Layers {
  Bf16Conv wide = {}, narrow = {};  // unused if the plan has none
  Depthwise depthwise;
};

// Runs the blocks of one thread.
class Worker {
 public:
  Worker(const Kernels& kernels, const Plan& plan, const Layers& layers, const RunArgs& args,
         char* memory)
      : kernels_(kernels),
        plan_(plan),
        layers_(layers),
        src_(as_bf16(args.src[0])),
        residual_(as_bf16(args.residual)),
        dst_(as_bf16(args.dst)),
        wide_(reinterpret_cast<std::uint16_t*>(memory)),
        middle_(wide_ + plan.wide_elements) {}

  void run(std::int64_t image, std::int64_t block) {
    const std::int64_t rows = plan_.depthwise.p;
    const Rows result = {rows * block / plan_.blocks, rows * (block + 1) / plan_.blocks};
    const Rows read = rows_read(plan_.depthwise, result);
    const std::uint16_t* src = src_ + image * plan_.src_image;
    const std::int64_t first = image * plan_.dst_image + result.begin * plan_.dst_image / rows;
    const std::uint16_t* residual = residual_ == nullptr ? nullptr : residual_ + first;
    if (plan_.wide) {
      widen(image, src, read);
      src = wide_;
    } else {
      src += read.begin * wide_row();
    }
    if (!plan_.narrow) return filter(src, read, result, residual, dst_ + first);
    filter(src, read, result, nullptr, middle_);
    multiply(layers_.narrow, middle_, residual, dst_ + first, result.count() * plan_.depthwise.q);
  }

 private:
  // Returns the elements of a row that the depthwise convolution reads.
  [[nodiscard]] std::int64_t wide_row() const { return plan_.depthwise.w * plan_.depthwise.pixel; }

  void multiply(const Bf16Conv& whole, const std::uint16_t* src, const std::uint16_t* residual,
                std::uint16_t* dst, std::int64_t pixels) const {
    Bf16Conv conv = whole;
    conv.src = src;
    conv.residual = residual;
    conv.dst = dst;
    set_pixels(conv, pixels);
    std::int64_t band = -1;
    kernels_.conv(conv, 0, nullptr, band);
  }

  // Computes rows `read` of the wide tensor into the buffer. Rows that the previous block has
  // computed are moved to the front of the buffer.
  void widen(std::int64_t image, const std::uint16_t* src, Rows read) {
    Rows fresh = read;
    if (image == image_ && made_.begin <= read.begin && read.begin < made_.end) {
      fresh.begin = made_.end;
      std::memmove(wide_, wide_ + (read.begin - made_.begin) * wide_row(),
                   static_cast<std::size_t>((made_.end - read.begin) * wide_row()) * 2);
    }
    image_ = image;
    made_ = read;
    if (fresh.count() <= 0) return;
    const std::int64_t w = plan_.depthwise.w;
    multiply(layers_.wide, src + fresh.begin * w * layers_.wide.c, nullptr,
             wide_ + (fresh.begin - read.begin) * wide_row(), fresh.count() * w);
  }

  void filter(const std::uint16_t* src, Rows read, Rows result, const std::uint16_t* residual,
              std::uint16_t* dst) const {
    Depthwise part = layers_.depthwise;
    part.src = reinterpret_cast<const float*>(src);
    part.h = read.count();
    part.pad_h = read.begin - (result.begin * part.stride_h - part.pad_h);
    part.p = result.count();
    part.residual = reinterpret_cast<const float*>(residual);
    part.dst = reinterpret_cast<float*>(dst);
    kernels_.depthwise(part, 0, part.p);
  }

  const Kernels& kernels_;
  const Plan& plan_;
  const Layers& layers_;
  const std::uint16_t* src_;
  const std::uint16_t* residual_;
  std::uint16_t* dst_;
  std::uint16_t* wide_;
  std::uint16_t* middle_;
  std::int64_t image_ = -1;  // whose rows `made_` the buffer holds
  Rows made_;
};

Bf16Conv with_constants(const Bf16Plan& plan, const LayerPointers& layer) {
  Bf16Conv conv = plan.conv;
  conv.weights = as_bf16(layer.weights);
  conv.bias = layer.bias;
  conv.offsets = plan.offsets.data();
  return conv;
}

void run(const Kernels& kernels, const Plan& plan, std::int64_t slices, const RunArgs& args,
         const Threads& threads) {
  Layers layers = {.depthwise = plan.depthwise};
  auto layer = args.weights.begin();
  if (plan.wide) layers.wide = with_constants(*plan.wide, *layer++);
  layers.depthwise.weights = layer->weights;
  layers.depthwise.bias = layer->bias;
  ++layer;
  if (plan.narrow) layers.narrow = with_constants(*plan.narrow, *layer);
  auto* const workspace = static_cast<char*>(args.workspace);
  const std::int64_t bytes = slice_bytes(plan);
  run_in_slices(threads, plan.images * plan.blocks, slices,
                [&](const auto& next, std::int64_t slice) {
                  Worker worker(kernels, plan, layers, args, workspace + slice * bytes);
                  for (std::int64_t task = next(); task >= 0; task = next())
                    worker.run(task / plan.blocks, task % plan.blocks);
                });
}

std::vector<PackedFloats> packed_of(const Plan& plan, const ChainParts& parts) {
  std::vector<PackedFloats> packed;
  const auto add = [&](const std::optional<Bf16Plan>& conv) {
    if (!conv) return;
    packed.push_back(
        {bf16_conv_packed_elements(conv->conv) / 2, bf16_conv_blocks(conv->conv) * 32});
  };
  add(plan.wide);
  packed.push_back({depthwise_weight_floats(*parts.depthwise, kLayout),
                    depthwise_bias_floats(*parts.depthwise, kLayout)});
  add(plan.narrow);
  return packed;
}

void pack(const Plan& plan, const Problem& problem, std::span<const LayerPointers> model,
          std::span<const PackedPointers> packed, const Threads& threads) {
  const ChainParts parts = parts_of(problem);
  auto layer = model.begin();
  auto to = packed.begin();
  const auto add = [&](const std::optional<Bf16Plan>& conv) {
    if (!conv) return;
    pack_bf16_weights(*conv, layer->weights, as_bf16(to->weights), threads);
    pad_bias(layer->bias, conv->conv.k, to->bias, bf16_conv_blocks(conv->conv) * 32);
    ++layer, ++to;
  };
  add(plan.wide);
  pack_depthwise(*parts.depthwise, kLayout, layer->weights, to->weights);
  pad_bias(layer->bias, parts.depthwise->k, to->bias,
           depthwise_bias_floats(*parts.depthwise, kLayout));
  ++layer, ++to;
  add(plan.narrow);
}

Offer offer_all(const Problem& problem, const Device& device) {
  constexpr std::int64_t kLanes = 16;  // of run_depthwise_bf16
  if (std::string refusal = refuse_chain(problem); !refusal.empty()) return {{}, refusal};
  const ChainParts parts = parts_of(problem);
  if (parts.depthwise->c < kLanes) return {{}, "needs 16 channels or more"};
  if (parts.wide != nullptr && !is_pointwise(*parts.wide))
    return {{}, "needs a 1x1 convolution before the depthwise one"};
  const Plan plan = plan_chain(parts, device.threads);
  for (const std::optional<Bf16Plan>& conv : {plan.wide, plan.narrow}) {
    if (conv && conv->conv.source != Bf16Conv::kImage)
      return {{}, "needs channels with an even divisor near 32"};
  }
  return {{{kName, kLayout, kLayout, slice_bytes(plan) * device.threads}}, {}};
}

PlainKernel bind(const std::string& isa, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const Kernels kernels = {pick_bf16_conv(isa, device), pick_bf16_depthwise(isa, device)};
  const std::int64_t slices = device.threads;
  const ChainParts parts = parts_of(problem);
  const Plan plan = plan_chain(parts, slices);
  return {.workspace_bytes = slice_bytes(plan) * slices,
          .packed = packed_of(plan, parts),
          .packing = to_string(primitive),
          .pack = [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                      const Threads& threads) { pack(plan, problem, model, to, threads); },
          .run = [=](const RunArgs& args,
                     const Threads& threads) { run(kernels, plan, slices, args, threads); }};
}

}  // namespace

Algorithm bf16_chain(const std::string& isa) {
  return with_bf16_if_fast({.name = kName,
                            .version = 2,
                            .rounding = 1,
                            .offer = offer_all,
                            .bind = std::bind_front(bind, isa)});
}

}  // namespace torchalgo::cpu
