// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/own_unit.h"

#include <memory>
#include <unordered_map>

namespace torchalgo {
namespace {

using torch::jit::CompilationUnit;
using Object = c10::ivalue::Object;

// Copies a module and the modules inside it, each once, as objects of one compilation unit. Tensors
// are aliases that share memory: torch.utils.swap_tensors refuses a tensor that C++ holds.
class Copier {
 public:
  c10::intrusive_ptr<Object> copy(const c10::intrusive_ptr<Object>& module) {
    auto& known = copies_[module.get()];
    if (known) return known;
    known = Object::create(c10::StrongTypePtr(unit_, module->type()), module->slots().size());
    const c10::intrusive_ptr<Object> result = known;  // the map may move `known`
    for (std::size_t i = 0; i < module->slots().size(); ++i) {
      const c10::IValue& slot = module->getSlot(i);
      result->setSlot(i, slot.isModule()   ? c10::IValue(copy(slot.toObject()))
                         : slot.isTensor() ? c10::IValue(alias(slot.toTensor()))
                                           : slot);
    }
    return result;
  }

 private:
  // Modules that share a tensor share its alias.
  at::Tensor alias(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor& known = aliases_[tensor.unsafeGetTensorImpl()];
    if (!known.defined()) known = tensor.detach();
    return known;
  }

  std::shared_ptr<CompilationUnit> unit_ = std::make_shared<CompilationUnit>();
  std::unordered_map<const Object*, c10::intrusive_ptr<Object>> copies_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> aliases_;
};

}  // namespace

torch::jit::Module with_own_unit(const torch::jit::Module& module) {
  return torch::jit::Module(Copier().copy(module._ivalue()));
}

}  // namespace torchalgo
