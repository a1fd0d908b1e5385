// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// Rows in vectors: where each part begins in a row of dst.
struct RowsInVectors {
  int parts = 0;
  const void* src[Rows::kMostParts] = {};
  std::uint32_t row_stride[Rows::kMostParts] = {}, begin[Rows::kMostParts + 1] = {};
};

template <typename V>
__global__ void __launch_bounds__(kThreads)
    join_rows(V* __restrict__ dst, const __grid_constant__ RowsInVectors rows,
              std::uint32_t items) {
  const std::uint32_t index = thread_index();
  if (index >= items) return;
  const std::uint32_t width = rows.begin[rows.parts];
  const std::uint32_t row = index / width, column = index % width;
  int part = 0, end = rows.parts;  // the part that has the column is in [part, end)
  while (end - part > 1) {
    const int middle = (part + end) / 2;
    (rows.begin[middle] <= column ? part : end) = middle;
  }
  const auto* const src = static_cast<const V*>(rows.src[part]);
  dst[index] =
      src[static_cast<std::int64_t>(row) * rows.row_stride[part] + (column - rows.begin[part])];
}

namespace {

template <typename V>
int enqueue_rows(const Rows& rows, void* dst, void* stream) {
  const int elements = static_cast<int>(sizeof(V)) / rows.element_bytes;
  RowsInVectors own;
  own.parts = rows.parts;
  for (int i = 0; i < rows.parts; ++i) {
    const Rows::Part& part = rows.part[i];
    own.src[i] = part.src;
    own.row_stride[i] = static_cast<std::uint32_t>(part.row_stride / elements);
    own.begin[i + 1] = own.begin[i] + static_cast<std::uint32_t>(part.width / elements);
  }
  const std::int64_t items = std::int64_t{rows.rows} * own.begin[rows.parts];
  return enqueue_for_each(items, stream, join_rows<V>, static_cast<V*>(dst), own,
                          static_cast<std::uint32_t>(items));
}

// Returns the size of the widest vectors in which all parts can be copied.
int widest_vector(const Rows& rows, const void* dst) {
  int bytes = 16;
  for (int i = 0; i < rows.parts; ++i) {
    const Rows::Part& part = rows.part[i];
    for (const int size : {part.width, part.row_stride}) {
      const auto row_bytes = std::int64_t{size} * rows.element_bytes;
      bytes = std::min(bytes, vector_bytes({part.src, dst}, row_bytes));
    }
  }
  return bytes;
}

bool is_valid(const Rows& rows) {
  if ((rows.element_bytes != 2 && rows.element_bytes != 4) || rows.parts < 1 ||
      rows.parts > Rows::kMostParts || rows.rows < 0) {
    return false;
  }
  std::int64_t width = 0;
  for (int i = 0; i < rows.parts; ++i) {
    const Rows::Part& part = rows.part[i];
    if (part.width < 0 || part.row_stride < part.width ||
        !is_small_enough(rows.rows, part.row_stride))
      return false;
    width += part.width;
  }
  return rows.rows * width < kElementLimit;
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_rows(const torchalgo::cuda::Rows* rows, void* dst, void* stream) {
  using namespace torchalgo::cuda;
  if (!is_valid(*rows)) return kInvalid;
  switch (widest_vector(*rows, dst)) {
    case 16:
      return enqueue_rows<uint4>(*rows, dst, stream);
    case 8:
      return enqueue_rows<uint2>(*rows, dst, stream);
    case 4:
      return enqueue_rows<std::uint32_t>(*rows, dst, stream);
    case 2:
      return rows->element_bytes == 2 ? enqueue_rows<std::uint16_t>(*rows, dst, stream) : kInvalid;
    default:
      return kInvalid;
  }
}
