# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a plan: its inputs, nodes and layout changes, and the facts about them."""

from __future__ import annotations

import json
import typing
from dataclasses import dataclass, field
from typing import Literal

from .json_codec import IF_SET, MAY_LACK, decode, encode, parse_json

TICKS_PER_US = 1024 * 1000
AS_GIVEN = "the model as it was given"  # the baseline of a training step
OF_OTHERS = "layers on PyTorch's threads"  # the limit of plans with torchalgo's kernels only
MOST_WAITING = 0.15  # part of the time; times of a process that waited longer are not kept

Layout = Literal["nchw", "nhwc", "nhwc.bf16", "nChw16c"]
LAYOUTS: tuple[Layout, ...] = typing.get_args(Layout)
Objective = Literal["latency", "energy"]
OBJECTIVES: tuple[Objective, ...] = typing.get_args(Objective)


def micro(ticks: int) -> float:
    """Converts ticks of 1/1024 ns to us, or ticks of 1/1024 nJ to uJ, with 3 decimals."""
    return round(ticks / TICKS_PER_US, 3)


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
    # None if not known, as in older files.
    dims: list[PlanDim] | None = field(default=None, metadata=IF_SET)


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
    # Bytes beside the model's own weights; None if not written.
    packed_bytes: int | None = field(default=None, metadata=MAY_LACK)
    # None if the plan is for latency.
    predicted_uj: float | None = field(default=None, metadata=IF_SET)
    regret_uj: float | None = field(default=None, metadata=IF_SET)
    # The predicted relative L2 of the outputs if no other call made an error.
    output_error: float | None = field(default=None, metadata=IF_SET)


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
    # None if the plan is for latency.
    predicted_uj: float | None = field(default=None, metadata=IF_SET)
    cost_source: Literal["measured", "model"] = field(default="measured", metadata=IF_SET)


@dataclass(frozen=True)
class PlanEnergy:
    """The prediction for a plan for "energy", as counted by `meter`."""

    meter: str
    cost_uj: float
    lower_bound: float  # of the energies of all plans, in uJ


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
    objective: Objective = field(default="latency", metadata=IF_SET)
    plan_uj: float | None = field(default=None, metadata=IF_SET)
    baseline_uj: float | None = field(default=None, metadata=IF_SET)
    # The time of the slower one of the plan and the best single-layout plan. None if only the plan
    # was timed.
    second_us: float | None = field(default=None, metadata=IF_SET)
    # The day, such as 2026-11-20, of a verdict from the database; empty if it was timed in this
    # call.
    timed_on: str = field(default="", metadata=IF_SET)
    # The part of the time in which the process waited for a processor, because other programs ran.
    waited: float = field(default=0.0, metadata=IF_SET)

    @property
    def is_disturbed(self) -> bool:
        """Returns whether other programs disturbed the times.

        Such times are not kept for later runs.
        """
        return self.waited > MOST_WAITING

    @property
    def is_of_step(self) -> bool:
        """Returns whether training steps were timed, and not calls of a model."""
        return self.baseline == AS_GIVEN

    def to_json(self) -> str:
        return json.dumps(encode(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> GuardVerdict:
        """Reads the text of `to_json`. Raises torchalgo.Error with the name of the wrong field."""
        verdict: GuardVerdict = decode(cls, parse_json(text, "guard", "verdict"), "guard")
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
    """An op that is left to PyTorch, and why. An empty name stands for the whole model.

    In older files, such an entry may be a note on how the model was read, see `Plan.notes`.
    """

    name: str
    note: str
    # In one call; None if it was not timed.
    measured_us: float | None = field(default=None, metadata=IF_SET)
    # The line of the model's code that calls it, such as "net.py:12 forward", without folders.
    # Empty if it is not known.
    source: str = field(default="", metadata=IF_SET)


@dataclass(frozen=True)
class PairCost:
    """The extra cost of a reader's primitive behind a certain primitive of the producer.

    Only plans of older versions have such costs. They are part of the plan's cost, and may be
    negative.
    """

    producer: str  # name of a node; empty for any
    producer_problem: str
    producer_primitive: str  # "primitive src->dst"
    reader: str
    reader_problem: str
    reader_primitive: str
    ticks: int


@dataclass(frozen=True)
class PlanProof:
    """The data that check_plan needs beside the plan. All of it is text and integers."""

    problem_hash: str  # SHA-256 of the PBQP of the graph and the costs
    certificate: str  # proves that no plan is cheaper than the bound; docs/pbqp.md
    graph: str
    costs: dict[str, dict[str, int]]  # problem -> "primitive src->dst" -> ticks
    refused: list[list[str]]  # node, problem, "primitive src->dst" that it must not use
    pairs: list[PairCost] = field(default_factory=list, metadata=IF_SET)  # all pairs of the PBQP
