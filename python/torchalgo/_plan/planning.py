# SPDX-License-Identifier: BSD-3-Clause
"""Converts between the planner's plan (C++) and the plan that users read, store and edit."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule, tensors_in
from torchalgo._capture.shapes import Dims
from torchalgo._ir.bounds import COARSE_BOUND, dtype_of
from torchalgo._ir.costs import environment
from torchalgo._ir.overrides import forced_primitives, is_convolution
from torchalgo._ir.plan import (
    TICKS_PER_US,
    LeftAlone,
    PairCost,
    Plan,
    PlanInput,
    PlanNode,
    PlanTransform,
    guard_line,
    runs_text,
    when_timed,
)
from torchalgo._measure.measuring import Tuning, tied_layers
from torchalgo._plan.limits import Limits, packed_bytes
from torchalgo._plan.objective import Latency
from torchalgo._plan.pareto import Front, Memory, ParetoPoint, native_front


def describe_plan(
    native: _C.Plan,
    graph: _C.Graph,
    inputs: tuple[Any, ...],
    tuning: Tuning,
    notes: list[str],
    dims: Dims | None = None,
) -> Plan:
    """Converts the planner's plan to the plan that users read, with all facts about it."""
    method = "; ".join(part for part in (native.method, tuning.method_note()) if part)
    nodes = [_node(node) for node in native.nodes]
    primitives = [n.primitive for n in native.nodes] + [t.primitive for t in native.transforms]
    return Plan(
        structure_hash=native.structure_hash,
        structure_version=native.structure_version,
        inputs=with_dims([_input(tensor) for tensor in tensors_in(inputs)], dims),
        environment=environment(tuning.device),
        status="optimal" if native.status == "optimal" else "feasible",
        cost_us=_us(native.cost),
        lower_bound_us=_us(native.lower_bound),
        cost_ticks=native.cost,
        lower_bound_ticks=native.lower_bound,
        method=method,
        nodes=nodes,
        transforms=[_transform(transform) for transform in native.transforms],
        pairs=pair_costs(native.pairs),
        weight_bytes=sum(node.packed_bytes or 0 for node in nodes),
        plain_weight_bytes=sum(_C.plain_weight_bytes(n.problem) for n in nodes if n.primitive),
        workspace_bytes=max((p.workspace_bytes for p in primitives), default=0),
        ties=tied_layers(graph, native, tuning.known),
        quarantined=tuning.quarantine_list(),
        left_alone=left_alone(graph, notes),
    )


def unplanned(
    graph: _C.Graph,
    inputs: tuple[Any, ...],
    notes: list[str],
    device: _C.Device | None = None,
    dims: Dims | None = None,
) -> Plan:
    """Returns the plan of a model that has no convolutions, so that nothing can be chosen."""
    return Plan(
        structure_hash=graph.structure_hash,
        structure_version=_C.STRUCTURE_VERSION,
        inputs=with_dims([_input(tensor) for tensor in tensors_in(inputs)], dims),
        environment=environment(device),
        status="optimal",
        cost_us=0.0,
        lower_bound_us=0.0,
        cost_ticks=0,
        lower_bound_ticks=0,
        method="nothing to choose",
        nodes=[],
        transforms=[],
        left_alone=left_alone(graph, ["no convolutions: left as it is", *notes]),
    )


def left_alone(graph: _C.Graph, notes: list[str]) -> list[LeftAlone]:
    nodes = [LeftAlone(node.name, node.note) for node in graph.nodes if node.note]
    return [LeftAlone("", note) for note in notes] + nodes


def _us(ticks: int) -> float:
    return round(ticks / TICKS_PER_US, 3)


def _input(tensor: torch.Tensor) -> PlanInput:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return PlanInput(
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        layout="nhwc" if last and not tensor.is_contiguous() else "nchw",
    )


def _spelled(given: PlanInput) -> str:
    return f"{'x'.join(map(str, given.shape))} {given.dtype} {given.layout}"


def with_dims(inputs: Sequence[PlanInput], dims: Dims | None) -> list[PlanInput]:
    """Returns the inputs with the sizes for which the module is right.

    Returns the inputs unchanged if `dims` is None.
    """
    if dims is None:
        return list(inputs)
    return [
        dataclasses.replace(given, dims=list(own)) for given, own in zip(inputs, dims, strict=True)
    ]


def _node(node: _C.PlanNode) -> PlanNode:
    return PlanNode(
        name=node.name,
        problem=node.problem,
        primitive=node.primitive.name,
        src=node.primitive.src,  # type: ignore[arg-type]
        dst=node.primitive.dst,  # type: ignore[arg-type]
        absorbed_by=node.absorbed_by,
        predicted_us=_us(node.cost),
        ticks=node.cost,
        cost_source=node.cost_source,  # type: ignore[arg-type]
        runner_up=node.runner_up,
        regret_us=None if node.regret is None else _us(node.regret),
        packed_bytes=packed_bytes(node.problem, node.primitive),
    )


def _transform(transform: _C.PlanTransform) -> PlanTransform:
    return PlanTransform(
        value=transform.value,
        producer=transform.producer,
        problem=transform.problem,
        primitive=transform.primitive.name,
        src=transform.primitive.src,  # type: ignore[arg-type]
        dst=transform.primitive.dst,  # type: ignore[arg-type]
        predicted_us=_us(transform.cost),
        ticks=transform.cost,
    )


def pair_costs(pairs: Iterable[_C.PlanPair]) -> list[PairCost]:
    """Converts the planner's costs of pairs to those of a plan's file."""

    def row(run: _C.CostKey) -> str:
        return f"{run.primitive} {run.src}->{run.dst}"

    return [
        PairCost(
            producer=pair.producer,
            producer_problem=pair.before.problem if pair.producer else "",
            producer_primitive=row(pair.before) if pair.producer else "",
            reader=pair.reader,
            reader_problem=pair.run.problem,
            reader_primitive=row(pair.run),
            ticks=pair.cost,
        )
        for pair in pairs
    ]


def native_plan(plan: Plan) -> _C.Plan:
    """Converts a plan to the planner's form, with the fields that rewrite_graph needs.

    Sizes of workspaces are left out: they are queried from the algorithms when a module loads.
    """
    native = _C.Plan()
    native.structure_hash, native.status = plan.structure_hash, plan.status
    native.structure_version = plan.structure_version
    native.method = plan.method
    native.cost, native.lower_bound = plan.cost_ticks, plan.lower_bound_ticks
    native.nodes = [_native_node(node) for node in plan.nodes]
    native.transforms = [_native_transform(transform) for transform in plan.transforms]
    return native


def _native_node(node: PlanNode) -> _C.PlanNode:
    native = _C.PlanNode()
    native.name, native.problem = node.name, node.problem
    native.primitive = _C.Primitive(node.primitive, node.src, node.dst)
    native.absorbed_by, native.runner_up = node.absorbed_by, node.runner_up
    native.cost, native.cost_source = node.ticks, node.cost_source
    return native


def _native_transform(transform: PlanTransform) -> _C.PlanTransform:
    native = _C.PlanTransform()
    native.value, native.producer = transform.value, transform.producer
    native.problem, native.cost = transform.problem, transform.ticks
    native.primitive = _C.Primitive(transform.primitive, transform.src, transform.dst)
    return native


def fitted(plan: Plan, graph: _C.Graph, inputs: tuple[Any, ...]) -> Plan:
    """Returns the plan if it was made for `graph`.

    A plan of an older version may have another structure hash, because the importer made another
    graph of the model. Then the names and problems of its nodes decide whether it fits. The result
    has the present structure hash, and no proof, since the proof is about the old graph. A warning
    tells the user.

    Raises: torchalgo.Error if the plan was made for another model or other inputs. The text names
        the first difference.
    """
    if plan.structure_hash == graph.structure_hash_of(plan.structure_version):
        return plan
    is_present = plan.structure_version == _C.STRUCTURE_VERSION
    if not is_present and not plan.nodes and not has_convolutions(graph):  # nothing is planned
        structure_hash = graph.structure_hash
    else:
        structure_hash = _C.fit_plan(graph, native_plan(plan))
    if structure_hash == plan.structure_hash:
        return plan
    made_for = [_spelled(given) for given in plan.inputs]
    given = [_spelled(_input(tensor)) for tensor in tensors_in(inputs)]
    if made_for != given:
        raise Error(
            f"optimize: the plan was made for inputs {', '.join(made_for)}, got"
            f" {', '.join(given)}: make a plan for these"
        )
    warnings.warn(
        f"torchalgo: the plan's structure hash has version {plan.structure_version}, this"
        f" torchalgo's version {_C.STRUCTURE_VERSION}, so that the plan was fitted by the names and"
        " problems of its layers: save .plan of the optimized module to have it in this version",
        stacklevel=3,
    )
    return dataclasses.replace(
        plan, structure_hash=structure_hash, structure_version=_C.STRUCTURE_VERSION, proof=None
    )


def nodes_it_lacks(plan: Plan, graph: _C.Graph) -> list[str]:
    """Returns the names of nodes of `graph` that are planned today, but are not in `plan`.

    Returns none if the plan has no nodes at all.
    """
    planned = {node.name for node in plan.nodes}
    known = [node.name for node in graph.nodes if node.problem is not None]
    return [name for name in known if name not in planned] if planned else []


def missing_primitives(plan: Plan, found: _C.Candidates) -> list[str]:
    """Returns the layers whose primitive this machine does not offer.

    At run time, their fallback runs.
    """
    offered = {
        (c.problem, c.primitive.name, c.primitive.src, c.primitive.dst)
        for candidates in found.by_anchor
        for c in candidates
    }
    return [
        f"{node.name} ({node.primitive})"
        for node in plan.nodes
        if node.primitive and (node.problem, node.primitive, node.src, node.dst) not in offered
    ]


def compare_planners(
    tuning: Tuning, objective: Latency, is_limited: bool = False
) -> dict[str, _C.Plan]:
    """Returns, by name, the plans that simpler choices make with the same costs.

    These are "aten_only", "single_layout_..." for each layout, and "local_optimum", the fastest
    primitive of each convolution. For an objective other than latency, there are also the optima of
    other objectives. If `is_limited`, "without_limits" is the best plan without limits. None of
    these plans has to keep the limits.

    There is no plan for a layout that most convolutions lack. Single nodes that lack a layout keep
    their own. If measuring was ended early, plans for which there are too few costs are missing.
    """
    plans: dict[str, _C.Plan] = {}

    def add(name: str, planner: Callable[..., Any] = objective.planner, **options: Any) -> None:
        try:
            plans[name] = tuning.settle(planner, checked=False, rough=True, **options)
        except Error:
            if not tuning.is_stopped:
                raise

    add(
        "aten_only",
        only=lambda name: name.startswith(("aten.", "layout.aten", "view.relabel")),
    )
    for layout in usual_layouts(tuning.graph, tuning.found):
        add(f"single_layout_{layout}", layouts=[layout])
    if objective.local_planner is not None:
        tuning.settle_fastest()
        add("local_optimum", objective.local_planner)
    for name, planner in objective.other_planners().items():
        add(name, planner)
    if is_limited:
        add("without_limits")
    return plans


def usual_layouts(graph: _C.Graph, found: _C.Candidates) -> list[str]:
    """Returns the layouts that more than half of the convolutions can both read and write."""
    counts: dict[str, int] = {}
    convolutions = 0
    for node, offered in zip(graph.nodes, found.by_anchor, strict=True):
        if is_convolution(node):
            convolutions += 1
            primitives = [c.primitive for c in offered]
            for layout in {p.src for p in primitives if p.src == p.dst}:
                counts[layout] = counts.get(layout, 0) + 1
    return sorted(layout for layout, count in counts.items() if 2 * count > convolutions)


def compared_costs(plans: Mapping[str, _C.Plan], objective: Latency) -> dict[str, float]:
    """Returns each plan's predicted value of the objective, and that of the best single layout.

    "best_single_layout" is missing if there is no plan with a single layout.
    """
    costs = {name: objective.value(plan) for name, plan in plans.items()}
    single = [cost for name, cost in costs.items() if name.startswith("single_layout_")]
    return {**costs, "best_single_layout": min(single)} if single else costs


def resolver(
    imported: _C.Imported, limits: Limits, describe: Callable[[_C.Plan], Plan]
) -> Callable[[Mapping[str, str]], Plan]:
    """Returns the function behind plan.with_overrides."""

    def resolve(overrides: Mapping[str, str]) -> Plan:
        forced = forced_primitives(imported.graph, limits.tuning.found, overrides)
        native = limits.tuning.solve_known(forced, limits.planner, resources=limits.resources())
        return dataclasses.replace(describe(native), resolve=resolve, limits=limits.described())

    return resolve


def front_finder(
    tuning: Tuning, describe: Callable[[_C.Plan], Plan], objective: Latency
) -> Callable[[Memory, int, float], Front]:
    """Returns the function behind Optimized.pareto."""

    def find_front(memory: Memory, max_points: int, time_limit_s: float) -> Front:
        objective.refuse("pareto")
        points = tuning.ask_known(
            native_front, memory=memory, max_points=max_points, time_limit_s=time_limit_s
        )
        return Front([ParetoPoint(describe(p.plan), p.us, p.bytes) for p in points], memory)

    return find_front


def native_device(device: torch.device) -> _C.Device | None:
    """Returns the GPU that `device` names; None for the CPU."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _C.cuda_device(index)


def torch_name(device: _C.Device | None) -> str:
    return "cpu" if device is None else f"cuda:{device.index}"


def import_for(
    device: _C.Device | None, frozen: ScriptModule, inputs: tuple[Any, ...]
) -> _C.Imported:
    """Imports the graph to plan. On a GPU, f32 convolutions may use TF32 if torch allows it."""
    imported = _C.import_graph(frozen._c, inputs)
    if device is not None and torch.backends.cudnn.allow_tf32:
        return _C.with_tf32_convolutions(imported)
    return imported


def find_candidates(
    graph: _C.Graph,
    workspace_limit_bytes: int,
    device: _C.Device | None,
    drop_dominated: bool = True,
) -> _C.Candidates:
    """Returns the candidates of each node.

    If `drop_dominated`, candidates that are not worth measuring are left out. For cuDNN, this
    leaves a few of hundreds of engines and knobs. On a CPU, a call without the activation behind it
    is left out if the same primitive can apply the activation. On a GPU, only deterministic
    primitives are returned if torch's flags ask for them.
    """
    deterministic = device is not None and (
        torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    )
    return _C.find_candidates(graph, workspace_limit_bytes, device, deterministic, drop_dominated)


def output_bound(graph: _C.Graph, max_rel_error: float) -> float:
    """Returns the largest relative L2 that the outputs may have to the model's.

    This is `max_rel_error`. For types that round more coarsely, it is at least four times the bound
    of one convolution, since rounding errors add up.
    """
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    coarse = [COARSE_BOUND.get(dtype_of(problem), 0.0) for problem in problems]
    return max([max_rel_error, *(4 * bound for bound in coarse)])


def has_convolutions(graph: _C.Graph) -> bool:
    return any(is_convolution(node) for node in graph.nodes)


def outcome(plan: Plan) -> list[str]:
    """Returns the lines that a user should see at once: what runs, and what was left alone."""
    lines = []
    if plan.guard is not None and plan.guard.objective != "latency":
        lines.append(guard_line(plan.guard))
    elif plan.guard is not None and plan.guard.rounds:
        speedup = plan.guard.baseline_us / plan.guard.plan_us
        lines.append(
            f"{plan.guard.plan_us / 1000:.2f} ms, {speedup:.2f}x {plan.guard.baseline}"
            f" ({plan.guard.verdict}); {runs_text(plan.guard)}{when_timed(plan.guard)}"
        )
    elif plan.guard is not None:
        lines.append(f"{plan.guard.reason}; {runs_text(plan.guard)}")
    if plan.left_alone:
        names = ", ".join(item.name or item.note for item in plan.left_alone[:3])
        more = f" and {len(plan.left_alone) - 3} more" if len(plan.left_alone) > 3 else ""
        lines.append(f"left alone: {names}{more}; print(plan) says why")
    return lines
