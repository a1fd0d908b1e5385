// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned_op_checks.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "ops/script_classes.h"

namespace torchalgo {
namespace {

using torch::jit::Stack;

at::ArrayRef<c10::IValue> arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  return torch::jit::last(stack, op.schema().arguments().size());
}

template <typename Check>
void for_each_tensor(at::ArrayRef<c10::IValue> arguments, Check check) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) check(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const c10::IValue& tensor : argument.toListRef()) check(tensor.toTensor());
  }
}

// Returns a text that names what the op runs.
std::string name_of(at::ArrayRef<c10::IValue> arguments) {
  const PlannedOp* op = nullptr;
  for (const c10::IValue& argument : arguments) {
    if (op == nullptr) op = find_planned_op(argument);
  }
  return op == nullptr ? "the plan" : fmt::format("layer '{}'", op->state().layer);
}

}  // namespace

// Dual inputs are refused under no_grad, too: it does not end forward-mode differentiation.
void run_without_derivative(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::ArrayRef<c10::IValue> arguments = arguments_of(op, *stack);
  const bool grad_mode = at::GradMode::is_enabled();
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    TORCHALGO_CHECK(!tensor.defined() || !tensor._fw_grad(/*level=*/0).defined(),
                    "TA4306 torchalgo: {} is planned for inference and has no derivative, "
                    "but an input is dual (forward-mode AD): use the original model",
                    name_of(arguments));
    TORCHALGO_CHECK(!grad_mode || !tensor.defined() || !tensor.requires_grad(),
                    "TA4306 torchalgo: {} is planned for inference and has no gradient, "
                    "but an input requires one: use torch.no_grad() or the original model",
                    name_of(arguments));
  });
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

void refuse_backend(const c10::OperatorHandle& op, Stack* stack) {
  const at::ArrayRef<c10::IValue> arguments = arguments_of(op, *stack);
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    TORCHALGO_CHECK((tensor.is_cpu() || tensor.is_cuda()) && tensor.layout() == at::kStrided,
                    "TA4305 torchalgo: {} runs dense tensors on the CPU or on a GPU, got a "
                    "{} tensor on {}: move the input there, or run the original model",
                    name_of(arguments), c10::str(tensor.layout()), tensor.device().str());
  });
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace torchalgo
