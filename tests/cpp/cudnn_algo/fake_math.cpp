// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/fake_math.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <numeric>

namespace torchalgo::cudnn::fake {
namespace {

template <typename T>
double load_as(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);  // a misaligned view is what some tests are about
  return static_cast<double>(value);
}

template <typename T>
void store_as(char* at, double number) {
  const T value = static_cast<T>(static_cast<float>(number));
  std::memcpy(at, &value, sizeof value);
}

double load(Element element, const char* at) {
  switch (element) {
    case Element::kF64:
      return load_as<double>(at);
    case Element::kF32:
      return load_as<float>(at);
    case Element::kF16:
      return load_as<c10::Half>(at);
    case Element::kBf16:
      return load_as<c10::BFloat16>(at);
  }
  return 0;
}

void store(Element element, char* at, double number) {
  switch (element) {
    case Element::kF64:
      std::memcpy(at, &number, sizeof number);
      return;
    case Element::kF32:
      return store_as<float>(at, number);
    case Element::kF16:
      return store_as<c10::Half>(at, number);
    case Element::kBf16:
      return store_as<c10::BFloat16>(at, number);
  }
}

// Calls visit(logical index, offset in elements) for every element.
template <typename Visit>
void walk(const Place& place, const Visit& visit) {
  const std::size_t rank = place.sizes.size();
  std::vector<std::int64_t> position(rank, 0);
  const std::int64_t count = element_count(place);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank; ++d) offset += position[d] * place.strides[d];
    visit(i, offset);
    for (std::size_t d = rank; d-- > 0 && ++position[d] == place.sizes[d];) position[d] = 0;
  }
}

// (0, h, w) or (d, h, w) of a list of 2 or 3, with `missing` for the depth that is not there.
Triple triple_of(const std::vector<std::int64_t>& list, std::size_t first, std::int64_t missing) {
  const bool has_depth = list.size() - first == 3;
  return has_depth ? Triple{list[first], list[first + 1], list[first + 2]}
                   : Triple{missing, list[first], list[first + 1]};
}

struct Index {
  std::int64_t src, filter, dst;
};

// Calls visit for every product of the convolution with the logical indices of its three elements.
template <typename Visit>
void for_each_product(const Geometry& g, const Visit& visit) {
  const std::int64_t group_c = g.c / g.groups, group_k = g.k / g.groups;
  const auto volume = [](const Triple& t) { return t[0] * t[1] * t[2]; };
  const auto at = [](const Triple& t, const Triple& size) {
    return (t[0] * size[1] + t[1]) * size[2] + t[2];
  };
  const auto for_each_filter = [&](const Triple& p, auto&& body) {
    Triple f, s;
    for (f[0] = 0; f[0] < g.filter[0]; ++f[0]) {
      for (f[1] = 0; f[1] < g.filter[1]; ++f[1]) {
        for (f[2] = 0; f[2] < g.filter[2]; ++f[2]) {
          bool is_inside = true;
          for (int i = 0; i < 3; ++i) {
            s[i] = p[i] * g.stride[i] - g.pad[i] + f[i] * g.dilation[i];
            is_inside = is_inside && s[i] >= 0 && s[i] < g.src[i];
          }
          if (is_inside) body(at(s, g.src), at(f, g.filter));
        }
      }
    }
  };
  Triple p;
  for (p[0] = 0; p[0] < g.dst[0]; ++p[0]) {
    for (p[1] = 0; p[1] < g.dst[1]; ++p[1]) {
      for (p[2] = 0; p[2] < g.dst[2]; ++p[2]) {
        for_each_filter(p, [&](std::int64_t src, std::int64_t filter) {
          for (std::int64_t nk = 0; nk < g.n * g.k; ++nk) {
            const std::int64_t n = nk / g.k, k = nk % g.k, first_c = k / group_k * group_c;
            for (std::int64_t c = 0; c < group_c; ++c) {
              visit(Index{(n * g.c + first_c + c) * volume(g.src) + src,
                          (k * group_c + c) * volume(g.filter) + filter,
                          nk * volume(g.dst) + at(p, g.dst)});
            }
          }
        });
      }
    }
  }
}

std::int64_t volume(const Triple& t) { return t[0] * t[1] * t[2]; }

}  // namespace

std::int64_t element_bytes(Element element) {
  return element == Element::kF64 ? 8 : element == Element::kF32 ? 4 : 2;
}

std::int64_t element_count(const Place& place) {
  return std::accumulate(place.sizes.begin(), place.sizes.end(), std::int64_t{1},
                         std::multiplies<>());
}

std::vector<double> read(const Place& place, const void* data) {
  std::vector<double> values(static_cast<std::size_t>(element_count(place)));
  const std::int64_t bytes = element_bytes(place.element);
  walk(place, [&](std::int64_t i, std::int64_t offset) {
    values[i] = load(place.element, static_cast<const char*>(data) + offset * bytes);
  });
  return values;
}

void write(const Place& place, const std::vector<double>& values, void* data) {
  const std::int64_t bytes = element_bytes(place.element);
  walk(place, [&](std::int64_t i, std::int64_t offset) {
    store(place.element, static_cast<char*>(data) + offset * bytes, values[i]);
  });
}

Geometry make_geometry(const std::vector<std::int64_t>& x, const std::vector<std::int64_t>& w,
                       const std::vector<std::int64_t>& y, const std::vector<std::int64_t>& pad,
                       const std::vector<std::int64_t>& pad_after,
                       const std::vector<std::int64_t>& stride,
                       const std::vector<std::int64_t>& dilation) {
  return {.n = x[0],
          .c = x[1],
          .k = w[0],
          .groups = w[1] > 0 ? x[1] / w[1] : 1,
          .src = triple_of(x, 2, 1),
          .filter = triple_of(w, 2, 1),
          .dst = triple_of(y, 2, 1),
          .pad = triple_of(pad, 0, 0),
          .pad_after = triple_of(pad_after, 0, 0),
          .stride = triple_of(stride, 0, 1),
          .dilation = triple_of(dilation, 0, 1)};
}

bool is_consistent(const Geometry& g) {
  bool fits = g.groups >= 1 && g.c % g.groups == 0 && g.k % g.groups == 0;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t padded = g.pad[i] + g.src[i] + g.pad_after[i];
    const std::int64_t covered = padded - g.dilation[i] * (g.filter[i] - 1) - 1;
    fits = fits && covered >= 0 && g.dst[i] == covered / g.stride[i] + 1;
  }
  return fits;
}

std::vector<double> convolve(Role role, const Geometry& g, const std::vector<double>& a,
                             const std::vector<double>& b) {
  const std::int64_t size = role == Role::kForward        ? g.n * g.k * volume(g.dst)
                            : role == Role::kBackwardData ? g.n * g.c * volume(g.src)
                                                          : g.k * g.c / g.groups * volume(g.filter);
  std::vector<double> result(static_cast<std::size_t>(size), 0.0);
  for_each_product(g, [&](const Index& i) {
    if (role == Role::kForward) result[i.dst] += a[i.src] * b[i.filter];
    if (role == Role::kBackwardData) result[i.src] += a[i.dst] * b[i.filter];
    if (role == Role::kBackwardFilter) result[i.filter] += a[i.src] * b[i.dst];
  });
  return result;
}

}  // namespace torchalgo::cudnn::fake
