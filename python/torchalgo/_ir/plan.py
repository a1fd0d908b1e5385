# SPDX-License-Identifier: BSD-3-Clause
"""The plan: the primitive of each node, and the layout changes.

A plan's file is JSON, without pickle, code or paths. This Python file also works alone: `python
plan.py net.plan.json` prints a plan where torchalgo is not installed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if typing.TYPE_CHECKING:
    from torchalgo._C import STRUCTURE_VERSION, Error
else:
    try:
        from torchalgo._C import STRUCTURE_VERSION, Error
    except ImportError:  # this file runs without torchalgo
        STRUCTURE_VERSION = sys.maxsize  # a plan of any version can be printed

        class Error(RuntimeError):
            """A plan that cannot be read."""


SCHEMA = 1
MAX_PROOF_CHARACTERS = 1 << 24  # most characters of a certificate in a plan's file
TICKS_PER_US = 1024 * 1000
MOST_WAITING = 0.15  # part of the time; times of a process that waited longer are not kept

Layout = Literal["nchw", "nhwc", "nChw8c", "nChw16c"]
Overrides = Mapping[str, str]
Objective = Literal["latency", "energy", "edp"]  # edp: energy x time of the whole plan
OBJECTIVES: tuple[Objective, ...] = typing.get_args(Objective)


@dataclass(frozen=True)
class PlanDim:
    """The range of sizes of one dimension for which the module is right: `least` to `most`.

    A pinned dimension has no name. Free dimensions with the same name have the same size.
    """

    name: str
    least: int
    most: int | None  # None if there is no limit


@dataclass(frozen=True)
class PlanInput:
    """One tensor of the model's inputs, in call order.

    Each tensor inside a list or dict counts as one.
    """

    shape: list[int]
    dtype: str
    layout: Layout
    dims: list[PlanDim] | None = None  # None if not known, as in older files


@dataclass(frozen=True)
class PlanNode:
    """The choice for one node. An absorbed node has no primitive and costs nothing of its own."""

    name: str
    problem: str
    primitive: str
    src: Layout
    dst: Layout
    absorbed_by: str
    predicted_us: float
    ticks: int
    cost_source: Literal["measured", "bound", "model", "construction"]  # the last: a view
    runner_up: str
    regret_us: float | None
    packed_bytes: int | None = None  # bytes beside the model's own weights; None if not written
    predicted_uj: float | None = None  # None if the plan is for latency
    regret_uj: float | None = None


@dataclass(frozen=True)
class PlanTransform:
    """A layout change of one value. It is paid once for any number of readers."""

    value: str
    producer: str  # empty for an input of the model
    problem: str
    primitive: str
    src: Layout
    dst: Layout
    predicted_us: float
    ticks: int
    predicted_uj: float | None = None  # None if the plan is for latency


@dataclass(frozen=True)
class PlanEnergy:
    """The prediction for a plan for "energy" or "edp", as counted by `meter`."""

    meter: str
    cost_uj: float
    lower_bound: float  # bound of the objective for all plans: in uJ, or in uJ x us for edp


@dataclass(frozen=True)
class GuardVerdict:
    """The comparison of the plan with the best baseline in paired rounds.

    `ratio` is plan / baseline, and `low` to `high` its 95 % interval. It is a ratio of times, or of
    the objective's values if that is not latency.
    """

    verdict: Literal["faster", "slower", "unclear", "not timed"]
    runs: Literal["plan", "single_layout", "baseline"]
    baseline: str
    plan_us: float
    baseline_us: float
    ratio: float
    low: float
    high: float
    rounds: int
    reason: str
    objective: Objective = "latency"
    plan_uj: float | None = None
    baseline_uj: float | None = None
    # The time of the slower one of the plan and the best single-layout plan. None if only the plan
    # was timed.
    second_us: float | None = None
    # The day, such as 2026-11-20, of a verdict from the database; empty if it was timed in this
    # call.
    timed_on: str = ""
    # The part of the time in which the process waited for a processor, because other programs ran.
    waited: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Returns whether other programs disturbed the times.

        Such times are not kept for later runs.
        """
        return self.waited > MOST_WAITING

    def to_json(self) -> str:
        return json.dumps(_encode(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> GuardVerdict:
        """Reads the text of `to_json`. Raises torchalgo.Error with the name of the wrong field."""
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as problem:
            raise Error(f"guard: no verdict, or truncated: {problem}") from None
        verdict: GuardVerdict = _decode(cls, data, "guard")
        return verdict


@dataclass(frozen=True)
class Quarantined:
    """A candidate that must not be chosen on this machine."""

    problem: str
    primitive: str
    src: Layout
    dst: Layout
    reason: str


@dataclass(frozen=True)
class LeftAlone:
    """A node that could be planned but is not, and why.

    An empty name stands for the whole model.
    """

    name: str
    note: str


@dataclass(frozen=True)
class PairCost:
    """The extra cost of a reader's primitive behind a certain primitive of the producer.

    It is the difference from the reader's cost alone. It is negative if the reader is faster there.
    It was timed inside the network: see InContext.
    """

    producer: str  # name of a node; empty for any
    producer_problem: str
    producer_primitive: str  # "primitive src->dst"
    reader: str
    reader_problem: str
    reader_primitive: str
    ticks: int


@dataclass(frozen=True)
class OpInContext:
    """The times of one op of the plan, alone and inside the net."""

    name: str  # name of the node, or of the value whose layout changes
    problem: str
    alone_us: float
    expected_us: float  # alone_us, corrected by the factor and the overhead of its kind
    measured_us: float


@dataclass(frozen=True)
class InContext:
    """The times of the plan's ops inside the net, beside their times alone. All times are in us.

    `factors` and `call_us` describe all ops of one kind: measured = factor * alone + call. Only an
    op's time above that depends on its choice. It is stored in `pairs` of the plan.
    """

    alone_us: float  # sum over the plan, without factors and call_us
    corrected_us: float  # of a call: alone_us with factors, call_us, pairs and rest_us
    measured_us: float  # of a whole call
    ops_us: float  # measured: the plan's ops
    rest_us: float  # measured: the rest of a call, such as the interpreter and PyTorch's ops
    factors: dict[str, float]  # "convolution" | "transform" | "other"
    call_us: dict[str, float]
    rounds: int  # plans that were timed in the net
    kept: int  # number of the plan that runs, counted from 1
    outcome: str  # why the search ended
    ops: list[OpInContext]

    @classmethod
    def from_data(cls, data: Any) -> InContext:
        """Reads the JSON object of a plan's file.

        Raises torchalgo.Error with the name of the wrong field.
        """
        context: InContext = _decode(cls, data, "in_context")
        return context


@dataclass(frozen=True)
class PlanProof:
    """The data that check_plan needs beside the plan. All of it is text and integers."""

    problem_hash: str  # SHA-256 of the PBQP of the graph and the costs
    certificate: str  # proves that no plan is cheaper than the bound; docs/pbqp.md
    graph: str
    costs: dict[str, dict[str, int]]  # problem -> "primitive src->dst" -> ticks
    refused: list[list[str]]  # node, problem, "primitive src->dst" that it must not use
    pairs: list[PairCost] = field(default_factory=list)  # all pairs of the PBQP


@dataclass(frozen=True)
class Plan:
    """The primitives and layout changes of a model, with their costs. `print(plan)` explains it.

    Equal plans compare equal. Ticks are 1/1024 ns. If the objective is energy, ticks are 1/1024 nJ,
    and lower_bound_us is 0, since nothing is proven about the time. If it is edp, ticks count time,
    and lower_bound_ticks / cost_ticks is the bound of energy x time divided by its value.

    Example:
        plan = torchalgo.optimize(model, (x,)).plan
        plan.save("net.plan.json")
    """

    structure_hash: str
    inputs: list[PlanInput]
    environment: dict[str, str]
    status: Literal["optimal", "feasible"]
    cost_us: float
    lower_bound_us: float
    cost_ticks: int
    lower_bound_ticks: int
    method: str
    nodes: list[PlanNode]
    transforms: list[PlanTransform]
    # Predicted values of weaker planners, in us, uJ or uJ x us as the objective.
    comparisons: dict[str, float] = field(default_factory=dict)
    ties: int = 0  # layers whose runner-up is within noise
    # Relative L2 error of the outputs of the planned module, and of the frozen module, against the
    # original model.
    rel_error: float | None = None
    capture_error: float | None = None
    # Bytes of all nodes; None if not written. The model's own weights stay beside the packed ones.
    weight_bytes: int | None = None  # packed weights
    plain_weight_bytes: int | None = None  # the model's own weights, without biases
    workspace_bytes: int | None = None  # of the primitive with the largest workspace
    limits: dict[str, float] = field(default_factory=dict)  # on sums over all nodes
    guard: GuardVerdict | None = None
    quarantined: list[Quarantined] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    pairs: list[PairCost] = field(default_factory=list)  # those that apply; part of the cost
    in_context: InContext | None = None  # None if it was not timed in the net
    proof: PlanProof | None = None  # only in plans of with_proof
    objective: Objective = "latency"
    energy: PlanEnergy | None = None  # None if the plan is for latency
    structure_version: int = 1  # version of structure_hash; files of version 1 lack this field
    schema: int = SCHEMA
    # `resolve` plans again, and `prove` makes the proof. Both need the costs in memory, so that a
    # plan from a file has neither.
    resolve: Callable[[Overrides], Plan] | None = field(default=None, repr=False, compare=False)
    prove: Callable[[Plan], PlanProof] | None = field(default=None, repr=False, compare=False)

    def with_overrides(self, overrides: Overrides) -> Plan:
        """Returns the cheapest plan that obeys `overrides`. Uses known costs and measures nothing.

        Args:
            overrides: {glob of layer names: primitive name}.
        Raises: torchalgo.Error if the plan is from a file, or if an override is not possible.
        """
        if self.resolve is None:
            raise Error(
                "with_overrides: this plan was read from a file, so its costs are not in memory;"
                " use torchalgo.optimize(model, example_inputs, overrides=...)"
            )
        return self.resolve(overrides)

    def with_proof(self) -> Plan:
        """Returns this plan with a proof that no plan is cheaper than its bound; see check_plan.

        Raises: torchalgo.Error if the plan is from a file, if it was made by with_overrides, or if
            the proof is too large.
        """
        if self.prove is None:
            raise Error(
                "with_proof: this plan's costs are not in memory; use torchalgo.optimize(model,"
                " example_inputs).plan.with_proof()"
            )
        proof = self.prove(self)
        if len(proof.certificate) > MAX_PROOF_CHARACTERS:
            raise Error(
                f"with_proof: the certificate has {len(proof.certificate)} characters, a plan's"
                f" file has room for {MAX_PROOF_CHARACTERS}"
            )
        return dataclasses.replace(self, proof=proof)

    def to_json(self) -> str:
        """Returns one JSON object, with keys in the order of the fields.

        Equal plans give equal texts.
        """
        fields = {f.name: _encode(getattr(self, f.name)) for f in _written(self)}
        for name in _LEFT_OUT:
            if not getattr(self, name):
                del fields[name]
        return json.dumps(fields, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "plan") -> Plan:
        """Reads the text of `to_json`.

        Raises: torchalgo.Error with `source` and the wrong field.
        """
        return the_only_plan(plans_from_json(text, source), source)

    def save(self, path: str | Path) -> None:
        """Writes the plan to the file `path` as JSON. Raises torchalgo.Error if that fails."""
        save_plans([self], path)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Reads a file that `save` wrote.

        Raises: torchalgo.Error if the file cannot be read, is damaged, or holds several plans.
        """
        return the_only_plan(read_plans(path), str(path))

    def __reduce__(self) -> tuple[Callable[[str], Plan], tuple[str]]:
        return Plan.from_json, (self.to_json(),)

    def __str__(self) -> str:
        return "\n".join([*_table(self), "", *map(_wrapped, _summary(self))])


_IN_MEMORY = ("resolve", "prove")
_OF_ENERGY = ("objective", "energy", "predicted_uj", "regret_uj", "plan_uj", "baseline_uj")
# Fields that are written only if they are set.
_IF_SET = (
    *_OF_ENERGY, "second_us", "timed_on", "waited", "dims", "capture_error",
    "structure_version",
)  # fmt: skip
_LEFT_OUT = ("proof", "pairs", "in_context")  # not written if they are empty
_MAY_LACK = (  # fields that a file may lack, such as a file of an older version
    *_LEFT_OUT, "packed_bytes", "weight_bytes", "plain_weight_bytes", "workspace_bytes", "limits",
    *_IF_SET,
)  # fmt: skip


def _stored(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.name not in _IN_MEMORY]


def _written(value: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields that are written. Those of _IF_SET are written only if they are set."""
    return [
        f
        for f in _stored(type(value))
        if f.name not in _IF_SET or getattr(value, f.name) != f.default
    ]


# ---- one plan or several in a file ---------------------------------------------------------------


def plans_to_json(plans: Sequence[Plan]) -> str:
    """Returns one plan's own text, or {"schema": ..., "plans": [...]} for several plans."""
    if len(plans) == 1:
        return plans[0].to_json()
    each = ",\n".join(plan.to_json().rstrip() for plan in plans)
    return f'{{"schema": {SCHEMA}, "plans": [\n{each}\n]}}\n'


def plans_from_json(text: str | bytes, source: str = "plan") -> list[Plan]:
    """Reads the text of `plans_to_json`.

    Raises torchalgo.Error with `source` and the wrong field.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise Error(f"{source}: not a torchalgo plan, or truncated: {problem}") from None
    if not isinstance(data, dict) or "plans" not in data:
        return [_plan_from(data, source)]
    _check_schema(data, source)
    plans = data["plans"]
    if not isinstance(plans, list) or not plans or len(data) != 2:
        raise Error(f"{source}: expected a list of plans beside the schema, got {_short(data)}")
    return [_plan_from(item, f"{source}.plans[{i}]") for i, item in enumerate(plans)]


def the_only_plan(plans: Sequence[Plan], source: str) -> Plan:
    """Returns the only item of `plans`. Raises torchalgo.Error if there are more or none."""
    if len(plans) != 1:
        raise Error(
            f"{source}: holds {len(plans)} plans, expected one; torchalgo.load_plans reads them all"
        )
    return plans[0]


def save_plans(plans: Sequence[Plan], path: str | Path) -> None:
    """Writes the text of `plans_to_json` to `path`."""
    from torchalgo._base.write_file import write_file  # not at the top: this file also runs alone

    write_file(path, plans_to_json(plans), "save")


def read_plans(path: str | Path) -> list[Plan]:
    """Reads a file that `save_plans` wrote. Raises torchalgo.Error if that fails."""
    try:
        text = Path(path).read_bytes()
    except OSError as problem:
        raise Error(f"load_plan: cannot read {path}: {problem.strerror}") from None
    return plans_from_json(text, str(path))


def _plan_from(data: Any, source: str) -> Plan:
    if not isinstance(data, dict):
        raise Error(f"{source}: expected a JSON object, got {_short(data)}")
    _check_schema(data, source)
    plan: Plan = _decode(Plan, data, source)
    _check(plan, source)
    return plan


def _check_schema(data: dict[str, Any], source: str) -> None:
    if data.get("schema") != SCHEMA:
        raise Error(
            f"{source}: schema is {_short(data.get('schema'))}, this torchalgo reads {SCHEMA};"
            " make the plan again, or use the torchalgo that wrote it"
        )
    version = data.get("structure_version")
    if type(version) is int and version > STRUCTURE_VERSION:
        raise Error(
            f"{source}: the plan's structure hash has version {version}, this torchalgo knows"
            f" versions up to {STRUCTURE_VERSION}: update torchalgo, or make the plan again"
        )


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in _written(value)}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of a plan")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Converts JSON data to the type `kind` of a field.

    Raises: torchalgo.Error with `where` if the data has another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _decode(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            raise Error(f"{where}: expected one of {', '.join(args)}; got {_short(value)}")
        return value
    if origin is list and isinstance(value, list):
        return [_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return _decode_fields(kind, value, where)
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    expected = "an object" if dataclasses.is_dataclass(kind) else getattr(kind, "__name__", kind)
    raise Error(f"{where}: expected {expected}, got {_short(value)}")


def _decode_fields(cls: type, value: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(cls)
    names = [f.name for f in _stored(cls)]
    missing = [name for name in names if name not in value and name not in _MAY_LACK]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        raise Error(f"{where}: {what}; truncated, or not written by torchalgo")
    decoded = {n: _decode(hints[n], value[n], f"{where}.{n}") for n in names if n in value}
    return cls(**decoded)


def _check(plan: Plan, source: str) -> None:
    if plan.structure_version < 0:
        raise Error(f"{source}: structure_version is negative")
    names: dict[str, PlanNode] = {}
    for i, node in enumerate(plan.nodes):
        where = f"{source}.nodes[{i}] ({node.name})"
        if node.name in names:
            raise Error(f"{where}: the name occurs twice")
        if bool(node.primitive) == bool(node.absorbed_by):
            raise Error(f"{where}: needs either a primitive or absorbed_by")
        if node.absorbed_by and (anchor := names.get(node.absorbed_by)) is None:
            raise Error(f"{where}: absorbed_by {node.absorbed_by!r} is no earlier node")
        if node.absorbed_by and anchor and not anchor.primitive:
            raise Error(f"{where}: absorbed_by {node.absorbed_by!r}, which is absorbed itself")
        names[node.name] = node
    for i, transform in enumerate(plan.transforms):
        if transform.src == transform.dst:
            raise Error(f"{source}.transforms[{i}]: from {transform.src} to itself")
    ticks = [n.ticks for n in plan.nodes] + [t.ticks for t in plan.transforms]
    if min([*ticks, plan.cost_ticks, plan.lower_bound_ticks]) < 0:
        raise Error(f"{source}: a cost is negative")
    ticks += [abs(pair.ticks) for pair in plan.pairs]
    if max([*ticks, plan.cost_ticks, plan.lower_bound_ticks]) >= 1 << 63:
        raise Error(f"{source}: a cost is above 2^63 - 1 ticks")


# ---- print(plan) ---------------------------------------------------------------------------------

MAX_COLUMNS = 120
_HEAD = ("layer", "primitive", "layout", "fused", "{unit}", "runner-up", "regret {unit}")
_NUMERIC = (4, 6)
# Least widths of the columns that are cut, by column. The second dict applies if the first is not
# enough.
_SHRINK = ({0: 22, 1: 26, 5: 20, 3: 10}, {0: 12, 1: 18, 5: 10, 3: 6})


def _ms(us: float) -> str:
    return f"{us / 1000:.3f} ms" if us < 10_000 else f"{us / 1000:.1f} ms"


def _mj(uj: float) -> str:
    return f"{uj / 1000:.3f} mJ" if uj < 10_000 else f"{uj / 1000:.1f} mJ"


def spelled_value(objective: Objective, value: float) -> str:
    """Formats a value of the objective with its unit."""
    if objective == "latency":
        return _ms(value)
    return _mj(value) if objective == "energy" else f"{value / 1e6:.4g} mJ ms"


def unit_of(plan: Plan) -> str:
    """Returns the unit of the layers' costs."""
    return "us" if plan.energy is None else "uJ"


def cost_of(part: PlanNode | PlanTransform, plan: Plan) -> float:
    """Returns the predicted cost of a part of `plan`, in the unit of `unit_of`."""
    return part.predicted_us if plan.energy is None else part.predicted_uj or 0.0


def regret_of(node: PlanNode, plan: Plan) -> float | None:
    return node.regret_us if plan.energy is None else node.regret_uj


def value_of(plan: Plan) -> float:
    """Returns the plan's value of the objective in us, uJ or uJ x us."""
    if plan.energy is None:
        return plan.cost_us
    return plan.energy.cost_uj * (plan.cost_us if plan.objective == "edp" else 1.0)


def lower_bound_of(plan: Plan) -> float:
    """Returns a value that no plan goes below, in the unit of `value_of`."""
    return plan.lower_bound_us if plan.energy is None else plan.energy.lower_bound


def _predicted(plan: Plan) -> str:
    """Formats the plan's predicted time, and its energy if the objective counts energy."""
    if plan.energy is None:
        return _ms(plan.cost_us)
    watts = f" ({plan.energy.cost_uj / plan.cost_us:.3g} W)" if plan.cost_us else ""
    text = f"{_mj(plan.energy.cost_uj)} in {_ms(plan.cost_us)}{watts} by {plan.energy.meter}"
    return f"{spelled_value('edp', value_of(plan))}: {text}" if plan.objective == "edp" else text


def _layouts(src: str, dst: str) -> str:
    return src if src == dst else f"{src}>{dst}"


def _fused(problem: str) -> str:
    """Returns the steps of a call after its first operation, such as "+bias+relu > 3x3+bias"."""
    _, *more = problem.split("_k") if problem.startswith("chain_") else ["", problem]
    parts = []
    for i, filters in enumerate(more):
        size, plus, ops = filters.partition("+")
        window = re.search(r"r(\d+)s(\d+)", size) if i else None
        parts.append((f" > {window[1]}x{window[2]}" if window else "") + plus + ops)
    return "".join(parts)


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    after: dict[str, list[PlanTransform]] = {}
    for t in plan.transforms:
        after.setdefault(t.producer, []).append(t)
    rows: list[tuple[str, ...]] = []

    def add_transforms(producer: str) -> None:
        for t in after.pop(producer, []):
            cost = f"{cost_of(t, plan):.1f}"
            rows.append((f"  > {t.dst}", t.primitive, _layouts(t.src, t.dst), "", cost, "", ""))

    add_transforms("")
    for n in plan.nodes:
        if n.primitive:
            more = regret_of(n, plan)
            regret = "" if more is None else f"{more:.1f}"
            cost = f"{cost_of(n, plan):.1f}"
            cost += "?" if n.cost_source in ("bound", "model") else ""
            layouts = _layouts(n.src, n.dst)
            rival, _, pair = n.runner_up.partition(" ")
            rival_src, arrow, rival_dst = pair.partition("->")
            runner_up = f"{rival} {_layouts(rival_src, rival_dst)}" if arrow else n.runner_up
            rows.append((n.name, n.primitive, layouts, _fused(n.problem), cost, runner_up, regret))
        add_transforms(n.name)
    for producer in list(after):
        add_transforms(producer)
    return rows


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    left = (width - 2) // 2
    return text[:left] + ".." + text[len(text) - (width - 2 - left) :]


def _table(plan: Plan) -> list[str]:
    rows = [tuple(title.format(unit=unit_of(plan)) for title in _HEAD), *_rows(plan)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    room = MAX_COLUMNS - 2 * (len(widths) - 1)
    for least in _SHRINK:
        while sum(widths) > room and (loose := [i for i in least if widths[i] > least[i]]):
            widths[max(loose, key=lambda i: widths[i])] -= 1
    lines = []
    for row in rows:
        cells = [_cut(cell, widths[i]) for i, cell in enumerate(row)]
        sides = [str.rjust if i in _NUMERIC else str.ljust for i in range(len(cells))]
        placed = [side(c, w) for side, c, w in zip(sides, cells, widths, strict=True)]
        lines.append("  ".join(placed).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _summary(plan: Plan) -> list[str]:
    convs = sum(n.problem.startswith(("fwd_", "bwd_", "chain_")) for n in plan.nodes)
    fused = sum(bool(n.absorbed_by) for n in plan.nodes)
    lines = [
        f"{convs} convolutions, {len(plan.nodes) - convs} other planned nodes ({fused} absorbed),"
        f" {len(plan.transforms)} layout transforms",
        _proof(plan),
    ]
    if plan.weight_bytes is not None:
        lines.append(_memory_line(plan))
    lines += [f"limit: {name} of at most {limit:g}" for name, limit in plan.limits.items()]
    if plan.in_context is not None:
        lines += _context_lines(plan.in_context)
    if plan.comparisons:
        lines.append("from the same costs:")
        own = value_of(plan)
        for name, value in plan.comparisons.items():
            gain = f" ({value / own:.3f}x this plan)" if own else ""
            text = spelled_value(plan.objective, value)
            lines.append(f"  {name.replace('_', ' '):24} {text}{gain}")
    if plan.guard is not None:
        lines.append(guard_line(plan.guard))
    if plan.rel_error is not None:
        text = f"outputs: relative L2 {plan.rel_error:.1e} to the model as it was given"
        if plan.capture_error is not None:
            text += f" ({plan.capture_error:.1e} before planning)"
        lines.append(text)
    lines += _listed("quarantined", [(_candidate(q), q.reason) for q in plan.quarantined])
    lines += _listed("left alone", [(a.name, a.note) for a in plan.left_alone])
    where = ", ".join(f"{key} {value}" for key, value in plan.environment.items())
    return [*lines, where] if where else lines


def _wrapped(line: str) -> str:
    indent = " " * (4 if line.startswith(" ") else 2)
    return textwrap.fill(line, MAX_COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def _proof(plan: Plan) -> str:
    measured = ""
    if plan.guard is not None and plan.guard.rounds:
        measured = f", measured {_ms(plan.guard.plan_us)}"
    ties = f"; {plan.ties} layer{'s' * (plan.ties != 1)} tied within noise"
    if plan.objective == "edp":  # the regrets of layers do not exist for a product of sums
        ties = ""
    if plan.status == "optimal":
        is_guessed = any(node.cost_source == "model" for node in plan.nodes)
        kind = "partly predicted" if is_guessed else "measured"
        head = f"optimal for these {kind}, additive costs ({plan.method})"
    else:
        own = value_of(plan)
        gap = 100 * (1 - lower_bound_of(plan) / own) if own else 0.0
        head = f"feasible, at most {gap:.2f} % above the optimum of these costs ({plan.method})"
    return f"{head}; predicted {_predicted(plan)}{measured}{ties}"


def _context_lines(context: InContext) -> list[str]:
    def common(kind: str) -> str:
        call = context.call_us.get(kind, 0.0)
        return f"{kind} {context.factors[kind]:.2f}x" + (f" + {call:.1f} us" if call >= 0.1 else "")

    lines = [
        f"in the net: {_ms(context.measured_us)} a call, {_ms(context.corrected_us)} expected with"
        f" corrected costs; its ops take {_ms(context.ops_us)} there, {_ms(context.alone_us)} alone"
        f" ({', '.join(map(common, context.factors)) or 'no op was seen'}), all else"
        f" {_ms(context.rest_us)}",
        f"  plan {context.kept} of {context.rounds} timed there runs; {context.outcome}",
    ]
    far = [op for op in context.ops if abs(op.measured_us - op.expected_us) > op.expected_us / 20]
    far.sort(key=lambda op: (-abs(op.measured_us - op.expected_us), op.name))
    for op in far[:3]:
        lines.append(
            f"  {op.name}: {op.measured_us:.1f} us, {op.expected_us:.1f} as its kind,"
            f" {op.alone_us:.1f} alone"
        )
    return lines


def format_bytes(count: int) -> str:
    """Formats a number of bytes in B, kB (1000 bytes) or MB."""
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1e3:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"


def _memory_line(plan: Plan) -> str:
    text = f"memory: {format_bytes(plan.weight_bytes or 0)} of packed weights"
    if plan.plain_weight_bytes is not None:
        text += f" beside {format_bytes(plan.plain_weight_bytes)} of the model's own"
    if plan.workspace_bytes is not None:
        text += f"; workspace of one primitive at most {format_bytes(plan.workspace_bytes)}"
    return text


def runs_text(guard: GuardVerdict) -> str:
    """Returns a text that names what runs, such as "the plan runs"."""
    return f"the {guard.runs.replace('single_layout', 'plan in one layout')} runs"


def when_timed(guard: GuardVerdict) -> str:
    """Returns a note for a verdict that is stored or disturbed; empty for a new one."""
    if guard.timed_on:
        return f"; timed on {guard.timed_on}, --fresh times it again"
    if guard.is_disturbed:
        return f"; other programs ran {guard.waited:.0%} of the time, so this is not kept"
    return ""


def guard_line(guard: GuardVerdict) -> str:
    if not guard.rounds:
        return f"guard: {guard.reason or guard.verdict}; {runs_text(guard)}"
    if guard.plan_uj is not None and guard.baseline_uj is not None:
        words = {"faster": "less than", "slower": "more than"}
        beside = words.get(guard.verdict, f"{guard.verdict} beside")
        return (
            f"guard: {guard.objective} {beside} {guard.baseline}: {_mj(guard.plan_uj)} in"
            f" {_ms(guard.plan_us)} against {_mj(guard.baseline_uj)} in {_ms(guard.baseline_us)},"
            f" ratio {guard.ratio:.3f} [{guard.low:.3f}, {guard.high:.3f}] in {guard.rounds}"
            f" rounds; {runs_text(guard)}{when_timed(guard)}"
        )
    text = (
        f"guard: {guard.verdict} beside {guard.baseline}: {_ms(guard.plan_us)} against"
        f" {_ms(guard.baseline_us)}, ratio {guard.ratio:.3f} [{guard.low:.3f}, {guard.high:.3f}]"
        f" in {guard.rounds} rounds; {runs_text(guard)}{when_timed(guard)}"
    )
    if guard.second_us is not None:
        other = "plan" if guard.runs == "single_layout" else "best plan in one layout"
        text += f"; the {other} took {_ms(guard.second_us)}"
    return f"{text} ({guard.reason})" if guard.reason else text


def _candidate(q: Quarantined) -> str:
    return f"{q.primitive} {_layouts(q.src, q.dst)} {q.problem}"


def _listed(title: str, items: list[tuple[str, str]]) -> list[str]:
    if not items:
        return []
    lines = [f"{title}: {len(items)}"]
    lines += [f"  {name or 'the model'}: {note}" for name, note in items[:8]]
    return [*lines, f"  and {len(items) - 8} more"] if len(items) > 8 else lines


if __name__ == "__main__":
    import sys

    print(*read_plans(sys.argv[1]), sep="\n\n")
