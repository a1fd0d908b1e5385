# SPDX-License-Identifier: BSD-3-Clause
"""The plan: which primitive computes each node, and where layouts change.

Data only: JSON, no pickle, code or paths. The file runs alone: `python plan.py net.plan.json`
prints a plan where torchalgo is not installed.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if typing.TYPE_CHECKING:
    from torchalgo._C import Error
else:
    try:
        from torchalgo._C import Error
    except ImportError:  # this file alone

        class Error(RuntimeError):
            """A plan that cannot be read."""


SCHEMA = 1
MAX_PROOF_CHARACTERS = 1 << 24  # of a certificate in a plan's file
TICKS_PER_US = 1024 * 1000

Layout = Literal["nchw", "nhwc", "nChw8c", "nChw16c"]
Overrides = Mapping[str, str]


@dataclass(frozen=True)
class PlanInput:
    """An input of the model, in call order; tensors inside lists and dicts count one by one."""

    shape: list[int]
    dtype: str
    layout: Layout


@dataclass(frozen=True)
class PlanNode:
    """The choice for one node; an absorbed one has no primitive and costs nothing of its own."""

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
    packed_bytes: int | None = None  # that it adds to the model's own weights; None: not written


@dataclass(frozen=True)
class PlanTransform:
    """A change of layout of one value, paid once whatever the number of readers."""

    value: str
    producer: str  # empty: an input of the model
    problem: str
    primitive: str
    src: Layout
    dst: Layout
    predicted_us: float
    ticks: int


@dataclass(frozen=True)
class GuardVerdict:
    """The plan beside the fastest baseline in paired rounds; ratio = plan / baseline (95 %)."""

    verdict: Literal["faster", "slower", "unclear", "not timed"]
    runs: Literal["plan", "baseline"]
    baseline: str
    plan_us: float
    baseline_us: float
    ratio: float
    low: float
    high: float
    rounds: int
    reason: str

    def to_json(self) -> str:
        return json.dumps(_encode(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> GuardVerdict:
        """Reads to_json's text. Raises Error naming what is wrong there."""
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as problem:
            raise Error(f"guard: no verdict, or truncated: {problem}") from None
        verdict: GuardVerdict = _decode(cls, data, "guard")
        return verdict


@dataclass(frozen=True)
class Quarantined:
    """A candidate that may not be chosen on this machine."""

    problem: str
    primitive: str
    src: Layout
    dst: Layout
    reason: str


@dataclass(frozen=True)
class LeftAlone:
    """A node that looks plannable and is not; an empty name speaks of the whole model."""

    name: str
    note: str


@dataclass(frozen=True)
class PlanProof:
    """What check_plan needs beside the plan; all of it is text and integers."""

    problem_hash: str  # SHA-256 of the PBQP that the graph and the costs make
    certificate: str  # that no plan is cheaper than the bound; docs/pbqp.md
    graph: str
    costs: dict[str, dict[str, int]]  # problem -> "primitive src->dst" -> ticks
    refused: list[list[str]]  # node, problem, "primitive src->dst": not allowed at that node


@dataclass(frozen=True)
class Plan:
    """What `optimize` decided and why. `print(plan)` shows it; equal plans compare equal."""

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
    comparisons: dict[str, float] = field(default_factory=dict)  # predicted us of weaker planners
    ties: int = 0  # layers whose runner-up is within noise
    rel_error: float | None = None  # relative L2 of the outputs to the frozen module
    # Of all nodes; None: not written. The model's own weights stay beside the packed ones.
    weight_bytes: int | None = None  # packed
    plain_weight_bytes: int | None = None  # without biases
    workspace_bytes: int | None = None  # the most of any primitive, which has it for its own call
    limits: dict[str, float] = field(default_factory=dict)  # on sums over the nodes
    guard: GuardVerdict | None = None
    quarantined: list[Quarantined] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    proof: PlanProof | None = None  # in the file only if asked for by with_proof
    schema: int = SCHEMA
    # Solves again from the costs that are in memory; a plan from a file has none.
    resolve: Callable[[Overrides], Plan] | None = field(default=None, repr=False, compare=False)
    prove: Callable[[Plan], PlanProof] | None = field(default=None, repr=False, compare=False)

    def with_overrides(self, overrides: Overrides) -> Plan:
        """The cheapest plan that obeys `overrides`, from costs already known; measures nothing."""
        if self.resolve is None:
            raise Error(
                "with_overrides: this plan was read from a file, so its costs are not in memory;"
                " use torchalgo.optimize(model, example_inputs, overrides=...)"
            )
        return self.resolve(overrides)

    def with_proof(self) -> Plan:
        """This plan with the proof that nothing is cheaper than its bound; see check_plan.

        Raises: torchalgo.Error for a plan from a file or with overrides made afterwards, and if the
            proof is too large.
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
        """One JSON object, keys in the order of the fields: the same plan gives the same text."""
        fields = {f.name: _encode(getattr(self, f.name)) for f in _stored(type(self))}
        if self.proof is None:
            del fields["proof"]
        return json.dumps(fields, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "plan") -> Plan:
        """Reads to_json's text. Raises Error naming `source`, the place and what is wrong there."""
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as problem:
            raise Error(f"{source}: not a torchalgo plan, or truncated: {problem}") from None
        if not isinstance(data, dict):
            raise Error(f"{source}: expected a JSON object, got {_short(data)}")
        if data.get("schema") != SCHEMA:
            raise Error(
                f"{source}: schema is {_short(data.get('schema'))}, this torchalgo reads {SCHEMA};"
                " make the plan again, or use the torchalgo that wrote it"
            )
        plan: Plan = _decode(cls, data, source)
        _check(plan, source)
        return plan

    def save(self, path: str | Path) -> None:
        """Writes to_json's text to `path`."""
        try:
            Path(path).write_text(self.to_json(), encoding="utf-8")
        except OSError as problem:
            raise Error(f"save: cannot write {path}: {problem.strerror}") from None

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Reads a file written by save."""
        try:
            text = Path(path).read_bytes()
        except OSError as problem:
            raise Error(f"load_plan: cannot read {path}: {problem.strerror}") from None
        return cls.from_json(text, str(path))

    def __reduce__(self) -> tuple[Callable[[str], Plan], tuple[str]]:
        return Plan.from_json, (self.to_json(),)

    def __str__(self) -> str:
        return "\n".join([*_table(self), "", *map(_wrapped, _summary(self))])


_IN_MEMORY = ("resolve", "prove")
_MAY_LACK = (  # in a file: not asked for, or written before there was one
    "proof", "packed_bytes", "weight_bytes", "plain_weight_bytes", "workspace_bytes", "limits",
)  # fmt: skip


def _stored(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.name not in _IN_MEMORY]


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of a plan")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, a type of the fields above; Error with the place if it is none."""
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
    if max([*ticks, plan.cost_ticks, plan.lower_bound_ticks]) >= 1 << 63:
        raise Error(f"{source}: a cost is above 2^63 - 1 ticks")


# ---- print(plan) ---------------------------------------------------------------------------------

MAX_COLUMNS = 120
_HEAD = ("layer", "primitive", "layout", "fused", "us", "runner-up", "regret us")
_NUMERIC = (4, 6)
_SHRINK = ({0: 22, 1: 26, 5: 20, 3: 10}, {0: 12, 1: 18, 5: 10, 3: 6})  # to what columns are cut


def _ms(us: float) -> str:
    return f"{us / 1000:.3f} ms" if us < 10_000 else f"{us / 1000:.1f} ms"


def _layouts(src: str, dst: str) -> str:
    return src if src == dst else f"{src}>{dst}"


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    after: dict[str, list[PlanTransform]] = {}
    for t in plan.transforms:
        after.setdefault(t.producer, []).append(t)
    rows: list[tuple[str, ...]] = []

    def add_transforms(producer: str) -> None:
        for t in after.pop(producer, []):
            us = f"{t.predicted_us:.1f}"
            rows.append((f"  > {t.dst}", t.primitive, _layouts(t.src, t.dst), "", us, "", ""))

    add_transforms("")
    for n in plan.nodes:
        if n.primitive:
            _, plus, fused = n.problem.partition("+")
            regret = "" if n.regret_us is None else f"{n.regret_us:.1f}"
            us = f"{n.predicted_us:.1f}" + ("?" if n.cost_source in ("bound", "model") else "")
            layouts = _layouts(n.src, n.dst)
            rival, _, pair = n.runner_up.partition(" ")
            rival_src, arrow, rival_dst = pair.partition("->")
            runner_up = f"{rival} {_layouts(rival_src, rival_dst)}" if arrow else n.runner_up
            rows.append((n.name, n.primitive, layouts, plus + fused, us, runner_up, regret))
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
    rows = [_HEAD, *_rows(plan)]
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
    convs = sum(n.problem.startswith(("fwd_", "bwd_")) for n in plan.nodes)
    fused = sum(bool(n.absorbed_by) for n in plan.nodes)
    lines = [
        f"{convs} convolutions, {len(plan.nodes) - convs} other planned nodes ({fused} absorbed),"
        f" {len(plan.transforms)} layout transforms",
        _proof(plan),
    ]
    if plan.weight_bytes is not None:
        lines.append(_memory_line(plan))
    lines += [f"limit: {name} of at most {limit:g}" for name, limit in plan.limits.items()]
    if plan.comparisons:
        lines.append("from the same costs:")
        for name, us in plan.comparisons.items():
            gain = f" ({us / plan.cost_us:.3f}x this plan)" if plan.cost_us else ""
            lines.append(f"  {name.replace('_', ' '):24} {_ms(us)}{gain}")
    if plan.guard is not None:
        lines.append(_guard_line(plan.guard))
    if plan.rel_error is not None:
        lines.append(f"outputs: relative L2 {plan.rel_error:.1e} to the frozen module")
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
    if plan.status == "optimal":
        is_guessed = any(node.cost_source == "model" for node in plan.nodes)
        kind = "partly predicted" if is_guessed else "measured"
        head = f"optimal for these {kind}, additive costs ({plan.method})"
    else:
        gap = 100 * (1 - plan.lower_bound_us / plan.cost_us) if plan.cost_us else 0.0
        head = f"feasible, at most {gap:.2f} % above the optimum of these costs ({plan.method})"
    return f"{head}; predicted {_ms(plan.cost_us)}{measured}{ties}"


def format_bytes(count: int) -> str:
    """Rounded to three digits or more."""
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


def _guard_line(guard: GuardVerdict) -> str:
    if not guard.rounds:
        return f"guard: {guard.reason or guard.verdict}; the {guard.runs} runs"
    text = (
        f"guard: {guard.verdict} beside {guard.baseline}: {_ms(guard.plan_us)} against"
        f" {_ms(guard.baseline_us)}, ratio {guard.ratio:.3f} [{guard.low:.3f}, {guard.high:.3f}]"
        f" in {guard.rounds} rounds; the {guard.runs} runs"
    )
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

    print(Plan.load(sys.argv[1]))
