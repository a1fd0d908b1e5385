// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/pattern.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/irparser.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "simplify/rewrite_each.h"

namespace torchalgo {
namespace {

struct Parsed {
  std::shared_ptr<torch::jit::Graph> graph = std::make_shared<torch::jit::Graph>();
  std::unordered_map<std::string, torch::jit::Value*> values;
};

Parsed parse(const std::string& body) {
  Parsed parsed;
  torch::jit::parseIR(
      "graph(%x : Tensor, %y : Tensor):\n"
      "  %one : int = prim::Constant[value=1]()\n"
      "  %half : float = prim::Constant[value=0.5]()\n" +
          body,
      parsed.graph.get(), parsed.values);
  return parsed;
}

TEST(Pattern, OperandsMayStandInAnyOrder) {
  const Pattern gate = product(tensor("x"), op("aten::sigmoid", {tensor("x")}));
  for (const char* operands : {"%x, %s", "%s, %x"}) {
    const Parsed parsed = parse("  %s : Tensor = aten::sigmoid(%x)\n  %m : Tensor = aten::mul(" +
                                std::string(operands) + ")\n  return (%m)");
    const auto found = match(gate, parsed.values.at("m"));
    ASSERT_TRUE(found) << operands;
    EXPECT_EQ(found->named.at("x"), parsed.values.at("x"));
  }
}

TEST(Pattern, ANameIsOneTensor) {
  const Parsed parsed =
      parse("  %s : Tensor = aten::sigmoid(%y)\n  %m : Tensor = aten::mul(%x, %s)\n  return (%m)");
  const auto gate = [](const char* of) {
    return product(tensor("x"), op("aten::sigmoid", {tensor(of)}));
  };
  EXPECT_FALSE(match(gate("x"), parsed.values.at("m")));
  EXPECT_TRUE(match(gate("y"), parsed.values.at("m")));
}

TEST(Pattern, WhatLiesBetweenHasOneReader) {
  const Parsed parsed = parse(
      "  %s : Tensor = aten::sigmoid(%x)\n  %t : Tensor = aten::relu(%s)\n"
      "  %u : Tensor = aten::tanh(%t)\n  %v : Tensor = aten::mul(%s, %u)\n  return (%v, %u)");
  const Pattern sigmoid = op("aten::sigmoid", {tensor("x")});
  EXPECT_TRUE(match(sigmoid, parsed.values.at("s"))) << "the whole may have more";
  EXPECT_FALSE(match(op("aten::relu", {sigmoid}), parsed.values.at("t")));
  EXPECT_TRUE(match(op("aten::relu", {tensor("s")}), parsed.values.at("t")));
  EXPECT_TRUE(match(op("aten::tanh", {op("aten::relu", {tensor("s")})}), parsed.values.at("u")));
}

TEST(Pattern, NumbersAndCountsOfInputsCount) {
  const Parsed parsed = parse(
      "  %a : Tensor = aten::add(%x, %half, %one)\n  %b : Tensor = aten::add(%x, %y, %half)\n"
      "  return (%a, %b)");
  const auto fits = [&](const Pattern& pattern, const char* name) {
    return match(pattern, parsed.values.at(name)).has_value();
  };
  EXPECT_TRUE(fits(sum(tensor("x"), number(0.5)), "a"));
  EXPECT_FALSE(fits(sum(tensor("x"), number(0.5001)), "a"));
  EXPECT_TRUE(fits(sum(tensor("x"), number(0.5001, 1e-3)), "a"));
  EXPECT_TRUE(fits(sum(tensor("x"), any_number("n")), "a"));
  EXPECT_FALSE(fits(sum(tensor("x"), tensor("n")), "a"));
  EXPECT_FALSE(fits(sum(tensor("x"), tensor("y")), "b")) << "y has the factor 0.5";
  EXPECT_FALSE(fits(op("aten::add", {tensor("x"), tensor("y")}), "b")) << "it has three inputs";
}

// Replaces sigmoid(relu(x)) by tanh(x), also if there are other readers.
bool make_tanh(const Parsed& parsed) {
  const auto find = [](script::Node node) -> std::optional<GraphPart> {
    if (!node.is("aten::sigmoid") || !node.input(0).node().is("aten::relu")) return std::nullopt;
    return GraphPart{node, {node.input(0).node().input(0)}};
  };
  return rewrite_each(parsed.graph, find, [](const GraphPart& part, const script::Builder& at) {
    return at.call("aten::tanh", {part.reads[0]});
  });
}

TEST(RewriteEach, ReplacesAPartAndRemovesItsNodes) {
  const Parsed parsed = parse(
      "  %r : Tensor = aten::relu(%x)\n  %s : Tensor = aten::sigmoid(%r)\n"
      "  %t : Tensor = aten::exp(%s)\n  return (%t)");
  EXPECT_TRUE(make_tanh(parsed));
  std::string ops;
  for (const auto* node : parsed.graph->nodes())
    ops += node->kind().toUnqualString() + std::string(" ");
  EXPECT_EQ(ops, "tanh exp ");
}

// A write may hit what the part reads, what it makes, or what lies between.
TEST(RewriteEach, LeavesAPartAloneOfWhichATensorIsWritten) {
  for (const char* written : {"%x", "%v", "%r", "%s", "%w"}) {
    const Parsed parsed = parse(
        "  %v : Tensor = aten::view_as(%x, %y)\n  %r : Tensor = aten::relu(%x)\n"
        "  %s : Tensor = aten::sigmoid(%r)\n  %w : Tensor = aten::view_as(%s, %y)\n"
        "  %z : Tensor = aten::cos_(" +
        std::string(written) + ")\n  return (%s)");
    EXPECT_FALSE(make_tanh(parsed)) << written;
  }
  const Parsed parsed = parse(
      "  %r : Tensor = aten::relu(%x)\n  %s : Tensor = aten::sigmoid(%r)\n"
      "  %z : Tensor = aten::cos_(%y)\n  return (%s)");
  EXPECT_FALSE(make_tanh(parsed)) << "both inputs may be one tensor";
}

}  // namespace
}  // namespace torchalgo
