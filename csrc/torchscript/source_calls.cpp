// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/source_calls.h"

#include <fmt/format.h>
#include <torch/csrc/jit/ir/ir.h>

#include <sstream>
#include <utility>

namespace torchalgo {

using torch::jit::SourceRange;

namespace {

void add_call(const SourceRange& range, const std::string& function,
              std::vector<std::string>& calls) {
  const auto place = range.file_line_col();
  if (!place) return;
  const auto& [file, line, column] = *place;
  calls.push_back(fmt::format("{}({}): {}", file, line, function));
}

// Tracing keeps Python's stack in place of source code. Returns no calls for source code.
std::vector<std::string> traced_calls(const SourceRange& range) {
  const std::string text = range.text().str();
  const auto& file = range.source()->filename();
  if (!file || !text.starts_with(*file + "(")) return {};
  std::vector<std::string> calls;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) calls.push_back(std::move(line));
  return calls;
}

}  // namespace

std::vector<std::string> source_calls(const torch::jit::Node& node) {
  const SourceRange range = node.sourceRange();
  if (range.source() == nullptr) return {};
  std::vector<std::string> calls = traced_calls(range);
  if (!calls.empty()) return calls;
  // The outermost call is the first. Its function may be gone, but the call keeps the name.
  std::vector<torch::jit::InlinedCallStackPtr> stack;
  for (auto call = node.callstack(); call; call = (*call)->callee()) stack.push_back(*call);
  // The range of a call is the place in its caller.
  SourceRange place = range;
  for (auto call = stack.rbegin(); call != stack.rend(); ++call) {
    add_call(place, (*call)->function_name(), calls);
    place = (*call)->source_range();
  }
  add_call(place, "forward", calls);
  return calls;
}

}  // namespace torchalgo
