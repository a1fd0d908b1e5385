// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <optional>
#include <vector>

#include "simplify/fixed_channels.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

// Returns the description of the norm's result if that is a floating-point image, or null.
const SeenTensor* find_image(Node norm, const SeenTensors& seen) {
  const auto it = seen.find(norm.output());
  if (it == seen.end() || !it->second.is_always_so || !it->second.is_strided) return nullptr;
  const SeenTensor& tensor = it->second;
  const bool is_image = tensor.sizes.size() == 3 || tensor.sizes.size() == 4;
  return is_image && dtype_of_scalar(tensor.scalar_type) ? &tensor : nullptr;
}

// Puts another op in the place of `norm`. Returns true.
bool replace(Node norm, const char* kind, const std::vector<Value>& inputs, SeenTensors& seen) {
  const Value made = script::Builder(norm).op(kind, {inputs.begin(), inputs.end()});
  made.set_type(norm.output().type());
  seen[made] = seen.at(norm.output());
  seen.erase(norm.output());
  norm.output().replace_uses(made);
  norm.destroy();
  return true;
}

// Returns true if the graph fixes the channels of the norm's tensors for all inputs.
bool fixes_channels(Node norm, const SeenTensor& image) {
  return constant_tensor(norm.argument("weight")) || constant_tensor(norm.argument("bias")) ||
         are_channels_fixed(norm.input(0), norm.output(), image.sizes);
}

bool complete(Node norm, const SeenTensor& image, SeenTensors& seen) {
  const bool is_group_norm = norm.is("aten::group_norm");
  Value weight = norm.argument("weight"), bias = norm.argument("bias");
  const bool is_complete = is_group_norm && !is_none(weight) && !is_none(bias);
  if (is_complete || !fixes_channels(norm, image)) return false;
  const script::Builder at(norm);
  const auto options = at::TensorOptions().dtype(image.scalar_type).device(image.device);
  const std::int64_t channels = image.sizes[1];
  if (is_none(weight)) weight = at.constant(at::ones(channels, options));
  if (is_none(bias)) bias = at.constant(at::zeros(channels, options));
  const Value groups = is_group_norm ? norm.argument("num_groups") : at.constant(channels);
  return replace(
      norm, "aten::group_norm",
      {norm.input(0), groups, weight, bias, norm.argument("eps"), norm.argument("cudnn_enabled")},
      seen);
}

bool complete_instance_norm(Node norm, const SeenTensor& image, SeenTensors& seen) {
  const std::optional<bool> uses_input = constant_bool(norm.argument("use_input_stats"));
  if (uses_input == false) {  // the arguments have the same order
    return replace(norm, "aten::batch_norm", norm.inputs(), seen);
  }
  const bool keeps_none =
      is_none(norm.argument("running_mean")) && is_none(norm.argument("running_var"));
  return uses_input == true && keeps_none && complete(norm, image, seen);
}

}  // namespace

bool complete_norms(const Graph& graph, SeenTensors& seen) {
  bool is_changed = false;
  const std::vector<Node> nodes = graph.nodes();
  for (const Node node : nodes) {
    const bool is_instance_norm = node.is("aten::instance_norm");
    if (!is_instance_norm && !node.is("aten::group_norm")) continue;
    const SeenTensor* const found = find_image(node, seen);
    if (found == nullptr) continue;
    const SeenTensor image = *found;  // `seen` may move its elements
    is_changed |=
        is_instance_norm ? complete_instance_norm(node, image, seen) : complete(node, image, seen);
  }
  return is_changed;
}

}  // namespace torchalgo
