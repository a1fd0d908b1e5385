# SPDX-License-Identifier: BSD-3-Clause
"""Plans under a bound of the error: against brute force and a greedy search, on small graphs.

All times and errors are drawn, so every machine has the same candidates in bf16.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchalgo
from support.fake_bench import FakeBench
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.sensitivities import Sensitivity

TICKS = 1 / 1024  # of a tick, in ns
X = torch.rand(1, 8, 6, 6)
CONVOLUTIONS = (
    ("aten.conv", "nchw", "nchw"),
    ("cpu.direct", "nChw16c", "nChw16c"),
    ("cpu.bf16_conv", "nhwc.bf16", "nhwc.bf16"),
    ("cpu.bf16_conv", "nhwc.bf16", "nhwc"),
)
SUMS = (
    ("aten.add", "nchw", "nchw"),
    ("cpu.add", "nChw16c", "nChw16c"),
    ("cpu.add", "nhwc.bf16", "nhwc.bf16"),
)
Choice = tuple[_C.Candidate, ...]


class RandomNet(nn.Module):
    """Convolutions and sums, each of any results before it. All results have the same shape."""

    def __init__(self, draw: random.Random, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        self.inputs: list[tuple[int, ...]] = []
        for i in range(layers):
            if i > 1 and draw.random() < 0.4:
                self.inputs.append(tuple(draw.sample(range(1, i + 1), 2)))
                continue
            size, dilation = draw.choice((1, 3, 5)), draw.choice((1, 2))
            pad = dilation * (size // 2)
            self.inputs.append((draw.randint(max(0, i - 1), i),))
            self.convs.append(nn.Conv2d(8, 8, size, padding=pad, dilation=dilation))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        values, convs = [x], iter(self.convs)
        for inputs in self.inputs:
            given = [values[i] for i in inputs]
            values.append(given[0] + given[1] if len(given) == 2 else next(convs)(given[0]))
        read = {i for inputs in self.inputs for i in inputs}
        return [torch.tanh(v) for i, v in enumerate(values) if i and i not in read]


class DrawnBench(FakeBench):
    """Times and errors that are drawn for each candidate. Few different times make ties."""

    def __init__(self, seed: int, times: Sequence[int], cast_error: float = 0.0) -> None:
        super().__init__(self.time_ns)
        self.seed, self.times, self.cast_error = seed, times, cast_error

    def drawn(self, problem: str, p: _C.Primitive) -> random.Random:
        return random.Random(f"{self.seed} {problem} {p.name} {p.src} {p.dst}")

    def time_ns(self, problem: str, p: _C.Primitive) -> float:
        us = self.drawn(problem, p).choice(self.times)
        if problem.startswith("transform_"):
            return 100.0 * us
        return 1000.0 * us * (1 if _C.rounds_coarsely(problem, p) else 3)

    def error(self, problem: str, p: _C.Primitive) -> float:
        if problem.startswith("transform_"):
            return self.cast_error if "." in p.dst and "." not in p.src else 0.0
        size = 3e-3 if _C.rounds_coarsely(problem, p) else 1e-6
        return size * self.drawn(problem, p).uniform(0.5, 1.5)

    def check(
        self, problem: str, primitives: Sequence[_C.Primitive], bound: float
    ) -> list[tuple[float, str]]:
        return [(self.error(problem, p), "") for p in primitives]


class Value(NamedTuple):
    """A candidate's part of the objective and of the bounded sum."""

    cost: float
    square: float


@dataclass
class Case:
    """A drawn graph with its candidates, and the same sums as the planner's, written plainly."""

    seed: int
    layers: int = 6
    times: Sequence[int] = range(1, 100)
    without_aten: bool = False
    cast_error: float = 0.0
    trees: dict[Any, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        net = RandomNet(draw, self.layers).eval()
        self.graph = _C.import_graph(freeze_model(net, (X,))._c, (X,)).graph
        nodes = self.graph.nodes
        self.bench = DrawnBench(self.seed, self.times, self.cast_error)
        by_anchor = [self._offered(n, node) for n, node in enumerate(nodes)]
        self.found = _C.Candidates(by_anchor)
        self.planned = [own for own in by_anchor if own]
        self.tuning = Tuning(self.graph, self.found, {}, TuneSettings(), bench=self.bench.bench())
        self.sensitivities = [
            Sensitivity(
                math.exp(draw.gauss(-1, 1)),
                math.exp(draw.gauss(0, 1)) if (node.problem or "").startswith("fwd_") else None,
            )
            for node in nodes
        ]
        self.changes: dict[tuple[str, str], float] = {}
        for t in self.tuning.transforms:
            key, ns = (t.primitive.src, t.primitive.dst), self.bench.time_ns(t.problem, t.primitive)
            self.changes[key] = min(self.changes.get(key, math.inf), ns)

    def _offered(self, n: int, node: _C.Node) -> list[_C.Candidate]:
        if node.problem is None:
            return []
        rows = CONVOLUTIONS if node.problem.startswith("fwd_") else SUMS
        rows = (
            rows if node.problem.startswith(("fwd_", "add_")) else (("aten.tanh", "nchw", "nchw"),)
        )
        kept = [row for row in rows if not (self.without_aten and row[0] == "aten.conv")]
        return [
            _C.Candidate([n], node.problem, _C.Primitive(*row), list(node.inputs)) for row in kept
        ]

    # ---- the planner ---------------------------------------------------------------------------

    def limits(self, bound: float) -> Limits:
        return Limits.of(self.tuning).predicting(self.sensitivities, bound)

    # ---- brute force -----------------------------------------------------------------------------

    def square(self, c: _C.Candidate) -> float:
        """The square of a candidate's error times its sensitivity; 0 for PyTorch in f32."""
        own, to = self.bench.error(c.problem, c.primitive) ** 2, self.sensitivities[c.covers[-1]]
        if not _C.rounds_coarsely(c.problem, c.primitive):
            return 0.0 if c.primitive.name.startswith("aten.") else own * to.result**2
        reads, writes = "." in c.primitive.src + c.primitive.dst, "." in c.primitive.dst
        parts = reads + writes + (to.weights is not None)
        counts = writes or to.weights is None
        return own * (to.result**2 * counts + (to.weights or 0.0) ** 2) / parts

    def tree(self, have: frozenset[str], wanted: frozenset[str], is_exact: bool) -> float:
        if wanted <= have:
            return 0.0
        key = have, wanted, is_exact
        if key not in self.trees:
            self.trees[key] = min(
                (
                    ns + self.tree(have | {dst}, wanted, is_exact)
                    for (src, dst), ns in self.changes.items()
                    if src in have and dst not in have and not (is_exact and src == "nhwc.bf16")
                ),
                default=math.inf,
            )
        return self.trees[key]

    def value(self, choice: Choice) -> Value:
        written = dict.fromkeys(self.graph.inputs, "nchw")
        read: dict[int, set[str]] = {}
        for value in self.graph.outputs:
            read.setdefault(value, set()).add("nchw")
        for node in self.graph.nodes:
            if node.problem is None:
                for value in node.inputs:
                    read.setdefault(value, set()).add("nchw")
                for value in node.outputs:
                    written[value] = "nchw"
        cost, square = 0.0, sum(map(self.square, choice))
        for c in choice:
            cost += self.bench.time_ns(c.problem, c.primitive)
            written[self.graph.nodes[c.covers[-1]].outputs[0]] = c.primitive.dst
            for value in c.inputs:
                read.setdefault(value, set()).add(c.primitive.src)
        for value, wanted in read.items():
            layout = written[value]
            cost += self.tree(frozenset([layout]), frozenset(wanted), layout != "nhwc.bf16")
            producer = self.graph.values[value].producer
            if "nhwc.bf16" in wanted - {layout} and producer >= 0:
                square += (self.cast_error * self.sensitivities[producer].result) ** 2
        return Value(cost, square)

    def choice_of(self, native: _C.Plan) -> Choice:
        names = {node.name: repr(node.primitive) for node in native.nodes}
        return tuple(
            next(c for c in own if repr(c.primitive) == names[self.graph.nodes[c.covers[0]].name])
            for own in self.planned
        )

    def all_values(self) -> list[Value]:
        return [self.value(choice) for choice in itertools.product(*self.planned)]

    # ---- greedy ----------------------------------------------------------------------------------

    def greedy(self, limit: float) -> float:
        """Starts in f32, and switches the layer that saves most time per squared error."""
        own = [
            [c for c in list_ if not _C.rounds_coarsely(c.problem, c.primitive)]
            for list_ in self.planned
        ]
        choice = min(itertools.product(*own), key=lambda choice: self.value(choice).cost)
        while True:
            now = self.value(choice)
            steps = []
            for i, list_ in enumerate(self.planned):
                for c in list_:
                    other = (*choice[:i], c, *choice[i + 1 :])
                    new = self.value(other)
                    if new.cost < now.cost and new.square <= limit:
                        rate = (now.cost - new.cost) / max(new.square - now.square, 1e-30)
                        steps.append((rate, -i, list_.index(c), other))
            if not steps:
                return now.cost
            choice = max(steps)[3]


def cost_ns(native: _C.Plan) -> float:
    return native.cost * TICKS


def cheapest(values: Sequence[Value], limit: float) -> float:
    return min((v.cost for v in values if v.square <= limit), default=math.inf)


def bounds_of(case: Case, values: Sequence[Value]) -> Iterator[float]:
    """Bounds between the errors of the fastest plan and those of the most exact one."""
    free = min(values)
    least = min(v.square for v in values)
    for share in (1.5, 0.9, 0.6, 0.3, 0.1, 0.01):
        yield math.sqrt(least + share * (free.square - least))
    for value in random.Random(case.seed).sample(values, 3):  # bounds that a plan meets exactly
        yield math.sqrt(value.square)


def assert_cheapest(native: _C.Plan, values: Sequence[Value], limit: float) -> None:
    # The planner rounds each square up, by one part in 2**30 of the limit at most.
    assert cost_ns(native) <= cheapest(values, limit * (1 - 1e-8))
    assert cost_ns(native) >= cheapest(values, limit * (1 + 1e-12))


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_the_cheapest_that_keeps_the_sum_of_squares(seed: int) -> None:
    # Few different times give many plans of equal costs.
    case = Case(seed, layers=4 + seed % 4, times=range(1, 100) if seed < 4 else (1, 2, 4))
    values = case.all_values()
    costs = []
    for bound in bounds_of(case, values):
        limits = case.limits(bound)
        native = limits.settle()
        assert_cheapest(native, values, bound**2)
        own = case.value(case.choice_of(native))
        assert cost_ns(native) == own.cost and own.square <= bound**2 * (1 + 1e-12)
        assert limits.predict(native).error == pytest.approx(math.sqrt(own.square))
        costs.append(native.cost)
    assert costs[0] * TICKS < min(values).cost * (1 + 1e-9) < costs[5] * TICKS


def test_casts_count_and_plans_keep_the_bound_with_them() -> None:
    ratios, misses = [], 0
    for seed in range(3):
        case = Case(seed, layers=5, cast_error=4e-3)
        values = case.all_values()
        for bound in bounds_of(case, values):
            limits = case.limits(bound)
            native = limits.settle()
            own = case.value(case.choice_of(native))
            assert limits.predict(native).error == pytest.approx(math.sqrt(own.square))
            assert own.square <= bound**2 * (1 + 1e-12)
            assert cost_ns(native) >= cheapest(values, bound**2 * (1 + 1e-12))
            ratios.append(cost_ns(native) / cheapest(values, bound**2))
            first = case.choice_of(case.tuning.settle(limits=limits))
            misses += case.value(first).square > bound**2  # the solver does not know its casts
    assert misses > 2
    assert sum(ratios) / len(ratios) < 1.3  # plans are not the cheapest if casts decide


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_that_missed_the_bound_makes_room_for_its_gain(seed: int) -> None:
    case = Case(seed)
    values = case.all_values()
    bound = next(bounds_of(case, values))
    limits = case.limits(bound)
    first = limits.settle()
    missed = 3 * limits.predict(first).error
    tighter = limits.tightened(first, missed, missed / 2)
    assert tighter is not None and tighter.gain == pytest.approx(3)
    assert_cheapest(tighter.settle(), values, (missed / 2 / 3) ** 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_bound_below_the_least_possible_sum_is_an_error_that_tells_it(seed: int) -> None:
    case = Case(seed, without_aten=True)
    values = case.all_values()
    least = min(v.square for v in values)
    assert least > 0
    native = case.limits(math.sqrt(least) * 1.001).settle()
    assert_cheapest(native, values, least * 1.001**2)
    with pytest.raises(torchalgo.Error, match="sum of squared errors of at most") as raised:
        case.limits(math.sqrt(least) * 0.9).settle()
    found = re.search(r"at least ([0-9.e-]+)", str(raised.value))
    assert found and float(found[1]) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("seed", range(20, 24))
def test_no_greedy_choice_is_cheaper(seed: int) -> None:
    case = Case(seed)
    values = case.all_values()
    for bound in bounds_of(case, values):
        assert cost_ns(case.limits(bound).settle()) <= case.greedy(bound**2 * (1 - 1e-8))
