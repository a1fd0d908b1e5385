// SPDX-License-Identifier: BSD-3-Clause
// Runs saved models on saved inputs: test_models_as_given.py compares the results with Python's.
//   run_files jobs.txt
// Each line of jobs.txt names a model, a file of inputs and a file to write. The inputs are a pair
// (args, kwargs) as torch.save writes it. The result is a list of all tensors and numbers of the
// model's output; where the model throws, it is the message, in a file whose name ends in ".error".
#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace {

using c10::IValue;

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Gives lists and dicts of tensors their type: a file of inputs does not have it.
IValue typed(const IValue& value) {
  if (value.isTuple()) {
    std::vector<IValue> elements;
    for (const IValue& element : value.toTupleRef().elements()) elements.push_back(typed(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    c10::List<at::Tensor> tensors;
    for (const IValue& element : value.toListRef()) tensors.push_back(element.toTensor());
    return tensors;
  }
  if (value.isGenericDict()) {
    c10::Dict<std::string, at::Tensor> tensors;
    for (const auto& entry : value.toGenericDict())
      tensors.insert(entry.key().toStringRef(), entry.value().toTensor());
    return tensors;
  }
  return value;
}

/// Appends the tensors and numbers of `value`, in order.
void append_leaves(const IValue& value, c10::List<at::Tensor>& leaves) {
  if (value.isTensor()) {
    leaves.push_back(value.toTensor());
  } else if (value.isScalar() || value.isBool()) {
    leaves.push_back(at::scalar_tensor(value.toScalar(), at::kDouble));
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) append_leaves(element, leaves);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) append_leaves(element, leaves);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) append_leaves(entry.value(), leaves);
  }
}

std::vector<char> run(torch::jit::Module& model, const std::string& inputs_path) {
  const IValue inputs = torch::jit::pickle_load(read_file(inputs_path));
  const auto& pair = inputs.toTupleRef().elements();
  std::vector<IValue> args;
  for (const IValue& value : pair[0].toTupleRef().elements()) args.push_back(typed(value));
  torch::jit::Kwargs kwargs;
  for (const auto& entry : pair[1].toGenericDict())
    kwargs[entry.key().toStringRef()] = typed(entry.value());
  c10::List<at::Tensor> leaves;
  append_leaves(model.forward(args, kwargs), leaves);
  return torch::jit::pickle_save(leaves);
}

void write_file(const std::string& path, const char* data, std::size_t size) {
  std::ofstream(path, std::ios::binary).write(data, static_cast<std::streamsize>(size));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: run_files jobs.txt\n");
    return 2;
  }
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  std::ifstream jobs(argv[1]);
  std::string model_path, inputs_path, result_path, loaded_path;
  std::optional<torch::jit::Module> model;
  while (jobs >> model_path >> inputs_path >> result_path) {
    try {
      if (model_path != loaded_path || !model) {
        model.reset();
        model = torch::jit::load(model_path);
        loaded_path = model_path;
      }
      const std::vector<char> result = run(*model, inputs_path);
      write_file(result_path, result.data(), result.size());
    } catch (const std::exception& error) {
      const std::string text = error.what();
      write_file(result_path + ".error", text.data(), text.size());
    }
  }
  return 0;
}
