// SPDX-License-Identifier: BSD-3-Clause
#include "import/computed_size.h"

#include "torchscript/constants.h"

namespace torchalgo {

torch::jit::Value* computed_size(script::Node node) {
  for (const char* name : {"output_size", "size"}) {
    if (!node.has_argument(name)) continue;
    const script::Value size = node.argument(name);
    const c10::Type& type = *size.type();
    const bool is_number = type == *c10::IntType::get();
    const bool is_list = type == *c10::ListType::ofInts();
    return (is_number || is_list) && !constant_ints(size) ? size.get() : nullptr;
  }
  return nullptr;
}

}  // namespace torchalgo
