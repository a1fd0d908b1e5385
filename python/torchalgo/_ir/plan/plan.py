# SPDX-License-Identifier: BSD-3-Clause
"""The plan, its file, and the checks of a file that is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchalgo._base.read_file import read_file
from torchalgo._base.write_file import write_file
from torchalgo._C import STRUCTURE_VERSION, Error

from .json_codec import IF_SET, IN_MEMORY, MAY_LACK, decode, encode, parse_json, shorten
from .parts import (
    GuardVerdict,
    LeftAlone,
    Objective,
    PairCost,
    PlanEnergy,
    PlanInput,
    PlanNode,
    PlanProof,
    PlanTransform,
    Quarantined,
)
from .text import plan_line, plan_text
from .text_table import ShownAsText

SCHEMA = 1
DROPPED_FIELDS = ("in_context",)  # older files have them; nothing reads them
MAX_PROOF_CHARACTERS = 1 << 24  # most characters of a certificate in a plan's file

Overrides = Mapping[str, str]


@dataclass(frozen=True)
class Plan(ShownAsText):
    """The primitives and layout changes of a model, with their costs. `print(plan)` explains it.

    Equal plans compare equal. Ticks are 1/1024 ns. If the objective is energy, ticks are 1/1024 nJ,
    and lower_bound_us is 0, since nothing is proven about the time.

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
    # Predicted values of weaker planners, in us or uJ as the objective.
    comparisons: dict[str, float] = field(default_factory=dict)
    ties: int = 0  # layers whose runner-up is within noise
    # Relative L2 error of the outputs of the planned module, and of the frozen module, against the
    # original model.
    rel_error: float | None = None
    capture_error: float | None = field(default=None, metadata=IF_SET)
    # The bound of rel_error, and its predicted value; None if no layer may have a coarser type.
    max_error: float | None = field(default=None, metadata=IF_SET)
    predicted_error: float | None = field(default=None, metadata=IF_SET)
    # The largest one for the inputs that optimize(validation=) was given.
    validation_error: float | None = field(default=None, metadata=IF_SET)
    # The largest error of a single output, relative to its size plus the median size of its tensor.
    worst_error: float | None = field(default=None, metadata=IF_SET)
    # Bytes of all nodes; None if not written. The model's own weights stay beside the packed ones.
    weight_bytes: int | None = field(default=None, metadata=MAY_LACK)  # packed weights
    # The model's own weights, without biases.
    plain_weight_bytes: int | None = field(default=None, metadata=MAY_LACK)
    # The largest workspace of a primitive.
    workspace_bytes: int | None = field(default=None, metadata=MAY_LACK)
    # Tensors, workspaces and weights of the plan as a C++ program; None if this has no limit.
    memory_bytes: int | None = field(default=None, metadata=IF_SET)
    # On sums over all nodes.
    limits: dict[str, float] = field(default_factory=dict, metadata=MAY_LACK)
    # Why nothing proves the plan's lower bound; empty if the limits do not exclude a better plan.
    unproven: str = field(default="", metadata=IF_SET)
    guard: GuardVerdict | None = None
    quarantined: list[Quarantined] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    # How the model was read and compared, if this was not as usual.
    notes: list[str] = field(default_factory=list, metadata=IF_SET)
    # Costs of pairs of choices, which are part of the cost. Only plans of older versions have them.
    pairs: list[PairCost] = field(default_factory=list, metadata=IF_SET)
    proof: PlanProof | None = field(default=None, metadata=IF_SET)  # only in plans of with_proof
    objective: Objective = field(default="latency", metadata=IF_SET)
    # None if the plan is for latency.
    energy: PlanEnergy | None = field(default=None, metadata=IF_SET)
    # The version of structure_hash; files of version 1 lack this field.
    structure_version: int = field(default=1, metadata=IF_SET)
    schema: int = SCHEMA
    # `resolve` plans again, and `prove` makes the proof. Both need the costs in memory, so that a
    # plan from a file has neither.
    resolve: Callable[[Overrides], Plan] | None = field(
        default=None, repr=False, compare=False, metadata=IN_MEMORY
    )
    prove: Callable[[Plan], PlanProof] | None = field(
        default=None, repr=False, compare=False, metadata=IN_MEMORY
    )

    @property
    def unmeasured(self) -> int:
        """The number of calls whose costs were not measured. Views cost nothing."""
        nodes = (node.cost_source not in ("measured", "construction") for node in self.nodes)
        return sum(nodes) + sum(change.cost_source != "measured" for change in self.transforms)

    def with_overrides(self, overrides: Overrides) -> Plan:
        """Returns the cheapest plan that obeys `overrides`. Uses known costs and measures nothing.

        Args:
            overrides: {glob of layer names: primitive name}.
        Raises: torchalgo.Error if the plan is from a file, or if an override is not possible.
        """
        if self.resolve is None:
            raise Error(
                "TA2304 with_overrides: this plan was read from a file, so its costs are not in"
                " memory; use torchalgo.optimize(model, example_inputs, overrides=...)"
            )
        return self.resolve(overrides)

    def with_proof(self) -> Plan:
        """Returns this plan with a proof that no plan is cheaper than its bound; see check_plan.

        Raises: torchalgo.Error if the plan is from a file, if it was made by with_overrides, or if
            the proof is too large.
        """
        if self.prove is None:
            raise Error(
                "TA2304 with_proof: this plan's costs are not in memory; use"
                " torchalgo.optimize(model, example_inputs).plan.with_proof()"
            )
        proof = self.prove(self)
        if len(proof.certificate) > MAX_PROOF_CHARACTERS:
            raise Error(
                f"TA2402 with_proof: the certificate has {len(proof.certificate)} characters, a"
                f" plan's file stores at most {MAX_PROOF_CHARACTERS}"
            )
        return dataclasses.replace(self, proof=proof)

    def to_json(self) -> str:
        """Returns one JSON object, with keys in the order of the fields.

        Equal plans give equal texts.
        """
        return json.dumps(encode(self), indent=1, allow_nan=False) + "\n"

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

    def __repr__(self) -> str:
        return f"<torchalgo.{type(self).__name__}: {plan_line(self)}>"

    def __str__(self) -> str:
        return plan_text(self)


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
    data = parse_json(text, source, "plan")
    if not isinstance(data, dict) or "plans" not in data:
        return [_plan_from(data, source)]
    _check_schema(data, source)
    plans = data["plans"]
    if not isinstance(plans, list) or not plans or len(data) != 2:
        raise Error(
            f"TA2101 {source}: expected a list of plans beside the schema, got {shorten(data)}"
        )
    return [_plan_from(item, f"{source}.plans[{i}]") for i, item in enumerate(plans)]


def the_only_plan(plans: Sequence[Plan], source: str) -> Plan:
    """Returns the only item of `plans`. Raises torchalgo.Error if there are more or none."""
    if len(plans) != 1:
        raise Error(
            f"TA2102 {source}: got {len(plans)} plans, expected one; torchalgo.load_plans reads"
            " them all"
        )
    return plans[0]


def save_plans(plans: Sequence[Plan], path: str | Path) -> None:
    """Writes the text of `plans_to_json` to `path`."""
    write_file(path, plans_to_json(plans), "save")


def read_plans(path: str | Path) -> list[Plan]:
    """Reads a file that `save_plans` wrote. Raises torchalgo.Error if that fails."""
    return plans_from_json(read_file(path, "load_plan"), str(path))


def _plan_from(data: Any, source: str) -> Plan:
    if not isinstance(data, dict):
        raise Error(f"TA2101 {source}: expected a JSON object, got {shorten(data)}")
    _check_schema(data, source)
    known = {key: value for key, value in data.items() if key not in DROPPED_FIELDS}
    plan: Plan = decode(Plan, known, source)
    _check(plan, source)
    return plan


def _check_schema(data: dict[str, Any], source: str) -> None:
    if data.get("schema") != SCHEMA:
        raise Error(
            f"TA2008 {source}: schema is {shorten(data.get('schema'))}, this torchalgo reads"
            f" {SCHEMA}; make the plan again, or use the torchalgo that wrote it"
        )
    version = data.get("structure_version")
    if type(version) is int and version > STRUCTURE_VERSION:
        raise Error(
            f"TA2008 {source}: the plan's structure hash has version {version}, this torchalgo"
            f" knows versions up to {STRUCTURE_VERSION}: update torchalgo, or make the plan again"
        )


def _check(plan: Plan, source: str) -> None:
    if plan.structure_version < 0:
        raise Error(f"TA2101 {source}: structure_version is negative, expected 1 or more")
    names: dict[str, PlanNode] = {}
    for i, node in enumerate(plan.nodes):
        where = f"{source}.nodes[{i}] ({node.name})"
        if node.name in names:
            raise Error(f"TA2202 {where}: the name occurs twice, expected it once")
        if bool(node.primitive) == bool(node.absorbed_by):
            raise Error(f"TA2202 {where}: needs either a primitive or absorbed_by")
        if node.absorbed_by and (anchor := names.get(node.absorbed_by)) is None:
            raise Error(
                f"TA2202 {where}: absorbed_by is {node.absorbed_by!r}, expected an earlier node"
            )
        if node.absorbed_by and anchor and not anchor.primitive:
            raise Error(
                f"TA2202 {where}: absorbed_by is {node.absorbed_by!r}, which is absorbed itself"
            )
        names[node.name] = node
    for i, transform in enumerate(plan.transforms):
        if transform.src == transform.dst:
            raise Error(
                f"TA2202 {source}.transforms[{i}]: from {transform.src} to itself, expected two"
                " layouts"
            )
    guard = plan.guard
    if guard is not None and guard.rounds and not min(guard.low, guard.ratio, guard.high) > 0:
        raise Error(f"TA2202 {source}.guard: a ratio of times is not above 0")
    times = [n.predicted_us for n in plan.nodes] + [t.predicted_us for t in plan.transforms]
    if min(times, default=0.0) < 0:
        raise Error(f"TA2202 {source}: a predicted_us is negative, expected 0 or more")
    ticks = [n.ticks for n in plan.nodes] + [t.ticks for t in plan.transforms]
    if min([*ticks, plan.cost_ticks, plan.lower_bound_ticks]) < 0:
        raise Error(f"TA2202 {source}: a cost is negative, expected 0 or more")
    ticks += [abs(pair.ticks) for pair in plan.pairs]
    if max([*ticks, plan.cost_ticks, plan.lower_bound_ticks]) >= 1 << 63:
        raise Error(f"TA2202 {source}: a cost exceeds 2^63 - 1 ticks")
