// SPDX-License-Identifier: BSD-3-Clause
#include "import/operands.h"

#include <fmt/format.h>

#include "torchscript/constants.h"

namespace torchalgo {
namespace {

template <typename T>
T expect(std::optional<T> found, const char* name) {
  if (!found) throw NotPlanned(fmt::format("{} is not a constant", name));
  return std::move(*found);
}

}  // namespace

script::Value Operands::value(const char* name) const { return node_.argument(name); }
bool Operands::is_none(const char* name) const { return torchalgo::is_none(value(name)); }
bool Operands::boolean(const char* name) const { return expect(constant_bool(value(name)), name); }
double Operands::number(const char* name) const {
  return expect(constant_number(value(name)), name);
}
std::vector<double> Operands::floats(const char* name) const {
  return expect(constant_floats(value(name)), name);
}
std::vector<std::int64_t> Operands::ints(const char* name) const {
  return expect(constant_ints(value(name)), name);
}

std::vector<std::int64_t> Operands::ints(const char* name, std::size_t count) const {
  std::vector<std::int64_t> list = ints(name);
  if (list.size() == 1) list.resize(count, list[0]);
  if (list.size() != count) {
    throw NotPlanned(fmt::format("{} has {} entries, expected {}", name, list.size(), count));
  }
  return list;
}

at::Tensor Operands::constant(const char* name, DType dtype) const {
  at::Tensor tensor = expect(constant_tensor(value(name)), name);
  if (tensor.layout() != at::kStrided || !(tensor.is_cpu() || tensor.is_cuda())) {
    throw NotPlanned(fmt::format("{} is not a dense tensor on the CPU or on a GPU", name));
  }
  if (dtype_of_scalar(tensor.scalar_type()) != (dtype == DType::kTf32 ? DType::kF32 : dtype)) {
    throw NotPlanned(fmt::format("{} is {}, its input {}", name,
                                 c10::toString(tensor.scalar_type()), to_string(dtype)));
  }
  return tensor;
}

bool Operands::is_plannable(script::Value value) const {
  const auto it = infos_.find(value);
  return it != infos_.end() && it->second.obstacle.empty();
}

const TensorInfo& Operands::tensor(script::Value value) const {
  const auto it = infos_.find(value);
  if (it == infos_.end()) throw NotPlanned("an operand is a constant or an attribute");
  if (!it->second.obstacle.empty()) throw NotPlanned(it->second.obstacle);
  return it->second;
}

}  // namespace torchalgo
