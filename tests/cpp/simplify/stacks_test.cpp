// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <map>
#include <memory>
#include <string>

#include "simplify/shape_proofs.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {
namespace {

using torch::jit::Graph;
using torch::jit::Value;

struct Parsed {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::unordered_map<std::string, Value*> values;
  SeenTensors seen;
};

// Parses the body of a graph of one tensor %x, of sizes [2, 6, 4, 5] in the run. %0 to %4 are
// numbers.
Parsed parse(const std::string& body) {
  Parsed parsed;
  std::string text = "graph(%self : int, %x : Tensor):\n";
  for (const char* number : {"-1", "0", "1", "2", "3", "4"}) {
    const std::string name = number[0] == '-' ? "m1" : std::string("n") + number;
    text += "  %" + name + " : int = prim::Constant[value=" + number + "]()\n";
  }
  text += "  %yes : bool = prim::Constant[value=1]()\n  %no : bool = prim::Constant[value=0]()\n";
  text += "  %none : NoneType = prim::Constant()\n";
  torch::jit::parseIR(text + body, parsed.graph.get(), parsed.values);
  parsed.seen = see_tensors(parsed.graph, {1, at::rand({2, 6, 4, 5})});
  return parsed;
}

std::map<std::string, int> kinds(const Graph& graph) {
  std::map<std::string, int> found;
  for (const auto* node : graph.nodes()) ++found[node->kind().toUnqualString()];
  return found;
}

TEST(ShapeProofs, SplitChannelsNeedTheImagesOwnSizes) {
  const Parsed parsed = parse(R"(
  %b : int = aten::size(%x, %n0)
  %h : int = aten::size(%x, %n2)
  %w : int = aten::size(%x, %n3)
  %five : int = prim::Constant[value=5]()
  %own : int[] = prim::ListConstruct(%b, %n2, %m1, %h, %w)
  %numbers : int[] = prim::ListConstruct(%b, %n2, %n3, %n4, %five)
  %fixed : int[] = prim::ListConstruct(%n2, %n2, %m1, %h, %w)
  %swapped : int[] = prim::ListConstruct(%b, %n2, %n3, %w, %h)
  %1 : Tensor = aten::reshape(%x, %own)
  %2 : Tensor = aten::reshape(%x, %numbers)
  %3 : Tensor = aten::reshape(%x, %fixed)
  %4 : Tensor = aten::reshape(%x, %swapped)
  %out : (Tensor, Tensor, Tensor, Tensor) = prim::TupleConstruct(%1, %2, %3, %4)
  return (%out))");
  const ShapeProofs proofs(parsed.seen);
  EXPECT_TRUE(proofs.splits_channels(parsed.values.at("1")->node()));
  for (const char* name : {"2", "3", "4"}) {
    EXPECT_FALSE(proofs.splits_channels(parsed.values.at(name)->node())) << name;
  }
}

TEST(ShapeProofs, TheBatchIsThatOfTheImage) {
  const Parsed parsed = parse(R"(
  %dims : int[] = prim::Constant[value=[2, 3]]()
  %all : int[] = prim::Constant[value=[0]]()
  %1 : Tensor = aten::mean(%x, %dims, %yes, %none)
  %2 : Tensor = aten::sigmoid(%1)
  %3 : Tensor = aten::mul(%x, %2)
  %4 : Tensor = aten::mean(%x, %all, %yes, %none)
  %5 : Tensor = aten::mul(%x, %4)
  %out : (Tensor, Tensor) = prim::TupleConstruct(%3, %5)
  return (%out))");
  const ShapeProofs proofs(parsed.seen);
  const auto value = [&](const char* name) { return parsed.values.at(name); };
  EXPECT_TRUE(proofs.have_same_batch(value("x"), value("3")));
  EXPECT_FALSE(proofs.have_same_batch(value("x"), value("4")));
  EXPECT_FALSE(proofs.have_same_batch(value("x"), value("5")));
  EXPECT_TRUE(proofs.is_pooled(value("2")));
  EXPECT_FALSE(proofs.is_pooled(value("3")));
}

TEST(Stacks, ASumOverAStackReadsTheImages) {
  Parsed parsed = parse(R"(
  %along : int[] = prim::Constant[value=[-4]]()
  %a : Tensor = aten::relu(%x)
  %list : Tensor[] = prim::ListConstruct(%x, %a)
  %1 : Tensor = aten::stack(%list, %n1)
  %2 : Tensor = aten::sum(%1, %along, %no, %none)
  %3 : Tensor = aten::select(%1, %n1, %m1)
  %4 : Tensor = aten::sigmoid(%3)
  %out : (Tensor, Tensor) = prim::TupleConstruct(%2, %4)
  return (%out))");
  ASSERT_TRUE(take_stacks_apart(parsed.graph, parsed.seen));
  auto found = kinds(*parsed.graph);
  EXPECT_EQ(found["add"], 1);
  EXPECT_EQ(found["stack"] + found["sum"] + found["select"], 0);
}

TEST(Stacks, ASumAlongAnotherDimensionStays) {
  Parsed parsed = parse(R"(
  %along : int[] = prim::Constant[value=[2]]()
  %list : Tensor[] = prim::ListConstruct(%x, %x)
  %1 : Tensor = aten::stack(%list, %n1)
  %2 : Tensor = aten::sum(%1, %along, %no, %none)
  return (%2))");
  EXPECT_FALSE(take_stacks_apart(parsed.graph, parsed.seen));
}

TEST(Stacks, AnItemThatTheCallerGetsStaysATensorOfItsOwn) {
  Parsed parsed = parse(R"(
  %list : Tensor[] = prim::ListConstruct(%x, %x)
  %1 : Tensor = aten::stack(%list, %n1)
  %2 : Tensor = aten::select(%1, %n1, %n0)
  return (%2))");
  EXPECT_FALSE(take_stacks_apart(parsed.graph, parsed.seen));
}

TEST(Identities, ContiguousStaysInFrontOfAView) {
  const std::string head = R"(
  %along : int[] = prim::Constant[value=[6, -1]]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %a : Tensor = aten::relu(%x)
  %c : Tensor = aten::contiguous(%a, %n0)
  %s : Tensor = aten::sigmoid(%c)
)";
  const Parsed viewed = parse(head + "  %1 : Tensor = aten::view(%s, %along)\n  return (%1)");
  auto graph = viewed.graph;
  EXPECT_FALSE(remove_identities(graph, viewed.seen));
  const Parsed read = parse(head + R"(
  %1 : Tensor = aten::conv2d(%s, %x, %none, %ones, %zeros, %ones, %n1)
  return (%1))");
  graph = read.graph;
  EXPECT_TRUE(remove_identities(graph, read.seen));
  EXPECT_EQ(kinds(*graph)["contiguous"], 0);
}

}  // namespace
}  // namespace torchalgo
