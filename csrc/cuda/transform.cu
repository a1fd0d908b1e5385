// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"
#include "cuda/tiles.h"

namespace torchalgo::cuda {

// A move without a cast is one of bits: NaN payloads stay as they are.
using Bits16 = std::uint16_t;
using Bits32 = std::uint32_t;

// The loads that a thread has on their way before it waits for the first: memory answers after
// about a thousand cycles.
inline constexpr int kAtOnce = 4;

template <typename Src, typename Dst, int kReadBits, int kWriteBits>
__global__ void __launch_bounds__(kTileThreads)
    transpose_tiles(const Src* __restrict__ src, Dst* __restrict__ dst, Tiling tiling) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Src* const shared = reinterpret_cast<Src*>(shared_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t index = blockIdx.x; index < tiling.tile_count(); index += gridDim.x) {
    const Tile tile = tile_at(tiling, index);
    const int reads = read_steps(tiling, tile), writes = write_steps(tiling, tile);
    for (int first = 0; first < reads; first += kAtOnce) {
      Vector<Src, 1 << kReadBits> loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Access access = read_access(tiling, tile, first + i, thread);
        if (!access.exists) continue;
        loaded[i] = load<1 << kReadBits>(src + access.offset);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Access access = read_access(tiling, tile, first + i, thread);
        if (!access.exists) continue;
#pragma unroll
        for (int j = 0; j < 1 << kReadBits; ++j) shared[access.shared + j] = loaded[i].elements[j];
      }
    }
    __syncthreads();
#pragma unroll kAtOnce
    for (int step = 0; step < writes; ++step) {
      const Access access = write_access(tiling, tile, step, thread);
      if (!access.exists) continue;
      Vector<Dst, 1 << kWriteBits> stored;
#pragma unroll
      for (int i = 0; i < 1 << kWriteBits; ++i) {
        stored.elements[i] = static_cast<Dst>(shared[access.shared + i * tiling.pitch]);
      }
      store(dst + access.offset, stored);
    }
    __syncthreads();  // before the next tile overwrites what others still read
  }
}

namespace {

template <typename Src, typename Dst, int kReadBits, int kWriteBits>
int launch(const Src* src, Dst* dst, const Tiling& tiling, void* stream) {
  constexpr std::int64_t kMostBlocks = 1 << 20;  // more tiles are walked by the same blocks
  const std::int64_t tiles = tiling.tile_count();
  const std::size_t shared = static_cast<std::size_t>(tiling.shared_elements()) * sizeof(Src);
  return enqueue(tiles < kMostBlocks ? tiles : kMostBlocks, kTileThreads, shared, stream,
                 transpose_tiles<Src, Dst, kReadBits, kWriteBits>, src, dst, tiling);
}

template <int kBytes>
constexpr int kVectorBits = kBytes == 2 ? 3 : 2;  // 16 bytes

template <typename Src, typename Dst>
int transpose(const void* src_data, void* dst_data, Transpose problem, void* stream) {
  constexpr int kRead = kVectorBits<sizeof(Src)>, kWrite = kVectorBits<sizeof(Dst)>;
  const auto* const src = static_cast<const Src*>(src_data);
  auto* const dst = static_cast<Dst*>(dst_data);
  const int read =
      vector_bits(problem.cols, reinterpret_cast<std::uintptr_t>(src), sizeof(Src), kRead);
  const int write =
      vector_bits(problem.rows, reinterpret_cast<std::uintptr_t>(dst), sizeof(Dst), kWrite);
  const Tiling tiling = make_tiling(problem, sizeof(Src), read, write);
  if (read && write) return launch<Src, Dst, kRead, kWrite>(src, dst, tiling, stream);
  if (read) return launch<Src, Dst, kRead, 0>(src, dst, tiling, stream);
  if (write) return launch<Src, Dst, 0, kWrite>(src, dst, tiling, stream);
  return launch<Src, Dst, 0, 0>(src, dst, tiling, stream);
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_abi() { return torchalgo::cuda::kInterfaceAbi; }

int torchalgo_cuda_transform(const void* src, void* dst, int src_type, int dst_type,
                             std::int64_t images, std::int64_t rows, std::int64_t cols,
                             void* stream) {
  using namespace torchalgo::cuda;
  const auto is_type = [](int type) { return kFloat <= type && type <= kBfloat16; };
  if (images < 0 || rows < 0 || cols < 0 || !is_type(src_type) || !is_type(dst_type)) {
    return kInvalid;
  }
  if (images == 0 || rows == 0 || cols == 0) return static_cast<int>(cudaSuccess);
  const Transpose problem = simplified({images, rows, cols});
  switch (3 * src_type + dst_type) {
    case 3 * kFloat + kFloat:
      return transpose<Bits32, Bits32>(src, dst, problem, stream);
    case 3 * kHalf + kHalf:
    case 3 * kBfloat16 + kBfloat16:
      return transpose<Bits16, Bits16>(src, dst, problem, stream);
    case 3 * kFloat + kHalf:
      return transpose<float, __half>(src, dst, problem, stream);
    case 3 * kFloat + kBfloat16:
      return transpose<float, __nv_bfloat16>(src, dst, problem, stream);
    case 3 * kHalf + kFloat:
      return transpose<__half, float>(src, dst, problem, stream);
    case 3 * kBfloat16 + kFloat:
      return transpose<__nv_bfloat16, float>(src, dst, problem, stream);
    default:
      return kInvalid;
  }
}
