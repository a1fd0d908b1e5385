// SPDX-License-Identifier: BSD-3-Clause
#include "ir/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace torchalgo {
namespace {

constexpr std::string_view kHeader = "torchalgo graph 1";
constexpr std::string_view kShapeOnly = "shape";  // in place of a problem

template <typename Number>
std::string list_text(const std::vector<Number>& numbers) {
  return numbers.empty() ? "-" : fmt::format("{}", fmt::join(numbers, ","));
}

const std::string& checked(const std::string& text) {
  TORCHALGO_CHECK(text.find_first_of("\t\n") == text.npos,
                  "TA2601 to_text: the name '{}' has a tab or a line end, which the format cannot "
                  "store: rename it",
                  text);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

// One line of the text, with its number for error messages.
class Line {
 public:
  Line(std::string_view text, int number) : fields_(split(text, '\t')), number_(number) {}

  [[nodiscard]] std::string_view keyword() const { return fields_[0]; }

  void expect_fields(std::size_t count) const {
    TORCHALGO_CHECK(fields_.size() == count + 1,
                    "TA2601 parse_graph: line {}: '{}' needs {} fields, got {}", number_, keyword(),
                    count, fields_.size() - 1);
  }

  [[nodiscard]] std::string text(std::size_t field) const { return std::string(fields_[field]); }
  [[nodiscard]] bool is_none(std::size_t field) const { return fields_[field] == "-"; }

  template <typename Number>
  [[nodiscard]] Number number(std::string_view text) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    TORCHALGO_CHECK(error == std::errc() && end == text.data() + text.size(),
                    "TA2601 parse_graph: line {}: got '{}', expected a number", number_, text);
    return value;
  }

  template <typename Number>
  [[nodiscard]] std::vector<Number> numbers(std::size_t field) const {
    std::vector<Number> values;
    if (is_none(field)) return values;
    for (const std::string_view part : split(fields_[field], ',')) {
      values.push_back(number<Number>(part));
    }
    return values;
  }

  [[nodiscard]] int value_index(std::string_view text, const Graph& graph) const {
    const int index = number<int>(text);
    TORCHALGO_CHECK(index >= 0 && index < static_cast<int>(graph.values.size()),
                    "TA2601 parse_graph: line {}: there is no value {}; expected the index of an "
                    "earlier value line",
                    number_, index);
    return index;
  }

  [[nodiscard]] std::vector<int> value_indices(std::size_t field, const Graph& graph) const {
    std::vector<int> indices;
    if (is_none(field)) return indices;
    for (const std::string_view part : split(fields_[field], ',')) {
      indices.push_back(value_index(part, graph));
    }
    return indices;
  }

  [[nodiscard]] std::string_view field(std::size_t index) const { return fields_[index]; }
  [[nodiscard]] int line() const { return number_; }

 private:
  std::vector<std::string_view> fields_;
  int number_;
};

std::optional<DType> read_dtype(const Line& line, std::size_t field) {
  if (line.is_none(field)) return std::nullopt;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kTf32, DType::kF16, DType::kBf16}) {
    if (to_string(dtype) == line.field(field)) return dtype;
  }
  throw Error(
      fmt::format("TA2601 parse_graph: line {}: '{}' is no compute type; expected f64, f32, tf32, "
                  "f16, bf16 or -",
                  line.line(), line.field(field)));
}

void read_value(const Line& line, Graph& graph) {
  line.expect_fields(3);
  graph.values.push_back(
      {line.text(1), line.numbers<std::int64_t>(2), read_dtype(line, 3), /*producer=*/-1});
}

Layout read_layout(const Line& line, std::string_view text) {
  const std::optional<Layout> layout = parse_layout(text);
  TORCHALGO_CHECK(layout, "TA2601 parse_graph: line {}: {}", line.line(), refuse_layout(text));
  return *layout;
}

// Reads the layouts of an opaque node, such as "nhwc->nchw". Returns false if the field has no
// arrow.
bool read_layouts(const Line& line, std::size_t field, Node& node) {
  const std::string_view text = line.field(field);
  const std::size_t arrow = text.find("->");
  if (arrow == text.npos) return false;
  node.reads = read_layout(line, text.substr(0, arrow));
  node.makes = read_layout(line, text.substr(arrow + 2));
  return true;
}

void read_node(const Line& line, Graph& graph) {
  line.expect_fields(6);
  Node node = {
      line.text(1), line.text(2), line.value_indices(3, graph), line.value_indices(4, graph),
      std::nullopt, line.text(6)};
  node.reads_shape_only = line.field(5) == kShapeOnly;
  const bool has_layouts = read_layouts(line, 5, node);
  if (!line.is_none(5) && !node.reads_shape_only && !has_layouts)
    node.problem = parse_problem(line.field(5));
  for (const int output : node.outputs) {
    graph.values[output].producer = static_cast<int>(graph.nodes.size());
  }
  graph.nodes.push_back(std::move(node));
}

void read_line(const Line& line, Graph& graph) {
  if (line.keyword() == "value") return read_value(line, graph);
  if (line.keyword() == "node") return read_node(line, graph);
  if (line.keyword() == "input") {
    line.expect_fields(2);
    graph.inputs.push_back(line.value_index(line.field(1), graph));
    graph.input_layouts.push_back(read_layout(line, line.field(2)));
    return;
  }
  TORCHALGO_CHECK(
      line.keyword() == "output",
      "TA2601 parse_graph: line {}: '{}' is no keyword; expected value, node, input or output",
      line.line(), line.keyword());
  line.expect_fields(1);
  graph.outputs.push_back(line.value_index(line.field(1), graph));
}

std::string problem_text(const Node& node) {
  if (node.problem) return to_string(*node.problem);
  if (has_own_layouts(node)) return layouts_text(node);
  return std::string(node.reads_shape_only ? kShapeOnly : "-");
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text = fmt::format("{}\n", kHeader);
  for (const Value& value : graph.values) {
    text += fmt::format("value\t{}\t{}\t{}\n", checked(value.name), list_text(value.sizes),
                        value.dtype ? to_string(*value.dtype) : "-");
  }
  for (const Node& node : graph.nodes) {
    text += fmt::format("node\t{}\t{}\t{}\t{}\t{}\t{}\n", checked(node.name), checked(node.kind),
                        list_text(node.inputs), list_text(node.outputs), problem_text(node),
                        checked(node.note));
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    text += fmt::format("input\t{}\t{}\n", graph.inputs[i], to_string(graph.input_layouts[i]));
  }
  for (const int output : graph.outputs) text += fmt::format("output\t{}\n", output);
  return text;
}

Graph parse_graph(std::string_view text) {
  Graph graph;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    if (++number == 1) {
      TORCHALGO_CHECK(line == kHeader, "TA2601 parse_graph: the first line is '{}', expected '{}'",
                      line, kHeader);
    } else if (!line.empty()) {
      read_line(Line(line, number), graph);
    }
  }
  TORCHALGO_CHECK(number > 1 || !text.empty(),
                  "TA2601 parse_graph: the text is empty; expected the text of a graph");
  try {
    check_graph(graph);
  } catch (const InternalError& error) {
    throw Error(
        fmt::format("TA2601 parse_graph: the lines are not a valid graph: {}", error.what()));
  }
  return graph;
}

}  // namespace torchalgo
