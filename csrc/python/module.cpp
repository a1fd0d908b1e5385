// SPDX-License-Identifier: BSD-3-Clause
// Binds the steps for Python; no logic. The contract is python/torchalgo/_C.pyi.
#include <fmt/ranges.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "import/import.h"
#include "ir/arithmetic.h"
#include "ir/candidates.h"
#include "ir/cost_table.h"
#include "ir/graph.h"
#include "ir/graph_text.h"
#include "ir/plan.h"
#include "ir/view.h"
#include "ops/settings.h"
#include "planner/plan_fit.h"
#include "profiler/caches.h"
#include "profiler/check.h"
#include "profiler/measure.h"
#include "profiler/race.h"
#include "provider/cpu_device.h"
#include "provider/find_candidates.h"
#include "python/module.h"
#include "rewrite/rewrite.h"
#include "torchscript/own_unit.h"
#include "torchscript/source_calls.h"

namespace py = pybind11;

namespace torchalgo {

Layout require_layout(const std::string& text) {
  const auto layout = parse_layout(text);
  TORCHALGO_CHECK(layout, "TA4003 {}", refuse_layout(text));
  return *layout;
}

namespace {

std::string word_of(Layout layout) { return std::string(to_string(layout)); }

std::vector<std::string> words_of(const std::vector<Layout>& layouts) {
  std::vector<std::string> words;
  for (const Layout layout : layouts) words.push_back(word_of(layout));
  return words;
}

constexpr const char* kSourceWords[] = {"measured", "bound", "model", "construction"};

std::string source_word(CostSource source) { return kSourceWords[static_cast<int>(source)]; }

CostSource to_source(const std::string& word) {
  for (int i = 0; i < static_cast<int>(std::size(kSourceWords)); ++i) {
    if (word == kSourceWords[i]) return static_cast<CostSource>(i);
  }
  throw Error(fmt::format("TA2306 '{}' is no cost source: expected one of {}", word,
                          fmt::join(kSourceWords, ", ")));
}

std::string problem_word(const std::optional<Problem>& problem) {
  return problem ? to_string(*problem) : std::string();
}

void bind_graph(py::module_& m) {
  py::class_<Value>(m, "Value")
      .def_readonly("name", &Value::name)
      .def_readonly("sizes", &Value::sizes)
      .def_readonly("producer", &Value::producer)
      .def_property_readonly("dtype", [](const Value& value) -> std::optional<std::string> {
        if (!value.dtype) return std::nullopt;
        return std::string(to_string(*value.dtype));
      });
  py::class_<Node>(m, "Node")
      .def_readonly("name", &Node::name)
      .def_readonly("kind", &Node::kind)
      .def_readonly("inputs", &Node::inputs)
      .def_readonly("outputs", &Node::outputs)
      .def_readonly("note", &Node::note)
      .def_readonly("reads_shape_only", &Node::reads_shape_only)
      .def_property_readonly("problem", [](const Node& node) -> std::optional<std::string> {
        if (!node.problem) return std::nullopt;
        return problem_word(node.problem);
      });
  py::class_<Graph>(m, "Graph")
      .def_readonly("values", &Graph::values)
      .def_readonly("nodes", &Graph::nodes)
      .def_readonly("inputs", &Graph::inputs)
      .def_readonly("outputs", &Graph::outputs)
      .def_property_readonly("input_layouts",
                             [](const Graph& graph) { return words_of(graph.input_layouts); })
      .def_property_readonly("structure_hash",
                             [](const Graph& graph) { return structure_hash(graph); })
      .def("structure_hash_of",
           [](const Graph& graph, int version) { return structure_hash(graph, version); })
      .def("to_text", [](const Graph& graph) { return to_text(graph); });
  m.def("parse_graph", [](const std::string& text) { return parse_graph(text); });
  py::class_<ImportedGraph>(m, "Imported")
      .def_readonly("graph", &ImportedGraph::graph)
      .def_property_readonly("module",
                             [](const ImportedGraph& imported) { return imported.module; })
      .def_property_readonly("result_names",
                             [](const ImportedGraph& imported) {
                               std::vector<std::string> names;
                               for (const torch::jit::Node* node : imported.nodes)
                                 names.push_back(node->output(0)->debugName());
                               return names;
                             })
      .def(
          "source_calls",
          [](const ImportedGraph& imported, std::size_t node) {
            return source_calls(*imported.nodes.at(node));
          },
          py::arg("node"));
}

void bind_candidates(py::module_& m) {
  py::class_<Primitive>(m, "Primitive")
      .def(py::init([](std::string name, const std::string& src, const std::string& dst,
                       std::int64_t workspace_bytes) {
             return Primitive{std::move(name), require_layout(src), require_layout(dst),
                              workspace_bytes};
           }),
           py::arg("name"), py::arg("src"), py::arg("dst"), py::arg("workspace_bytes") = 0)
      .def_readonly("name", &Primitive::name)
      .def_readonly("workspace_bytes", &Primitive::workspace_bytes)
      .def_property_readonly("src", [](const Primitive& p) { return word_of(p.src); })
      .def_property_readonly("dst", [](const Primitive& p) { return word_of(p.dst); })
      .def("__repr__", [](const Primitive& p) { return to_string(p); });
  py::class_<Candidate>(m, "Candidate")
      .def(py::init([](std::vector<int> covers, const std::string& problem, Primitive primitive,
                       std::vector<int> inputs) {
             return Candidate{std::move(covers), parse_problem(problem), std::move(primitive),
                              std::move(inputs)};
           }),
           py::arg("covers"), py::arg("problem"), py::arg("primitive"), py::arg("inputs"))
      .def_readonly("covers", &Candidate::covers)
      .def_readonly("primitive", &Candidate::primitive)
      .def_readonly("inputs", &Candidate::inputs)
      .def_readonly("is_componentwise", &Candidate::is_componentwise)
      .def_property_readonly("problem", [](const Candidate& c) { return to_string(c.problem); });
  py::class_<Refusal>(m, "Refusal")
      .def_readonly("problem", &Refusal::problem)
      .def_readonly("primitive", &Refusal::primitive)
      .def_readonly("reason", &Refusal::reason);
  py::class_<Candidates>(m, "Candidates")
      .def(py::init([](std::vector<std::vector<Candidate>> by_anchor,
                       std::vector<std::vector<Refusal>> refusals) {
             refusals.resize(by_anchor.size());
             return Candidates{std::move(by_anchor), std::move(refusals)};
           }),
           py::arg("by_anchor"), py::arg("refusals") = std::vector<std::vector<Refusal>>())
      .def_readonly("by_anchor", &Candidates::by_anchor)
      .def_readonly("refusals", &Candidates::refusals);
  py::class_<Traits>(m, "Traits")
      .def_readonly("is_deterministic", &Traits::is_deterministic)
      .def_readonly("is_runtime_compiled", &Traits::is_runtime_compiled)
      .def_readonly("numerics", &Traits::numerics)
      .def_property_readonly("is_componentwise",
                             [](const Traits& t) { return transform_of(t).empty(); })
      .def_readonly("hidden_bytes", &Traits::hidden_bytes);
}

DeviceKind to_device_kind(const std::string& word) {
  TORCHALGO_CHECK(word == "cpu" || word == "cuda",
                  "TA4010 '{}' is no kind of device: expected cpu or cuda", word);
  return word == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
}

void bind_device(py::module_& m) {
  py::class_<Device>(m, "Device")
      .def(py::init([](const std::string& kind, std::string name, std::string isa, int threads,
                       std::int64_t l2_bytes, std::string bf16_isa, std::string properties,
                       std::string provenance, int index) {
             return Device{.kind = to_device_kind(kind),
                           .name = std::move(name),
                           .isa = std::move(isa),
                           .threads = threads,
                           .l2_bytes = l2_bytes,
                           .bf16_isa = std::move(bf16_isa),
                           .properties = std::move(properties),
                           .provenance = std::move(provenance),
                           .index = index};
           }),
           py::kw_only(), py::arg("kind"), py::arg("name"), py::arg("isa"), py::arg("threads") = 1,
           py::arg("l2_bytes") = Device().l2_bytes, py::arg("bf16_isa") = "",
           py::arg("properties") = "", py::arg("provenance") = "", py::arg("index") = -1)
      .def_readonly("name", &Device::name)
      .def_readonly("isa", &Device::isa)
      .def_readonly("threads", &Device::threads)
      .def_readonly("l2_bytes", &Device::l2_bytes)
      .def_readonly("bf16_isa", &Device::bf16_isa)
      .def_readonly("properties", &Device::properties)
      .def_readonly("provenance", &Device::provenance)
      .def_readonly("index", &Device::index)
      .def_property_readonly(
          "kind",
          [](const Device& device) { return device.kind == DeviceKind::kCpu ? "cpu" : "cuda"; })
      .def("__eq__", [](const Device& a, const Device& b) { return a == b; });
}

void bind_costs(py::module_& m) {
  py::class_<CostKey>(m, "CostKey")
      .def(py::init([](std::string problem, std::string primitive, const std::string& src,
                       const std::string& dst) {
             return CostKey{std::move(problem), std::move(primitive), require_layout(src),
                            require_layout(dst)};
           }),
           py::arg("problem"), py::arg("primitive"), py::arg("src"), py::arg("dst"))
      .def_readonly("problem", &CostKey::problem)
      .def_readonly("primitive", &CostKey::primitive)
      .def_property_readonly("src", [](const CostKey& key) { return word_of(key.src); })
      .def_property_readonly("dst", [](const CostKey& key) { return word_of(key.dst); })
      .def("__eq__", [](const CostKey& a, const CostKey& b) { return a == b; })
      .def("__hash__", [](const CostKey& key) {
        return py::hash(py::make_tuple(key.problem, key.primitive, static_cast<int>(key.src),
                                       static_cast<int>(key.dst)));
      });
  py::class_<CostTable>(m, "CostTable")
      .def(py::init<>())
      .def("set",
           [](CostTable& table, const CostKey& key, Ticks ticks, const std::string& source) {
             TORCHALGO_CHECK(ticks >= 0,
                             "TA2306 CostTable.set: got {} ticks for {}, expected 0 or more", ticks,
                             key.primitive);
             table.costs[key] = {ticks, to_source(source)};
           })
      .def("get",
           [](const CostTable& table,
              const CostKey& key) -> std::optional<std::pair<Ticks, std::string>> {
             const auto cost = find_cost(table, key);
             if (!cost) return std::nullopt;
             return std::pair(cost->ticks, source_word(cost->source));
           })
      .def("items",
           [](const CostTable& table) {
             std::vector<std::tuple<CostKey, Ticks, std::string>> items;
             for (const auto& [key, cost] : table.costs) {
               items.emplace_back(key, cost.ticks, source_word(cost.source));
             }
             return items;
           })
      .def("__len__", [](const CostTable& table) { return table.costs.size(); });
  py::class_<Measurement>(m, "Measurement")
      .def_readonly("ns", &Measurement::ns)
      .def_readonly("failure", &Measurement::failure)
      .def_readonly("method", &Measurement::method)
      .def_readonly("control_ratio", &Measurement::control_ratio)
      .def_readonly("disturbed", &Measurement::disturbed);
}

void bind_plan(py::module_& m) {
  py::class_<PlanNode>(m, "PlanNode")
      .def(py::init<>())
      .def_readwrite("name", &PlanNode::name)
      .def_readwrite("problem", &PlanNode::problem)
      .def_readwrite("primitive", &PlanNode::primitive)
      .def_readwrite("absorbed_by", &PlanNode::absorbed_by)
      .def_readwrite("cost", &PlanNode::cost)
      .def_property(
          "cost_source", [](const PlanNode& node) { return source_word(node.cost_source); },
          [](PlanNode& node, const std::string& word) { node.cost_source = to_source(word); })
      .def_readwrite("runner_up", &PlanNode::runner_up)
      .def_readwrite("regret", &PlanNode::regret);
  py::class_<PlanTransform>(m, "PlanTransform")
      .def(py::init<>())
      .def_readwrite("value", &PlanTransform::value)
      .def_readwrite("producer", &PlanTransform::producer)
      .def_readwrite("problem", &PlanTransform::problem)
      .def_readwrite("primitive", &PlanTransform::primitive)
      .def_readwrite("cost", &PlanTransform::cost);
  py::class_<Plan>(m, "Plan")
      .def(py::init<>())
      .def_readwrite("structure_hash", &Plan::structure_hash)
      .def_readwrite("structure_version", &Plan::structure_version)
      .def_property(
          "status",
          [](const Plan& plan) {
            return std::string(plan.status == PlanStatus::kOptimal ? "optimal" : "feasible");
          },
          [](Plan& plan, const std::string& word) {
            TORCHALGO_CHECK(word == "optimal" || word == "feasible",
                            "TA2101 '{}' is no plan status: expected optimal or feasible", word);
            plan.status = word == "optimal" ? PlanStatus::kOptimal : PlanStatus::kFeasible;
          })
      .def_readwrite("cost", &Plan::cost)
      .def_readwrite("lower_bound", &Plan::lower_bound)
      .def_readwrite("method", &Plan::method)
      .def_readwrite("nodes", &Plan::nodes)
      .def_readwrite("transforms", &Plan::transforms)
      .def_readwrite("certificate", &Plan::certificate);
}

// torch's own inference of an IValue's type does not link out of tree: the graph's input types
// serve.
std::vector<c10::IValue> to_ivalues(const torch::jit::Module& module, const py::tuple& inputs) {
  const auto graph_inputs = module.get_method("forward").graph()->inputs();
  // Fewer are fine: import_graph fills in the defaults of forward's arguments.
  TORCHALGO_CHECK(inputs.size() < graph_inputs.size(),
                  "TA1205 import_graph: forward takes at most {} inputs, got {}",
                  graph_inputs.size() - 1, inputs.size());
  std::vector<c10::IValue> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& type = graph_inputs[i + 1]->type();
    try {
      values.push_back(torch::jit::toIValue(inputs[i], type));
    } catch (const py::cast_error&) {
      throw Error(fmt::format("TA1205 import_graph: argument {} of forward must be a {}, got a {}",
                              i + 1, type->repr_str(), Py_TYPE(inputs[i].ptr())->tp_name));
    }
  }
  return values;
}

void bind_steps(py::module_& m) {
  m.def("cpu_device", &cpu_device);
  m.def("algorithms", [] {
    std::vector<std::pair<std::string, int>> rows;
    for (const Algorithm& row : all_algorithms()) rows.emplace_back(row.name, row.version);
    return rows;
  });
  m.def("matches_name", &matches_name, py::arg("name"), py::arg("pattern"));
  m.def("is_view", [](const std::string& primitive) { return is_view(primitive); });
  m.def("has_own_kernel", &has_own_kernel);
  m.def("activation_names", [] {
    std::vector<std::string_view> names;
    for (const auto& [kind, name] : kPostOps) {
      if (is_activation(kind)) names.push_back(name);
    }
    return names;
  });
  m.def("parse_problem", [](const std::string& text) { return to_string(parse_problem(text)); });
  m.def("layers_of", [](const std::string& text) {
    std::vector<std::string> layers;
    for (const Problem& layer : layers_of(parse_problem(text))) layers.push_back(to_string(layer));
    return layers;
  });
  m.def("weight_sizes", [](const std::string& text) { return weight_sizes(parse_problem(text)); });
  m.def("tensor_sizes", [](const std::string& text) {
    const Problem problem = parse_problem(text);
    return std::pair(input_sizes(problem), result_sizes(problem));
  });
  m.def("terms_per_element", [](const std::string& text) {
    std::vector<std::optional<double>> terms;
    for (const Problem& layer : layers_of(parse_problem(text)))
      terms.push_back(terms_per_element(layer));
    return terms;
  });
  m.def("flop_count", [](const std::string& text) { return flop_count(parse_problem(text)); });
  m.def("with_own_unit", &with_own_unit);
  m.def("import_graph", [](const torch::jit::Module& frozen, const py::tuple& inputs) {
    const auto values = to_ivalues(frozen, inputs);
    py::gil_scoped_release no_gil;
    return import_graph(frozen, values);
  });
  m.def(
      "find_candidates",
      [](const Graph& graph, std::int64_t workspace_limit_bytes,
         const std::optional<Device>& device, bool deterministic, bool drop_dominated,
         bool runtime_compiled, bool all_knobs, std::vector<std::string> named, bool coarse_types) {
        py::gil_scoped_release no_gil;
        return find_candidates(graph, all_algorithms(), device.value_or(cpu_device()),
                               {.workspace_limit_bytes = workspace_limit_bytes,
                                .deterministic = deterministic,
                                .drop_dominated = drop_dominated,
                                .coarse_types = coarse_types,
                                .runtime_compiled = runtime_compiled,
                                .all_knobs = all_knobs,
                                .named = std::move(named)});
      },
      py::arg("graph"), py::arg("workspace_limit_bytes") = std::int64_t{1} << 30,
      py::arg("device") = py::none(), py::arg("deterministic") = false,
      py::arg("drop_dominated") = false, py::arg("runtime_compiled") = true,
      py::arg("all_knobs") = false, py::arg("named") = std::vector<std::string>(),
      py::arg("coarse_types") = false);
  m.def(
      "offers_of",
      [](const std::string& problem, std::int64_t workspace_limit_bytes,
         const std::optional<Device>& device, bool coarse_types) {
        py::gil_scoped_release no_gil;
        auto offers = offers_of(
            parse_problem(problem), all_algorithms(), device.value_or(cpu_device()),
            {.workspace_limit_bytes = workspace_limit_bytes, .coarse_types = coarse_types});
        return std::tuple(std::move(offers.primitives), std::move(offers.traits),
                          std::move(offers.refusals));
      },
      py::arg("problem"), py::arg("workspace_limit_bytes") = std::int64_t{1} << 30,
      py::arg("device") = py::none(), py::arg("coarse_types") = false);
  m.def("rounds_coarsely", [](const std::string& problem, const Primitive& primitive) {
    return rounds_coarsely(parse_problem(problem), primitive);
  });
  m.def("computes_coarsely", [](const std::string& text, const Primitive& primitive) {
    const Problem problem = parse_problem(text);
    const Algorithm* algorithm = find_algorithm(all_algorithms(), primitive.name);
    return algorithm != nullptr && !std::holds_alternative<TransformProblem>(problem) &&
           computed_type(*algorithm, problem, primitive) !=
               stored_type(primitive, dtype_of(problem));
  });
  m.attr("STRUCTURE_VERSION") = kStructureVersion;
  m.def("fit_plan",
        [](const Graph& graph, const Plan& plan) { return fit_plan(graph, plan).structure_hash; });
  m.def("rewrite_graph", [](const ImportedGraph& imported, const Plan& plan) {
    py::gil_scoped_release no_gil;
    return rewrite_graph(imported, plan).module;
  });
  m.def("rewrite_with_origins", [](const ImportedGraph& imported, const Plan& plan) {
    py::gil_scoped_release no_gil;
    Rewritten rewritten = rewrite_graph(imported, plan);
    return std::pair(std::move(rewritten.module), std::move(rewritten.origins));
  });
}

// Writes into memory that another process may read: how many steps were begun, and the index of the
// last one's task.
Announce announce_on(const std::optional<py::buffer>& buffer) {
  if (!buffer) return nullptr;
  const auto board = std::make_shared<py::buffer_info>(buffer->request(/*writable=*/true));
  TORCHALGO_CHECK(board->itemsize == sizeof(std::int64_t) && board->size == 2 && !board->readonly,
                  "TA3009 announce: got a buffer of {} items of {} bytes, expected a writable one "
                  "of two 8-byte integers",
                  board->size, board->itemsize);
  return [board](std::size_t index) {
    auto* const cells = static_cast<std::int64_t*>(board->ptr);
    std::atomic_ref(cells[1]).store(static_cast<std::int64_t>(index));
    std::atomic_ref(cells[0]).fetch_add(1);
  };
}

void bind_measure_options(py::module_& m) {
  py::class_<MeasureOptions>(m, "MeasureOptions")
      .def(py::init<>())
      .def_readwrite("warmup", &MeasureOptions::warmup)
      .def_readwrite("rounds", &MeasureOptions::rounds)
      .def_readwrite("budget_s", &MeasureOptions::budget_s)
      .def_readwrite("cold_bytes", &MeasureOptions::cold_bytes)
      .def_readwrite("seed", &MeasureOptions::seed)
      .def_readwrite("race", &MeasureOptions::race)
      .def_readwrite("control", &MeasureOptions::control)
      .def_property("device", nullptr,
                    [](MeasureOptions& options, const std::optional<Device>& device) {
                      options.device = device.value_or(cpu_device());
                    })
      .def_property("board", nullptr,
                    [](MeasureOptions& options, const std::optional<py::buffer>& board) {
                      options.announce = announce_on(board);
                    });
}

void bind_measuring(py::module_& m) {
  m.attr("LARGE_CACHE_BYTES") = kLargeCacheBytes;
  m.attr("CHANGED_WEIGHTS") = kChangedWeights;
  m.def(
      "weights_in",
      [](std::int64_t bytes, const std::optional<Device>& device) {
        return to_string(weights_in(bytes, device.value_or(cpu_device())));
      },
      py::arg("bytes"), py::arg("device") = py::none());
  m.def(
      "measure",
      [](const std::vector<std::pair<std::string, Primitive>>& pairs, const py::kwargs& fields) {
        std::vector<Task> tasks;
        for (const auto& [problem, primitive] : pairs) {
          tasks.push_back({parse_problem(problem), primitive});
        }
        const auto options = options_from<MeasureOptions>(fields);
        const py::gil_scoped_release no_gil;
        return measure_interleaved(tasks, all_algorithms(), options);
      },
      py::arg("tasks"));
  m.def(
      "samples_without_noise",
      [](const std::vector<std::size_t>& places, const std::vector<double>& ns, int rounds) {
        TORCHALGO_CHECK(places.size() == ns.size(),
                        "TA3009 samples_without_noise: got {} places and {} times, expected as "
                        "many times as places",
                        places.size(), ns.size());
        return samples_without_noise(places, ns, RaceLength::of(rounds));
      },
      py::arg("places"), py::arg("ns"), py::arg("rounds"));
  m.def(
      "check_primitives",
      [](const std::string& problem, const std::vector<Primitive>& primitives, double max_rel_error,
         std::uint64_t seed, const std::optional<Device>& device,
         const std::optional<py::buffer>& board) {
        const Announce announce = announce_on(board);
        const py::gil_scoped_release no_gil;
        std::vector<std::pair<double, std::string>> results;
        for (auto& result :
             check_primitives(all_algorithms(), parse_problem(problem), primitives, max_rel_error,
                              seed, device.value_or(cpu_device()), announce)) {
          results.emplace_back(result.rel_error, std::move(result.failure));
        }
        return results;
      },
      py::arg("problem"), py::arg("primitives"), py::arg("max_rel_error"), py::arg("seed") = 0,
      py::arg("device") = py::none(), py::arg("board") = py::none());
  m.def(
      "componentwise_error",
      [](const std::string& problem, const Primitive& primitive, std::uint64_t seed,
         const std::optional<Device>& device) {
        const py::gil_scoped_release no_gil;
        return componentwise_error(all_algorithms(), parse_problem(problem), primitive, seed,
                                   device.value_or(cpu_device()));
      },
      py::arg("problem"), py::arg("primitive"), py::arg("seed") = 0,
      py::arg("device") = py::none());
}

void bind_settings(py::module_& m) {
  m.def("set_strict", &set_strict);
  m.def("fallbacks", [] {
    std::map<std::string, std::pair<std::int64_t, std::string>> counts;
    for (const auto& [layer, fallback] : fallbacks())
      counts[layer] = {fallback.count, fallback.reason};
    return counts;
  });
  m.def("reset_fallbacks", &reset_fallbacks);
}

}  // namespace
}  // namespace torchalgo

PYBIND11_MODULE(_C, m) {
  m.attr("torch_version") = TORCHALGO_BUILT_FOR_TORCH;
  m.attr("version") = TORCHALGO_VERSION;
  py::register_exception<torchalgo::Error>(m, "Error", PyExc_RuntimeError);
  torchalgo::bind_graph(m);
  torchalgo::bind_device(m);
  torchalgo::bind_candidates(m);
  torchalgo::bind_costs(m);
  torchalgo::bind_plan(m);
  torchalgo::bind_steps(m);
  torchalgo::bind_measure_options(m);
  torchalgo::bind_measuring(m);
  torchalgo::bind_settings(m);
  torchalgo::bind_ops(m);
  torchalgo::bind_cuda(m);
  torchalgo::bind_cudnn(m);
  torchalgo::bind_pbqp(m);
  torchalgo::bind_planner(m);
  torchalgo::bind_schedule(m);
  torchalgo::bind_bounds(m);
  torchalgo::bind_training(m);
  torchalgo::bind_weights(m);
  torchalgo::bind_runner(m);
}
