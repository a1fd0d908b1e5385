// SPDX-License-Identifier: BSD-3-Clause
// Convolutions around a depthwise one in one call, block of rows by block of rows, so that the
// tensors between them never leave the cache: the inverted residuals of MobileNets are a 1x1
// convolution that widens a tensor six times, a depthwise one, and a 1x1 one that narrows it again.
#include "cpu_algo/conv_chain.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/conv_gemm.h"
#include "cpu_algo/depthwise.h"
#include "cpu_algo/kernels/row_range.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {

ChainParts parts_of(const Problem& problem) {
  ChainParts parts;
  for (const Problem& layer : std::get<ConvChainProblem>(problem).layers) {
    const auto& conv = std::get<ConvProblem>(layer);
    const ConvProblem*& place = is_depthwise(conv)           ? parts.depthwise
                                : parts.depthwise != nullptr ? parts.narrow
                                                             : parts.wide;
    place = &conv;
  }
  return parts;
}

std::string refuse_chain(const Problem& problem) {
  const auto* chain = std::get_if<ConvChainProblem>(&problem);
  if (chain == nullptr || !std::holds_alternative<ConvProblem>(chain->layers[0]))
    return "is a chain of convolutions";
  std::int64_t depthwise = 0, before = 0, behind = 0;
  for (const Problem& layer : chain->layers) {
    const auto& conv = std::get<ConvProblem>(layer);
    if (std::string refusal = refuse_conv(conv); !refusal.empty()) return refusal;
    if (is_depthwise(conv)) {
      if (++depthwise > 1) return "needs one depthwise convolution, got two";
    } else if (depthwise > 0) {
      if (++behind > 1 || !is_pointwise(conv))
        return "needs one 1x1 convolution behind the depthwise one";
    } else if (++before > 1 || conv.groups != 1) {
      return "needs one convolution without groups before the depthwise one";
    }
  }
  return depthwise == 0 ? "needs a depthwise convolution" : "";
}

namespace {

using kernels::ConvGemm;
using kernels::Depthwise;
using kernels::Rows;

constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr Layout kInside = Layout::kNChw16c;
using Parts = ChainParts;

// One image's chain, cut into blocks of rows of the depthwise result.
struct Plan {
  std::optional<ConvGemm> wide;  // of a whole image; dst is the buffer of its rows
  Depthwise depthwise;           // of a whole image
  std::optional<ConvGemm> narrow;
  std::int64_t images = 1;
  std::int64_t blocks = 1;     // per image
  std::int64_t wide_rows = 0;  // rows of the buffer
  std::int64_t src_image = 0, dst_image = 0;
  std::int64_t wide_floats = 0;    // of the buffer between wide and depthwise
  std::int64_t middle_floats = 0;  // and between depthwise and narrow
  std::int64_t gemm_bytes = 0;     // scratch of the matrix products
};

std::int64_t slice_bytes(const Plan& plan) {
  return (plan.wide_floats + plan.middle_floats) * kFloatBytes + plan.gemm_bytes;
}

Rows block_of(const Plan& plan, std::int64_t block) {
  const std::int64_t rows = plan.depthwise.p;
  return {rows * block / plan.blocks, rows * (block + 1) / plan.blocks};
}

// Returns `gemm` restricted to `rows` of its result. They are written from row 0 of dst on.
ConvGemm part_of(const ConvGemm& gemm, Rows rows) {
  ConvGemm part = gemm;
  const std::int64_t top = rows.begin * gemm.stride_h - gemm.pad_h;
  const std::int64_t first = std::clamp<std::int64_t>(top, 0, gemm.h);
  part.src += first * gemm.src_row;
  part.h = gemm.h - first;
  part.pad_h = first - top;
  part.p = rows.count();
  flatten_conv_gemm(part);
  return part;
}

// Sets the blocks of K to those of the tallest part. The pixels stay one block, because a part is
// already a block of them.
void set_k_blocks(ConvGemm& gemm, std::int64_t most_rows) {
  ConvGemm part = part_of(gemm, {0, std::min(most_rows, gemm.p)});
  set_conv_gemm_blocks(part);
  gemm.block_planes = part.block_planes;
}

std::int64_t scratch_of(const ConvGemm& gemm, std::int64_t most_rows, const ConvGemmBuild& build) {
  // A part away from the padding reads the most rows.
  ConvGemm part = part_of(gemm, {0, std::min(most_rows, gemm.p)});
  part.pad_h = 0;
  return build.scratch_bytes(part);
}

// Sets the sizes of the buffers for blocks of `rows` rows of the depthwise result.
void set_buffers(Plan& plan, std::int64_t rows) {
  const Depthwise& conv = plan.depthwise;
  plan.wide_rows = most_rows_read(conv, rows);
  plan.wide_floats = plan.wide ? conv.blocks * plan.wide_rows * conv.w * conv.pixel : 0;
  plan.middle_floats = plan.narrow ? conv.blocks * rows * conv.q * conv.pixel : 0;
}

Plan plan_chain(const Parts& parts, const Primitive& primitive, const ConvGemmBuild& build,
                std::int64_t threads) {
  Plan plan;
  plan.depthwise = depthwise_args(*parts.depthwise, kInside);
  plan.images = parts.depthwise->n;
  if (parts.wide != nullptr) plan.wide = plan_part(*parts.wide, primitive.src, kInside, build);
  if (parts.narrow != nullptr)
    plan.narrow = plan_part(*parts.narrow, kInside, primitive.dst, build);
  Depthwise& conv = plan.depthwise;
  plan.src_image = plan.wide ? plan.wide->src_image : conv.blocks * conv.src_plane;
  plan.dst_image = plan.narrow ? plan.narrow->dst_image : conv.blocks * conv.dst_plane;
  // Finds the least number of blocks for which the tensors between the convolutions fit into L2.
  // Each thread gets at least one block, and some if they keep rows enough.
  constexpr std::int64_t kRowsOfBlock = 4;
  const std::int64_t wanted = tasks_for(threads, conv.p / kRowsOfBlock);
  const std::int64_t least = plan.images < threads ? std::min(wanted, conv.p) : 1;
  for (plan.blocks = least; plan.blocks < conv.p; ++plan.blocks) {
    set_buffers(plan, ceil_div(conv.p, plan.blocks));
    if (plan.wide_floats + plan.middle_floats <= kCachedFloats) break;
  }
  const std::int64_t rows = ceil_div(conv.p, plan.blocks);
  set_buffers(plan, rows);
  if (plan.wide) {
    conv.src_plane = plan.wide_rows * conv.w * conv.pixel;
    plan.wide->dst_block = conv.src_plane;
    set_k_blocks(*plan.wide, plan.wide_rows);
    plan.gemm_bytes = scratch_of(*plan.wide, plan.wide_rows, build);
  }
  if (plan.narrow) {
    set_k_blocks(*plan.narrow, rows);
    plan.gemm_bytes = std::max(plan.gemm_bytes, scratch_of(*plan.narrow, rows, build));
  }
  return plan;
}

struct Kernels {
  ConvGemmBuild gemm;
  decltype(&kernels::default_isa::run_depthwise) depthwise;
};

// Runs the blocks of one thread.
class Worker {
 public:
  Worker(const Kernels& kernels, const Plan& plan, const float* src, const float* residual,
         float* dst, char* memory)
      : kernels_(kernels),
        plan_(plan),
        src_(src),
        residual_(residual),
        dst_(dst),
        wide_(reinterpret_cast<float*>(memory)),
        middle_(wide_ + plan.wide_floats),
        scratch_(memory + (plan.wide_floats + plan.middle_floats) * kFloatBytes) {}

  void run(std::int64_t image, std::int64_t block) {
    const Rows result = block_of(plan_, block);
    const Rows read = rows_read(plan_.depthwise, result);
    const float* src = src_ + image * plan_.src_image;
    const std::int64_t offset = image * plan_.dst_image;
    const float* residual = residual_ == nullptr ? nullptr : residual_ + offset;
    if (plan_.wide) {
      widen(image, src, read);
      src = wide_;
    } else {
      src += read.begin * plan_.depthwise.w * plan_.depthwise.pixel;
    }
    if (plan_.narrow) {
      filter(src, read, result, nullptr, middle_, result.count() * row_floats());
      narrow(result, residual, dst_ + offset);
    } else {
      const std::int64_t first = result.begin * row_floats();
      filter(src, read, result, residual == nullptr ? nullptr : residual + first,
             dst_ + offset + first, plan_.depthwise.dst_plane);
    }
  }

 private:
  // Returns the floats of one row of the depthwise result, in one block of channels.
  [[nodiscard]] std::int64_t row_floats() const {
    return plan_.depthwise.q * plan_.depthwise.pixel;
  }

  // Computes rows `read` of the wide tensor into the buffer. Rows that the previous block has
  // computed are moved to the front of the buffer.
  void widen(std::int64_t image, const float* src, Rows read) {
    const Depthwise& conv = plan_.depthwise;
    const std::int64_t row = conv.w * conv.pixel;
    Rows fresh = read;
    if (image == image_ && made_.begin <= read.begin && read.begin < made_.end) {
      fresh.begin = made_.end;
      for (std::int64_t plane = 0; plane < conv.blocks; ++plane) {
        float* const front = wide_ + plane * conv.src_plane;
        std::memmove(front, front + (read.begin - made_.begin) * row,
                     static_cast<std::size_t>((made_.end - read.begin) * row * kFloatBytes));
      }
    }
    image_ = image;
    made_ = read;
    if (fresh.count() <= 0) return;
    ConvGemm whole = *plan_.wide;
    whole.src = src;
    ConvGemm part = part_of(whole, fresh);
    part.dst = wide_ + (fresh.begin - read.begin) * row;
    part.rows_below = fresh.count() * part.stride_h;
    kernels_.gemm.run(part, 0, conv_gemm_tasks(part), scratch_);
  }

  void filter(const float* src, Rows read, Rows result, const float* residual, float* dst,
              std::int64_t dst_plane) {
    Depthwise part = plan_.depthwise;
    part.src = src;
    part.h = read.count();
    part.pad_h = read.begin - (result.begin * part.stride_h - part.pad_h);
    part.p = result.count();
    part.residual = residual;
    part.dst = dst;
    part.dst_plane = dst_plane;
    kernels_.depthwise(part, 0, part.blocks * part.p);
  }

  void narrow(Rows result, const float* residual, float* dst) {
    ConvGemm part = *plan_.narrow;
    const std::int64_t first = result.begin * part.dst_row;
    part.src = middle_;
    part.src_plane = result.count() * row_floats();
    part.h = part.p = result.count();
    if (residual != nullptr) part.residual = residual + first;
    part.dst = dst + first;
    flatten_conv_gemm(part);
    kernels_.gemm.run(part, 0, conv_gemm_tasks(part), scratch_);
  }

  const Kernels& kernels_;
  const Plan& plan_;
  const float* src_;
  const float* residual_;
  float* dst_;
  float* wide_;
  float* middle_;
  char* scratch_;
  std::int64_t image_ = -1;  // whose rows `made_` the buffer holds
  Rows made_;
};

void set_weights(ConvGemm& gemm, const LayerPointers& layer) {
  gemm.weights = layer.weights;
  gemm.bias = layer.bias;
}

void run(const Kernels& kernels, const Plan& sizes, std::int64_t slices, const RunArgs& args,
         const Threads& threads) {
  Plan plan = sizes;
  auto layer = args.weights.begin();
  if (plan.wide) set_weights(*plan.wide, *layer++);
  plan.depthwise.weights = layer->weights;
  plan.depthwise.bias = layer->bias;
  ++layer;
  if (plan.narrow) set_weights(*plan.narrow, *layer);
  auto* workspace = static_cast<char*>(args.workspace);
  const std::int64_t bytes = slice_bytes(plan);
  run_in_slices(threads, plan.images * plan.blocks, slices,
                [&](const auto& next, std::int64_t slice) {
                  Worker worker(kernels, plan, args.src[0], args.residual, args.dst,
                                workspace + slice * bytes);
                  for (std::int64_t task = next(); task >= 0; task = next())
                    worker.run(task / plan.blocks, task % plan.blocks);
                });
}

Offer offer(const Kernels& kernels, const Problem& problem, const Device& device) {
  if (std::string refusal = refuse_chain(problem); !refusal.empty())
    return {{}, std::move(refusal)};
  const Parts parts = parts_of(problem);
  std::vector<Layout> sources = {kInside}, results = {kInside};
  if (parts.wide != nullptr) sources.push_back(Layout::kNhwc);
  if (parts.wide != nullptr && parts.wide->c <= kMostImageChannels) sources[0] = Layout::kNchw;
  if (parts.narrow != nullptr) results.push_back(Layout::kNhwc);
  Offer offer;
  for (const Layout src : sources) {
    for (const Layout dst : results) {
      Primitive primitive = {"cpu.conv_chain", src, dst};
      const Plan plan = plan_chain(parts, primitive, kernels.gemm, device.threads);
      primitive.workspace_bytes = slice_bytes(plan) * device.threads;
      offer.primitives.push_back(std::move(primitive));
    }
  }
  return offer;
}

std::vector<PackedFloats> packed_of(const Plan& plan, const Parts& parts) {
  std::vector<PackedFloats> packed;
  const auto add_gemm = [&](const ConvProblem* conv, const std::optional<ConvGemm>& gemm) {
    if (conv != nullptr) packed.push_back({packed_floats(*gemm), channel_blocks(conv->k) * 16});
  };
  add_gemm(parts.wide, plan.wide);
  packed.push_back({depthwise_weight_floats(*parts.depthwise, kInside),
                    depthwise_bias_floats(*parts.depthwise, kInside)});
  add_gemm(parts.narrow, plan.narrow);
  return packed;
}

void pack(const Plan& plan, const Problem& problem, std::span<const LayerPointers> model,
          std::span<const PackedPointers> packed, const Threads& threads) {
  const Parts parts = parts_of(problem);
  auto layer = model.begin();
  auto to = packed.begin();
  const auto add_gemm = [&](const ConvProblem* conv, const std::optional<ConvGemm>& gemm) {
    if (conv == nullptr) return;
    pack_conv_gemm(*gemm, *conv, layer->weights, to->weights, threads);
    pad_bias(layer->bias, conv->k, to->bias, channel_blocks(conv->k) * 16);
    ++layer, ++to;
  };
  add_gemm(parts.wide, plan.wide);
  pack_depthwise(*parts.depthwise, kInside, layer->weights, to->weights);
  pad_bias(layer->bias, parts.depthwise->k, to->bias,
           depthwise_bias_floats(*parts.depthwise, kInside));
  ++layer, ++to;
  add_gemm(parts.narrow, plan.narrow);
}

PlainKernel bind(const Kernels& kernels, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const Parts parts = parts_of(problem);
  const std::int64_t slices = device.threads;
  Plan plan = plan_chain(parts, primitive, kernels.gemm, slices);
  for (std::optional<ConvGemm>* gemm : {&plan.wide, &plan.narrow})
    if (*gemm) (*gemm)->prefetch = packed_floats(**gemm) > kCachedFloats;
  return {.workspace_bytes = slice_bytes(plan) * slices,
          .packed = packed_of(plan, parts),
          .packing = to_string(primitive),
          .pack = [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                      const Threads& threads) { pack(plan, problem, model, to, threads); },
          .run = [=](const RunArgs& args,
                     const Threads& threads) { run(kernels, plan, slices, args, threads); },
          .least_work = [=] { return direct_work(problem); }};
}

}  // namespace

Algorithm conv_chain(const std::string& isa) {
  const Kernels kernels = {conv_gemm_build(isa), TORCHALGO_PICK_KERNEL(isa, run_depthwise)};
  return {.name = "cpu.conv_chain",
          .version = 4,
          .rounding = 1,
          .offer = std::bind_front(offer, kernels),
          .bind = std::bind_front(bind, kernels)};
}

}  // namespace torchalgo::cpu
