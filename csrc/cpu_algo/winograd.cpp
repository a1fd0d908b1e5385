// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "base/error.h"
#include "cpu_algo/conv_row.h"
#include "cpu_algo/kernels/winograd.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kScratchLimit = std::int64_t{2} << 20;  // per thread
constexpr std::int64_t kBlock = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Two blocks of 16 output channels a panel fill the AVX-512 registers together with 14 tiles; with
// AVX2 one block and 6 tiles do.
std::int64_t panel_blocks_of(std::string_view isa) { return isa == "avx512" ? 2 : 1; }
constexpr std::int64_t kMaxPanelBlocks = 2;

// What the build decides.
struct Build {
  kernels::WinogradKernels kernels;
  std::int64_t panel_blocks;
};

std::int64_t tile_count(int m, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  return conv.n * ceil_div(dst[2], m) * ceil_div(dst[3], m);
}

// A block of tiles as equal in size as its siblings; 49 tiles in blocks of at most 28: 25 and 24.
struct Blocking {
  std::int64_t tiles = 0;
  std::int64_t count = 0;
  Blocking(std::int64_t tiles, std::int64_t max_tiles)
      : tiles(tiles), count(ceil_div(tiles, max_tiles)) {}
  [[nodiscard]] std::int64_t largest() const { return ceil_div(tiles, count); }
  [[nodiscard]] kernels::TileBlock block(std::int64_t i) const {
    const std::int64_t begin = tiles * i / count;
    return {begin, tiles * (i + 1) / count - begin};
  }
};

// Floats of V, of M and of the chunk table, each a multiple of 16.
struct Scratch {
  std::int64_t v = 0, m = 0, chunks = 0;
  Scratch(int m_size, std::int64_t c_blocks, std::int64_t tiles)
      : v(kernels::winograd_elements(m_size) * kernels::winograd_v_step(c_blocks, tiles)),
        m(kernels::winograd_elements(m_size) * kernels::winograd_m_step(kMaxPanelBlocks, tiles)),
        chunks(ceil_div(2 * c_blocks, 16) * 16) {}
  [[nodiscard]] std::int64_t floats() const { return v + m + chunks; }
  [[nodiscard]] std::int64_t bytes() const { return floats() * std::int64_t{sizeof(float)}; }
};

std::string refusal_of(int m, const ConvProblem& conv) {
  std::string refusal = refuse_conv(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r != 3 || conv.s != 3)
    return fmt::format("needs a 3x3 filter, got {}x{}", conv.r, conv.s);
  if (conv.stride_h != 1 || conv.stride_w != 1)
    return fmt::format("needs stride 1, got {}x{}", conv.stride_h, conv.stride_w);
  if (conv.dilation_h != 1 || conv.dilation_w != 1)
    return fmt::format("needs dilation 1, got {}x{}", conv.dilation_h, conv.dilation_w);
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const std::int64_t direct = 9 * conv.n * dst[2] * dst[3];
  const std::int64_t ours = tile_count(m, conv) * kernels::winograd_elements(m);
  if (ours >= direct) {
    return fmt::format("saves nothing on a result of {}x{}: {} multiplications instead of {}",
                       dst[2], dst[3], ours, direct);
  }
  return {};
}

Offer offer(const WinogradRow& row, const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(row.m, *conv); !refusal.empty())
    return {{}, std::move(refusal)};
  const std::int64_t tiles = tile_count(row.m, *conv);
  Offer offer;
  std::int64_t smaller = 0;
  std::int64_t least_bytes = 0;
  for (const int size : row.block_sizes) {
    if (tiles <= smaller) break;  // one block already: the same as the variant before
    smaller = size;
    const Scratch scratch(row.m, channel_blocks(conv->c), Blocking(tiles, size).largest());
    if (least_bytes == 0) least_bytes = scratch.bytes();
    if (scratch.bytes() > kScratchLimit) break;
    offer.primitives.push_back({fmt::format("{}.t{}", row.name, size), Layout::kNChw16c,
                                Layout::kNChw16c, device.threads * scratch.bytes()});
  }
  if (offer.primitives.empty()) {
    offer.refusal = fmt::format("needs {} KiB of scratch per thread for {} channels, allows {} KiB",
                                least_bytes >> 10, conv->c, kScratchLimit >> 10);
  }
  return offer;
}

// The products of the transformed tiles; the transforms and whole blocks of channels come on top.
Work least_work(int m, const Problem& problem) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t products = tile_count(m, conv) * kernels::winograd_elements(m);
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c * conv.k),
          least_bytes(problem)};
}

// Evaluates a quadratic with the coefficients g at the interpolation points, each value divided by
// the product of its point's differences to the others.
void transform_row(int m, const double (&g)[3], double* u) {
  const auto pair = [&](double point, double scale, double* out) {
    const double even = g[0] + point * point * g[2];
    const double odd = point * g[1];
    out[0] = (even + odd) / scale;
    out[1] = (even - odd) / scale;
  };
  if (m == 2) {
    u[0] = g[0];
    pair(1, 2, u + 1);
    u[3] = g[2];
    return;
  }
  constexpr double kA = kernels::kWinogradNearPoint * kernels::kWinogradNearPoint;
  constexpr double kB = kernels::kWinogradFarPoint * kernels::kWinogradFarPoint;
  u[0] = g[0] / (kA * kB);
  pair(kernels::kWinogradNearPoint, 2 * kA * (kA - kB), u + 1);
  pair(kernels::kWinogradFarPoint, 2 * kB * (kB - kA), u + 3);
  u[5] = g[2];
}

// u[y][x] of the transformed 3x3 filter `g`, a dense row of (m + 2)^2.
void transform_filter(int m, const float* g, double* u) {
  constexpr int kMaxSize = 6;
  const int size = m + 2;
  double columns[3][kMaxSize];  // of each filter column, along y
  for (int s = 0; s < 3; ++s) transform_row(m, {g[s], g[3 + s], g[6 + s]}, columns[s]);
  for (int y = 0; y < size; ++y)
    transform_row(m, {columns[0][y], columns[1][y], columns[2][y]}, u + y * size);
}

// One panel: [elements, c_blocks * 16, blocks * 16], zero beyond the channels that exist.
void pack_panel(int m, const ConvProblem& conv, const float* weights, std::int64_t first_block,
                std::int64_t blocks, float* out) {
  const int elements = kernels::winograd_elements(m);
  const std::int64_t depth = channel_blocks(conv.c) * kBlock;
  const std::int64_t columns = blocks * kBlock;
  std::array<double, kernels::winograd_elements(4)> u = {};
  for (std::int64_t c = 0; c < depth; ++c) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t k = first_block * kBlock + column;
      if (c < conv.c && k < conv.k) {
        transform_filter(m, weights + (k * conv.c + c) * 9, u.data());
      } else {
        u.fill(0);
      }
      for (int element = 0; element < elements; ++element)
        out[(element * depth + c) * columns + column] = static_cast<float>(u[element]);
    }
  }
}

// Tiles per block, from the variant: "....t28".
std::int64_t block_size_of(const Primitive& primitive) {
  const std::size_t dot = primitive.name.rfind(".t");
  std::int64_t size = 0;
  if (dot != std::string::npos) {
    const char* end = primitive.name.data() + primitive.name.size();
    std::from_chars(primitive.name.data() + dot + 2, end, size);
  }
  TORCHALGO_ASSERT(size > 0);
  return size;
}

kernels::Winograd bind(int m, const Call& call, std::int64_t panel_blocks) {
  const auto& conv = std::get<ConvProblem>(call.problem);
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Winograd args;
  args.src = call.src[0].const_data_ptr<float>();
  args.weights = call.packed[0].const_data_ptr<float>();
  args.bias = call.packed[1].const_data_ptr<float>();
  if (call.residual.defined()) args.residual = call.residual.const_data_ptr<float>();
  args.dst = call.dst.mutable_data_ptr<float>();
  args.c_blocks = channel_blocks(conv.c);
  args.k_blocks = channel_blocks(conv.k);
  args.panel_blocks = panel_blocks;
  args.pad_lanes = args.k_blocks * kBlock - conv.k;
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  args.tiles_h = ceil_div(dst[2], m);
  args.tiles_w = ceil_div(dst[3], m);
  args.activation = activation_of(conv.epilogue);
  return args;
}

// Each worker owns a slice of the workspace and a run of the blocks.
void run_by_blocks(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Blocking& blocking, const Scratch& scratch, float* workspace,
                   std::int64_t workers) {
  const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
  run_in_slices(blocking.count, workers,
                [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                  float* v = workspace + slice * scratch.floats();
                  float* m = v + scratch.v;
                  for (std::int64_t i = begin; i < end; ++i) {
                    const kernels::TileBlock block = blocking.block(i);
                    kernel.transform(args, block, v, 0, args.c_blocks);
                    kernel.multiply(args, block, v, m, m + scratch.m, 0, panels);
                  }
                });
}

// All workers share V and divide the output channels, so that each streams its part of the weights.
void run_by_panels(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Blocking& blocking, const Scratch& scratch, float* workspace,
                   std::int64_t workers) {
  const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
  float* v = workspace;
  for (std::int64_t i = 0; i < blocking.count; ++i) {
    const kernels::TileBlock block = blocking.block(i);
    run_in_slices(args.c_blocks, workers, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      kernel.transform(args, block, v, begin, end);
    });
    run_in_slices(panels, workers, [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
      float* m = v + scratch.v + slice * (scratch.m + scratch.chunks);
      kernel.multiply(args, block, v, m, m + scratch.m, begin, end);
    });
  }
}

at::Tensor run(int m, const Build& build, const Call& call) {
  const kernels::Winograd args = bind(m, call, build.panel_blocks);
  const auto& conv = std::get<ConvProblem>(call.problem);
  Blocking blocking(tile_count(m, conv), block_size_of(call.primitive));
  const Scratch scratch(m, args.c_blocks, blocking.largest());
  const std::int64_t slices = call.primitive.workspace_bytes / scratch.bytes();
  TORCHALGO_ASSERT(slices > 0);
  const std::int64_t workers = std::min<std::int64_t>(slices, at::get_num_threads());
  auto* workspace = static_cast<float*>(call.workspace);
  const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
  if (blocking.count >= workers || panels < workers) {
    // A multiple of the workers, so that they end together.
    blocking.count = std::min(ceil_div(blocking.count, workers) * workers, blocking.tiles);
    run_by_blocks(args, build.kernels, blocking, scratch, workspace, workers);
  } else {
    run_by_panels(args, build.kernels, blocking, scratch, workspace, workers);
  }
  return call.dst;
}

// The weights as kernels::Winograd wants them, transformed in double, and the bias of whole blocks.
Packed pack(int m, std::int64_t panel_blocks, const Problem& problem, const Weights& weights) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t k_blocks = channel_blocks(conv.k);
  const std::int64_t block_floats =
      kernels::winograd_elements(m) * channel_blocks(conv.c) * kBlock * kBlock;
  const at::Tensor plain = weights.weights.contiguous();
  const at::Tensor packed = at::empty({k_blocks * block_floats}, at::kFloat);
  const float* src = plain.const_data_ptr<float>();
  float* dst = packed.mutable_data_ptr<float>();
  at::parallel_for(0, ceil_div(k_blocks, panel_blocks), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t panel = begin; panel < end; ++panel) {
                       const std::int64_t first = panel * panel_blocks;
                       pack_panel(m, conv, src, first, std::min(panel_blocks, k_blocks - first),
                                  dst + first * block_floats);
                     }
                   });
  return {packed, pad_bias(weights.bias, k_blocks * kBlock)};
}

std::int64_t packed_bytes(int m, const ConvProblem& conv) {
  const std::int64_t depth = channel_blocks(conv.c) * kBlock * kernels::winograd_elements(m);
  return channel_blocks(conv.k) * kBlock * (depth + 1) * std::int64_t{sizeof(float)};  // 1: bias
}

}  // namespace

Algorithm make_winograd(const WinogradRow& row, std::string_view isa) {
  const Build build = {TORCHALGO_PICK_KERNEL(isa, winograd_kernels)(row.m), panel_blocks_of(isa)};
  Algorithm algorithm;
  algorithm.name = row.name;
  algorithm.version = 3;
  algorithm.offer = [row](const Problem& problem, const Device& device) {
    return offer(row, problem, device);
  };
  algorithm.pack = [m = row.m, build](const Problem& problem, const Primitive&,
                                      const Weights& weights) {
    return pack(m, build.panel_blocks, problem, weights);
  };
  algorithm.packed_bytes = [m = row.m](const Problem& problem, const Primitive&) {
    return packed_bytes(m, std::get<ConvProblem>(problem));
  };
  algorithm.run = [m = row.m, build](const Call& call) { return run(m, build, call); };
  algorithm.least_work = [m = row.m](const Problem& problem, const Primitive&) {
    return least_work(m, problem);
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
