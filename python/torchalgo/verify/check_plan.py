# SPDX-License-Identifier: BSD-3-Clause
"""The public torchalgo.check_plan: calls the independent checker, and tells what it trusted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.plan import TICKS_PER_US, PairCost, Plan, format_value
from torchalgo._ir.plan.text_table import ShownAsText
from torchalgo.verify.check_certificate import ProofError, as_proof_errors, require
from torchalgo.verify.check_claims import CostRows, check_claims, without_repeats


@dataclass(frozen=True)
class CheckedPlan(ShownAsText):
    """The result of `check_plan`: what is proven, and what is not. `print` shows both.

    Example:
        checked = torchalgo.check_plan(plan.with_proof())
        print(checked.is_optimal, checked.not_checked)
    """

    objective: str  # "latency" or "energy", as the plan says; not checked
    cost_ticks: int  # in 1/1024 ns or 1/1024 nJ
    lower_bound_ticks: int  # no plan that the trusted inputs allow costs less
    trusted: dict[str, str]  # graph, costs, refused, pairs -> "the caller" or "the plan's file"
    counts: dict[str, int]  # number of planned nodes, costs, refused candidates and pair costs
    not_checked: list[str]  # fields of the plan that no part of the proof covers

    @property
    def is_optimal(self) -> bool:
        """True if the plan's cost equals the proven lower bound."""
        return self.cost_ticks == self.lower_bound_ticks

    def __str__(self) -> str:
        cost, bound = (
            f"{ticks} ticks ({format_value(self.objective, ticks / TICKS_PER_US)})"  # type: ignore[arg-type]
            for ticks in (self.cost_ticks, self.lower_bound_ticks)
        )
        best = "it is optimal" if self.is_optimal else "it may not be optimal"
        whose: dict[str, list[str]] = {}
        for name, source in self.trusted.items():
            whose.setdefault(source, []).append(_WORDS[name].format(self.counts[name]))
        whose.setdefault("the plan's file", []).append(f"the objective ({self.objective})")
        return "\n".join(
            [
                f"proven: the plan fits the graph and costs {cost}",
                f"proven: no plan that is allowed costs less than {bound}; {best}",
                *(f"on trust, from {name}: {', '.join(what)}" for name, what in whose.items()),
                f"not checked: {', '.join(self.not_checked)}",
            ]
        )


_NOTHING: dict[str, Any] = {"refused": (), "pairs": ()}
_WORDS = {
    "graph": "the graph of {} planned nodes",
    "costs": "{} costs",
    "refused": "{} refused candidates",
    "pairs": "{} pair costs",
}


def check_plan(
    plan: Plan | Mapping[str, Any] | str | bytes,
    graph_text: str | None = None,
    cost_rows: CostRows | None = None,
    refused: Sequence[Sequence[str]] | None = None,
    pairs: Sequence[PairCost | Mapping[str, Any]] | None = None,
) -> CheckedPlan:
    """Checks a plan with its proof, by code that shares nothing with the planner.

    The check proves that the plan fits the graph and costs `cost_ticks`. It proves that no plan
    costs less than `lower_bound_ticks`, given the graph, the costs, the refused candidates and the
    costs of pairs. The plan is "optimal" only if both numbers are equal. docs/pbqp.md describes
    the method.

        print(torchalgo.check_plan(optimized.plan.with_proof()))

    Args:
        plan: the result of `plan.with_proof()`, or the text of its file.
        graph_text: the model's graph. None: the graph that came with the plan.
        cost_rows: costs as `{problem: {"primitive src->dst": ticks}}`, in ticks of 1/1024 ns, or of
            1/1024 nJ for an energy plan. None: the costs that came with the plan.
        refused: the candidates that a node may not run, each as
            `[node, problem, "primitive src->dst"]`. None: those that came with the plan, or none at
            all if `cost_rows` is given.
        pairs: costs of pairs of choices. None: the same as for `refused`.

    Returns: a CheckedPlan with the proven cost and bound, the inputs that were trusted, and the
        fields that were not checked.
    Raises: torchalgo.Error if the check fails. The text says what is false.
    """
    try:
        with as_proof_errors():
            data = _data_of(plan)
            own: dict[str, Any] = {"graph": graph_text, "costs": cost_rows, "refused": refused}
            own["pairs"] = None if pairs is None else [_pair_data(pair) for pair in pairs]
            own = {name: value for name, value in own.items() if value is not None}
            if graph_text is not None:
                _check_graph(data, graph_text)
            found = check_claims(data, **own)
            given = {**data["proof"], **(_NOTHING if "costs" in own else {}), **own}
            _check_graph(data, given["graph"])
            agreed = {"structure_hash", "structure_version", *_check_units(data)}
    except ProofError as error:
        raise Error(
            f"TA2403 check_plan: {error}{_hint(plan, cost_rows, refused, pairs)}"
        ) from error
    return CheckedPlan(
        objective=data.get("objective", "latency"),
        cost_ticks=found["cost_ticks"],
        lower_bound_ticks=found["lower_bound_ticks"],
        trusted=found["on trust, from"],
        counts={
            "graph": len(data["nodes"]),
            "costs": sum(map(len, given["costs"].values())),
            **{name: len(given.get(name, ())) for name in ("refused", "pairs")},
        },
        not_checked=[name for name in found["not checked"] if name not in agreed],
    )


def _pair_data(pair: PairCost | Mapping[str, Any]) -> Mapping[str, Any]:
    return dataclasses.asdict(pair) if isinstance(pair, PairCost) else pair


def _data_of(plan: Plan | Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    if isinstance(plan, Mapping):
        return dict(plan)
    text = plan if isinstance(plan, str | bytes) else plan.to_json()
    data: dict[str, Any] = json.loads(text, object_pairs_hook=without_repeats)
    return data


def _check_graph(data: Mapping[str, Any], graph_text: str) -> None:
    graph, version = _C.parse_graph(graph_text), data.get("structure_version", 1)
    require(type(version) is int, f"structure_version is {version!r}, expected a number")
    found, said = graph.structure_hash_of(version), data["structure_hash"]
    require(found == said, f"the plan was made for another graph: {said!r}, not {found!r}")


def _check_units(data: Mapping[str, Any]) -> set[str]:
    """Checks the costs in us or uJ against the ticks. Returns the names of the checked fields."""
    objective = data.get("objective", "latency")
    require(objective in ("latency", "energy"), f"no certificate is of {objective}")
    parts, unit = [*data["nodes"], *data["transforms"]], "us"
    said = {"cost_ticks": data["cost_us"], "lower_bound_ticks": data["lower_bound_us"]}
    if objective == "energy":
        energy, unit = data["energy"], "uj"
        said = {"cost_ticks": energy["cost_uj"], "lower_bound_ticks": energy["lower_bound"]}
    values = [(data[name], value) for name, value in said.items()]
    for exact, value in values + [(part["ticks"], part[f"predicted_{unit}"]) for part in parts]:
        require(value == round(exact / TICKS_PER_US, 3), f"{exact} ticks are not {value} {unit}")
    sums = {"cost_us", "lower_bound_us"} if unit == "us" else set()
    return {f"predicted_{unit}", *sums}


def _hint(plan: Any, cost_rows: Any, refused: Any, pairs: Any) -> str:
    """Returns a hint for a caller who passed costs only: what else the plan's file holds.

    Returns "" if the file holds nothing else, or the caller passed everything.
    """
    proof = plan.proof if isinstance(plan, Plan) else None
    if cost_rows is None or proof is None or not (proof.refused or proof.pairs):
        return ""
    if refused is not None and pairs is not None:
        return ""
    return (
        f". The plan's file has {len(proof.refused)} refused candidates and {len(proof.pairs)} pair"
        " costs; pass refused=plan.proof.refused, pairs=plan.proof.pairs to take them on trust"
    )
