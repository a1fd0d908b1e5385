// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pbqp/sha256.h"

namespace torchalgo::pbqp {
namespace {

constexpr std::string_view kHeader = "pbqp 1";
constexpr std::string_view kBlanks = " \t\r";

constexpr std::size_t kLongestWord = 21;  // a blank and a 64-bit number

constexpr std::size_t kPiece = 1 << 16;

/// Writes a text and passes it to `sink` in pieces. Texts may have tens of millions of numbers, so
/// numbers are written in place. A caller that needs only the hash never holds the whole text.
template <typename Sink>
class Writer {
 public:
  explicit Writer(Sink sink) : sink_(std::move(sink)) { piece_.resize(kPiece); }

  void add(std::string_view words) {
    make_room(words.size());
    std::copy(words.begin(), words.end(), piece_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += words.size();
  }

  void add_costs(const std::vector<Cost>& costs) {
    for (const Cost cost : costs) {
      make_room(kLongestWord);
      char* at = piece_.data() + size_;
      *at++ = ' ';
      if (cost == kForbidden)
        *at++ = '-';
      else
        at = std::to_chars(at, at + kLongestWord, cost).ptr;
      size_ = static_cast<std::size_t>(at - piece_.data());
    }
    add("\n");
  }

  void finish() {
    sink_(std::string_view(piece_.data(), size_));
    size_ = 0;
  }

 private:
  void make_room(std::size_t size) {
    if (size_ + size > kPiece) finish();
  }

  Sink sink_;
  std::string piece_;
  std::size_t size_ = 0;
};

template <typename Sink>
void write_text(const Problem& problem, Sink sink) {
  Writer<Sink> writer(std::move(sink));
  writer.add(kHeader);
  writer.add("\n");
  for (const auto& costs : problem.node_costs) {
    writer.add("node");
    writer.add_costs(costs);
  }
  for (const Edge& edge : problem.edges) {
    writer.add("edge " + std::to_string(edge.u) + " " + std::to_string(edge.v));
    writer.add_costs(edge.matrix);
  }
  writer.finish();
}

std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

class Parser {
 public:
  Problem run(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::size_t end = std::min(text.find('\n'), text.size());
      const auto words = split_words(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!words.empty() && words[0][0] != '#') parse_line(words);
    }
    if (!has_header_) fail("expected \"" + std::string(kHeader) + "\", got nothing");
    check_problem(problem_);
    return std::move(problem_);
  }

 private:
  using Words = std::vector<std::string_view>;

  [[noreturn]] void fail(const std::string& text) const {
    throw std::invalid_argument("pbqp text line " + std::to_string(line_) + ": " + text);
  }

  void parse_line(const Words& words) {
    if (!has_header_) {
      if (words != split_words(kHeader))
        fail("expected \"" + std::string(kHeader) + "\", got \"" + std::string(words[0]) + "\"");
      has_header_ = true;
    } else if (words[0] == "node") {
      problem_.node_costs.push_back(parse_costs(words, 1));
    } else if (words[0] == "edge") {
      parse_edge(words);
    } else {
      fail("expected \"node\" or \"edge\", got \"" + std::string(words[0]) + "\"");
    }
  }

  void parse_edge(const Words& words) {
    if (words.size() < 3) fail("an edge needs two nodes");
    Edge edge;
    edge.u = parse_node(words[1]);
    edge.v = parse_node(words[2]);
    if (edge.u == edge.v) fail("the edge joins node " + std::string(words[1]) + " to itself");
    edge.matrix = parse_costs(words, 3);
    const std::size_t rows = problem_.node_costs[edge.u].size();
    const std::size_t cols = problem_.node_costs[edge.v].size();
    if (edge.matrix.size() != rows * cols)
      fail("expected " + std::to_string(rows) + " x " + std::to_string(cols) + " costs, got " +
           std::to_string(edge.matrix.size()));
    problem_.edges.push_back(std::move(edge));
  }

  std::int64_t parse_number(std::string_view word) const {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size() || number < 0)
      fail("expected an integer of at most 63 bits, got \"" + std::string(word) + "\"");
    return number;
  }

  int parse_node(std::string_view word) const {
    const std::int64_t node = parse_number(word);
    if (node >= static_cast<std::int64_t>(problem_.node_costs.size()))
      fail("node " + std::string(word) + " is not there; " +
           std::to_string(problem_.node_costs.size()) + " nodes stand above this line");
    return static_cast<int>(node);
  }

  std::vector<Cost> parse_costs(const Words& words, std::size_t first) const {
    std::vector<Cost> costs;
    for (std::size_t i = first; i < words.size(); ++i) {
      const Cost cost = words[i] == "-" ? kForbidden : parse_number(words[i]);
      if (cost == kForbidden && words[i] != "-") fail("the cost is too large; forbidden is \"-\"");
      costs.push_back(cost);
    }
    return costs;
  }

  Problem problem_;
  bool has_header_ = false;
  int line_ = 0;
};

}  // namespace

std::string to_text(const Problem& problem) {
  std::string text;
  write_text(problem, [&text](std::string_view piece) { text += piece; });
  return text;
}

std::string hash_of(const Problem& problem) {
  Sha256 hash;
  write_text(problem, [&hash](std::string_view piece) { hash.add(piece); });
  return hash.digits();
}

Problem parse_problem(std::string_view text) { return Parser().run(text); }

}  // namespace torchalgo::pbqp
