// SPDX-License-Identifier: BSD-3-Clause
#include "planner/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "ir/transform_shape.h"
#include "ir/view.h"
#include "planner/concat_buffers.h"
#include "planner/plan_fit.h"
#include "planner/value_flow.h"

namespace torchalgo {
namespace {

using Form = std::pair<int, Layout>;  // a value in a layout

class Lowering {
 public:
  Lowering(const Graph& graph, const Plan& plan, int first_gradient)
      : graph_(graph),
        knows_layouts_(plan.structure_version >= kFirstWithLayouts),
        plan_(fit_plan(graph, plan)),
        concats_(concat_buffers(graph, plan_)),
        nodes_(static_cast<int>(graph.nodes.size())),
        first_gradient_(first_gradient) {
    schedule_.buffers = concats_.buffers;
    if (first_gradient_ < nodes_) find_early();
  }

  Schedule lower() {
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const bool is_known = i < graph_.input_layouts.size();
      schedule_.inputs.push_back(
          add_slot({graph_.inputs[i], is_known ? graph_.input_layouts[i] : Layout::kNchw}));
    }
    for (const int input : graph_.inputs) change_layouts(input);
    for (int node = 0; node < nodes_; ++node) {
      if (node == first_gradient_) schedule_.forward_steps = count();
      add_node(node);
    }
    if (first_gradient_ >= nodes_) schedule_.forward_steps = count();
    for (const int output : graph_.outputs) schedule_.outputs.push_back(output_slot(output));
    find_last_uses();
    return std::move(schedule_);
  }

 private:
  // A node that PyTorch runs reads and makes these layouts. Older plans know plain ones only.
  [[nodiscard]] Layout reads(const Node& node) const {
    return knows_layouts_ ? node.reads : Layout::kNchw;
  }
  [[nodiscard]] Layout makes(const Node& node) const {
    return knows_layouts_ ? node.makes : Layout::kNchw;
  }

  // Returns what the step at a node reads. A residual is last.
  [[nodiscard]] std::vector<Form> forms_read(int index) const {
    std::vector<Form> forms;
    const Node& node = graph_.nodes[index];
    if (!plan_.is_planned[index]) {
      for (const int value : node.inputs) forms.emplace_back(value, reads(node));
    } else if (const auto& call = plan_.call_at[index]) {
      for (std::size_t i = 0; i < call->src.size(); ++i)
        forms.emplace_back(call->src[i], input_layout(call->problem, call->primitive, i));
      if (call->residual)
        forms.emplace_back(*call->residual, result_layout(call->problem, call->primitive));
    }
    return forms;
  }

  // Finds what the forward pass reads, through all changes of layout.
  void find_early() {
    for (int node = 0; node < first_gradient_; ++node) {
      for (const Form& form : forms_read(node)) early_.insert(form);
    }
    for (const int output : graph_.outputs) {
      if (graph_.values[output].producer < first_gradient_) early_.emplace(output, Layout::kNchw);
    }
    for (std::size_t value = 0; value < plan_.transforms.size(); ++value) {
      const auto& changes = plan_.transforms[value];
      for (auto each = changes.rbegin(); each != changes.rend(); ++each) {
        const int v = static_cast<int>(value);
        if (early_.contains({v, each->primitive.dst})) early_.emplace(v, each->primitive.src);
      }
    }
  }

  void add_node(int index) {
    const Node& node = graph_.nodes[index];
    if (!node.reads_shape_only && plan_.is_planned[index]) {
      if (const auto& call = plan_.call_at[index]) add_call(index, *call);
      return;
    }
    Schedule::Step step;
    step.layer = node.name;
    step.covers = {index};
    if (node.reads_shape_only) {
      for (const int value : node.inputs) step.src.push_back(any_form(node, value));
    } else {
      for (const Form& form : forms_read(index)) step.src.push_back(slot_of(form, node.name));
    }
    for (const int value : node.outputs) step.dst.push_back(write({value, makes(node)}));
    schedule_.steps.push_back(std::move(step));
    for (const int value : node.outputs) change_layouts(value);
  }

  void add_call(int index, const PlannedCall& call) {
    Schedule::Step step{call.name, call.covers, call.problem, call.primitive, {}, {}, {}, {}};
    for (const Form& form : forms_read(index)) step.src.push_back(slot_of(form, call.name));
    if (call.residual) {
      step.residual = step.src.back();
      step.src.pop_back();
    }
    step.dst = {write({call.dst, result_layout(call.problem, call.primitive)})};
    const auto buffer = concats_.buffer_of.find(index);
    if (buffer != concats_.buffer_of.end()) step.buffer = buffer->second;
    add(std::move(step));
    change_layouts(call.dst);
  }

  void add(Schedule::Step step) {
    const std::string& name = step.primitive.name;
    if (is_view(name) && name != kViewConcat) schedule_.slots[step.dst[0]].view_of = step.src[0];
    schedule_.steps.push_back(std::move(step));
  }

  // A query of the shape takes the tensor in any layout in which it exists, in plain memory if it
  // can, which answers by itself.
  [[nodiscard]] int any_form(const Node& node, int value) const {
    const auto begin = slots_.lower_bound({value, Layout{}});
    const auto end = slots_.lower_bound({value + 1, Layout{}});
    TORCHALGO_CHECK(begin != end,
                    "TA2202 plan: no entry of the plan makes {}, whose shape {} reads",
                    graph_.values[value].name, node.name);
    const auto plain =
        std::find_if(begin, end, [](const auto& slot) { return !is_blocked(slot.first.second); });
    return plain == end ? begin->second : plain->second;
  }

  // Adds the changes of layout of a value that has just been made.
  void change_layouts(int value) {
    const bool is_late = graph_.values[value].producer >= first_gradient_;
    for (const PlanTransform& change : plan_.transforms[value]) {
      const bool is_early =
          first_gradient_ >= nodes_ || early_.contains({value, change.primitive.dst});
      if (is_late || is_early) add_change(value, change);
    }
  }

  int add_change(int value, const PlanTransform& change) {
    Schedule::Step step;
    step.layer = change.value;
    step.problem = parse_problem(change.problem);
    step.primitive = change.primitive;
    step.src = {slot_of({value, change.primitive.src}, change.problem)};
    const int dst = write({value, change.primitive.dst});
    step.dst = {dst};
    add(std::move(step));
    return dst;
  }

  // Returns the slot of a form that `reader` reads, after a change of layout that was not needed
  // before.
  int slot_of(Form form, const std::string& reader) {
    const auto slot = slots_.find(form);
    if (slot != slots_.end()) return slot->second;
    const auto [value, layout] = form;
    const auto& changes = plan_.transforms[value];
    const auto change = std::find_if(changes.begin(), changes.end(), [&](const auto& each) {
      return each.primitive.dst == form.second && each.primitive.src != form.second;
    });
    TORCHALGO_CHECK(first_gradient_ < nodes_ && change != changes.end(),
                    "TA2202 plan: {} reads {} in {}, which no entry of the plan makes", reader,
                    graph_.values[value].name, to_string(layout));
    return add_change(value, *change);
  }

  // Returns a new slot that the next step writes.
  int write(Form form) {
    const int slot = add_slot(form);
    schedule_.slots[slot].writer = count();
    const auto part = concats_.of_value.find(form);
    if (part != concats_.of_value.end()) schedule_.slots[slot].part = part->second;
    return slot;
  }

  int add_slot(Form form) {
    const int slot = static_cast<int>(schedule_.slots.size());
    slots_[form] = slot;
    schedule_.slots.push_back(
        {form.first, form.second, bytes_of(graph_.values[form.first], form.second)});
    return slot;
  }

  // A weights' gradient has the layout of the primitive that computes it.
  int output_slot(int value) {
    const auto slot = slots_.lower_bound({value, Layout{}});
    const bool is_made = slot != slots_.end() && slot->first.first == value;
    if (is_made && planner::is_weight_gradient(graph_, value)) return slot->second;
    return slot_of({value, Layout::kNchw}, "the caller");
  }

  void find_last_uses() {
    for (int s = 0; s < count(); ++s) {
      const Schedule::Step& step = schedule_.steps[s];
      for (const int slot : step.src) schedule_.slots[slot].last_use = s;
      if (step.residual) schedule_.slots[*step.residual].last_use = s;
    }
    for (const int slot : schedule_.outputs) schedule_.slots[slot].last_use = count();
  }

  [[nodiscard]] int count() const { return static_cast<int>(schedule_.steps.size()); }

  const Graph& graph_;
  const bool knows_layouts_;
  const FittedPlan plan_;
  const ConcatBuffers concats_;
  const int nodes_, first_gradient_;
  std::set<Form> early_;  // what the forward pass reads
  std::map<Form, int> slots_;
  Schedule schedule_;
};

}  // namespace

Schedule lower(const Graph& graph, const Plan& plan, std::optional<int> first_gradient) {
  return Lowering(graph, plan, first_gradient.value_or(static_cast<int>(graph.nodes.size())))
      .lower();
}

}  // namespace torchalgo
