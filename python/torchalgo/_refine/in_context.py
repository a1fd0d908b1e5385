# SPDX-License-Identifier: BSD-3-Clause
"""Times the ops of a plan inside the net, and corrects the costs by the differences.

The time of an op in a net differs from its time alone. Some reasons are common to all ops: memory
is allocated in the call, and other data pass through the caches. Other reasons are the op's own:
the op that ran before it, and the data that this left in the caches. Only the latter matter for a
choice. If the common part entered the costs of the timed ops, all other plans would look better.
The search would then change from plan to plan without end.

So each kind of op has a line, measured = factor * alone + call, which changes no choice. The
difference of an op to its line becomes the cost of a pair: this op's choice after the choice of the
node whose result it reads. The planner solves with these costs of pairs. The new plan is timed in
the same rounds as the old one, and the faster one is kept. This ends when there is no new plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchalgo import _C
from torchalgo._base.stats import cost_of_samples, is_faster
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._ir.overrides import COMPONENTWISE
from torchalgo._ir.plan import InContext, OpInContext
from torchalgo._measure.pairs import NOTHING, PairEnd, Pairs, admissible, native_pairs
from torchalgo._measure.tuning import Tuning
from torchalgo._refine.binding import Tuned, choices_of
from torchalgo._refine.net_times import (
    FEWEST_OPS,
    LEAST_PASSES,
    WARMUP,
    Line,
    NetTimes,
    Op,
    fit_line,
    kind_of,
    time_in_net,
)

# A difference to the line below this part of the op's cost is no correction.
LEAST_SHARE = 0.05
MOST_ROUNDS = 4  # the most plans after the first
RECORD = 2  # the version of stored results; records of other versions are not read
MOST_TICKS = 1 << 50  # the largest cost of a pair that is accepted from a file: 18 minutes


# ---- the plan's ops, and corrections of their costs ----------------------------------------------


@dataclass(frozen=True)
class TimedOp:
    """The times in ns of a plan's op, alone and in the net, with the noise of both."""

    op: Op
    pair: tuple[PairEnd, PairEnd] | None  # the pair whose cost it corrects
    alone_ns: float
    alone_noise_ns: float
    net_ns: float
    net_noise_ns: float


def timed_ops(graph: _C.Graph, plan: _C.Plan, times: NetTimes, tuning: Tuning) -> list[TimedOp]:
    """Returns the ops of `plan` that have a measured cost above 0 and were timed in the net.

    So ops that are left to PyTorch, and views, are left out.
    """
    ops = []
    for op, key, pair in _planned_ops(graph, plan):
        cost = tuning.known.get(key)
        if cost is None or cost.ticks == 0 or op not in times.ops:
            continue
        net_ns, net_noise_ns = cost_of_samples(times.ops[op])
        alone, noise = cost.ticks / TICKS_PER_NS, cost.noise_ticks / TICKS_PER_NS
        ops.append(TimedOp(op, pair, alone, noise, net_ns, net_noise_ns))
    return ops


def _planned_ops(
    graph: _C.Graph, plan: _C.Plan
) -> Iterator[tuple[Op, Key, tuple[PairEnd, PairEnd] | None]]:
    """Yields each op, the key of its cost, and the pair that it belongs to.

    A node's pair is the producer of its first input, and the node itself. A transform's pair is
    the producer and the first planned reader of its value. The pair is None for a transform between
    nodes that are not planned.
    """
    anchors = {node.name: node.absorbed_by or node.name for node in plan.nodes}
    choices = {
        node.name: PairEnd(node.name, key_of(node.problem, node.primitive))
        for node in plan.nodes
        if node.primitive.name
    }
    producer_of: dict[str, str] = {}  # value -> node
    readers: dict[str, list[str]] = {}
    first_input: dict[str, str] = {}
    for node in graph.nodes:
        producer_of |= {graph.values[v].name: node.name for v in node.outputs}
        for v in node.inputs:
            readers.setdefault(graph.values[v].name, []).append(node.name)
        if node.inputs:
            first_input[node.name] = graph.values[node.inputs[0]].name

    def maker(value: str) -> PairEnd:
        return choices.get(anchors.get(producer_of.get(value, ""), ""), NOTHING)

    for name, choice in choices.items():
        if choice.run is not None:
            before = maker(first_input.get(name, ""))
            yield (name, choice.run.problem), choice.run, (before, choice)
    for change in plan.transforms:
        before = maker(change.value)
        after = (choices.get(anchors.get(name, "")) for name in readers.get(change.value, ()))
        pair = next(((before, c) for c in after if c is not None and c != before), None)
        if pair is None and before != NOTHING:  # only the caller or unplanned ops read it
            pair = NOTHING, before
        yield (change.value, change.problem), key_of(change.problem, change.primitive), pair


def fit_lines(ops: Sequence[TimedOp]) -> dict[str, Line]:
    """Fits a line for each kind of op. Kinds with fewer than FEWEST_OPS ops get a line of all ops.

    The result contains the kinds that occur in `ops`.
    """
    kinds: dict[str, list[TimedOp]] = {}
    for op in ops:
        kinds.setdefault(kind_of(op.op[1]), []).append(op)
    lines = {}
    for kind, own in sorted(kinds.items()):
        points = own if len(own) >= FEWEST_OPS else ops
        lines[kind] = fit_line([p.alone_ns for p in points], [p.net_ns for p in points])
    return lines


def beyond_line(op: TimedOp, line: Line) -> float:
    """Returns the difference of an op to the line of its kind, in ns; positive if it is slower.

    The difference is converted to a time alone. Returns 0 if it is within 5 % of the op's cost, or
    within the noise.
    """
    beyond = line.alone(op.net_ns) - op.alone_ns
    noise = op.alone_noise_ns + op.net_noise_ns / line.factor
    return beyond if abs(beyond) > max(LEAST_SHARE * op.alone_ns, noise) else 0.0


def corrections(ops: Sequence[TimedOp], lines: Mapping[str, Line]) -> Pairs:
    """Returns, for each pair, the sum of its ops' differences to their lines, in ticks."""
    pairs: Pairs = {}
    for op in ops:
        if op.pair is None:
            continue
        beyond = beyond_line(op, lines[kind_of(op.op[1])])
        pairs[op.pair] = pairs.get(op.pair, 0) + round(beyond * TICKS_PER_NS)
    return pairs


# ---- the search ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refined:
    """The result of a search: the best plan, and the costs of pairs for which it is optimal."""

    tuned: Tuned
    pairs: Pairs
    context: InContext | None  # None: it was not timed in the net
    left_us: Mapping[str, float] = field(default_factory=dict)  # by node left to PyTorch


class PlanSource(Protocol):
    """Finds plans for a search."""

    def tuned(self, pairs: Pairs) -> Tuned:
        """Returns the optimum with these costs of pairs, after measuring what it needs."""
        ...


class Search:
    """A search that times plans in the net until the planner finds no new plan."""

    def __init__(
        self,
        tuning: Tuning,
        source: PlanSource,
        inputs: tuple[Any, ...],
        *,
        limit_s: float,
        most_error: float,
        timer: Callable[..., dict[str, NetTimes]] = time_in_net,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet.

        Args:
            source: finds a plan for each set of costs of pairs.
            inputs: the inputs with which plans are timed.
            limit_s: the seconds for timing. The first plan is timed in any case.
            most_error: the largest relative L2 of a plan's outputs.
        """
        self._tuning, self._source, self._inputs = tuning, source, inputs
        self._limit_s, self._most_error = limit_s, most_error
        self._timer, self._now_s = timer, now_s

    def run(self, first: Tuned) -> Refined:
        """Searches from `first`, and returns the best plan and the costs of pairs that lead to it.

        Ctrl-C ends the search and the tuning. Then the result is the best plan so far.
        """
        self._best = Refined(first, {}, None)
        self._best_times: NetTimes | None = None
        self._kept, self._seen = 1, [choices_of(first.native)]
        try:
            outcome = self._follow(first)
        except KeyboardInterrupt:
            self._tuning.interrupt()
            outcome = "interrupted"
        if self._best_times is None:
            return self._best
        return dataclasses.replace(self._best, context=self._context(self._best_times, outcome))

    def _follow(self, first: Tuned) -> str:
        """Runs the search and returns the reason why it ended."""
        started = self._now_s()
        self._best_times = self._times(a=first)["a"]
        solved: Pairs = {}
        pairs = self._learn(first, self._best_times, solved)
        while not (outcome := self._end(pairs == solved, self._now_s() - started)):
            solved, new = pairs, self._source.tuned(pairs)
            if self._tuning.is_stopped:
                return "the tuning was ended"
            if new.error > self._most_error:
                return "the corrected costs lead to a plan whose outputs are not exact enough"
            if choices_of(new.native) in self._seen:
                return "the corrected costs lead to no new plan"
            self._seen.append(choices_of(new.native))
            best = self._best.tuned
            both = self._times(a=best, b=new)
            pairs = self._learn(new, both["b"], self._learn(best, both["a"], pairs))
            self._best_times = both["a"]
            if is_faster(both["b"].call, both["a"].call).verdict == "faster":
                self._best, self._best_times = Refined(new, solved, None), both["b"]
                self._kept = len(self._seen)
        return outcome

    def _end(self, is_known: bool, seconds: float) -> str:
        """Returns the reason to end the search; "" if another plan is to be found."""
        if is_known:
            return "no op differs from its expected time by more than 5 % and noise"
        if len(self._seen) > MOST_ROUNDS:
            return f"{len(self._seen)} plans are enough"
        assert self._best_times is not None
        round_s = 2 * (WARMUP + LEAST_PASSES) * min(self._best_times.call) / 1e9
        return "out of time for another one" if seconds + round_s > self._limit_s else ""

    def _times(self, **plans: Tuned) -> dict[str, NetTimes]:
        calls = {
            name: lambda module=tuned.scripted: module(*self._inputs)
            for name, tuned in plans.items()
        }
        return self._timer(calls, budget_s=max(0.2, self._limit_s / 3))

    def _learn(self, tuned: Tuned, times: NetTimes, pairs: Pairs) -> Pairs:
        ops = timed_ops(self._tuning.graph, tuned.native, times, self._tuning)
        return admissible({**pairs, **corrections(ops, fit_lines(ops))}, _known_ticks(self._tuning))

    def _context(self, times: NetTimes, outcome: str) -> InContext:
        tuned = self._best.tuned
        ops = timed_ops(self._tuning.graph, tuned.native, times, self._tuning)
        lines = fit_lines(ops)
        # Other programs disturb whole calls more often than single ops. So the rest of the call has
        # samples of its own: a difference of two medians would contain these disturbances.
        (call_ns, _), (rest_ns, _) = cost_of_samples(times.call), cost_of_samples(times.rest)
        ops_ns = sum(cost_of_samples(samples)[0] for samples in times.ops.values())
        corrected_ns = rest_ns + ops_ns - sum(op.net_ns for op in ops)
        for op in ops:
            line = lines[kind_of(op.op[1])]
            corrected_ns += line.at(op.alone_ns + beyond_line(op, line))
        alone = sum(n.cost for n in tuned.native.nodes)
        alone += sum(t.cost for t in tuned.native.transforms)
        return InContext(
            alone_us=_us(alone / TICKS_PER_NS),
            corrected_us=_us(corrected_ns),
            measured_us=_us(call_ns),
            ops_us=_us(ops_ns),
            rest_us=_us(rest_ns),
            factors={kind: round(line.factor, 4) for kind, line in lines.items()},
            call_us={kind: _us(line.call_ns) for kind, line in lines.items()},
            rounds=len(self._seen),
            kept=self._kept,
            outcome=outcome,
            ops=[_described(op, lines[kind_of(op.op[1])]) for op in ops],
        )


def _described(op: TimedOp, line: Line) -> OpInContext:
    return OpInContext(*op.op, _us(op.alone_ns), _us(line.at(op.alone_ns)), _us(op.net_ns))


def _us(ns: float) -> float:
    return round(ns / 1000, 3)


def _known_ticks(tuning: Tuning) -> dict[Key, int]:
    return {key: cost.ticks for key, cost in tuning.known.items()}


# ---- stored for the next process -----------------------------------------------------------------


def context_key(
    tuning: Tuning, weight_limit_bytes: int | None = None, max_error: float = 0.0
) -> str:
    """Returns a hash of the net and of everything that restricts the plans of a search."""
    graph, forced = tuning.graph, sorted(tuning.rules.forced.items())
    forced += [(node, COMPONENTWISE) for node in sorted(tuning.rules.componentwise)]
    facts = [RECORD, graph.structure_hash, forced, weight_limit_bytes, max_error]
    return "context:" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def limit_s(tuning_s: float, deadline: Deadline) -> float:
    """Returns the seconds for timing plans in the net.

    This is a tenth of the tuning's time, but from 3 s to 6 s. It is also at most a tenth of the
    budget, and at most half of the time that is left before the guard.
    """
    most_s = min(6.0, max(3.0, 0.1 * tuning_s), 0.1 * deadline.budget_s)
    return min(most_s, max(0.0, deadline.left_s("check") / 2))


def has_time(plan: _C.Plan, limit_s: float, deadline: Deadline) -> bool:
    """Returns True if `plan` may be timed in the net: if there is no deadline, or enough time."""
    alone_s = plan.cost / TICKS_PER_NS / 1e9
    return not deadline.has_end or 1.5 * (WARMUP + LEAST_PASSES) * alone_s <= limit_s


@dataclass(frozen=True)
class Kept:
    """The stored result of a search. It is used again if tuning finds the same plan."""

    pairs: Pairs
    plan: str  # hash of its choices
    context: InContext
    left_us: Mapping[str, float]

    @staticmethod
    def of(refined: Refined) -> Kept | None:
        if refined.context is None:
            return None
        found = _hash(refined.tuned.native)
        return Kept(refined.pairs, found, refined.context, refined.left_us)

    def fits(self, plan: _C.Plan) -> bool:
        return self.plan == _hash(plan)

    def to_json(self) -> str:
        pairs = [
            [before.node, before.run, reader.node, reader.run, ticks]
            for (before, reader), ticks in self.pairs.items()
        ]
        context = dataclasses.asdict(self.context)
        left_us = dict(self.left_us)
        return json.dumps(
            {"pairs": pairs, "plan": self.plan, "context": context, "left_us": left_us}
        )

    @staticmethod
    def from_json(text: str | None) -> Kept | None:
        """Reads the text that to_json wrote. Returns None if it is None or damaged."""
        if text is None:
            return None
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
            pairs = {_pair(item): _ticks(item[4]) for item in data["pairs"]}
            native_pairs(pairs)  # raises if a name is no layout
            context = InContext.from_data(data["context"])
            left_us = {str(name): float(us) for name, us in data["left_us"].items()}
            return Kept(pairs, str(data["plan"]), context, left_us)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, _C.Error):
            return None


def _pair(item: list[Any]) -> tuple[PairEnd, PairEnd]:
    name, before, reader, run, _ = item
    first = NOTHING if before is None else PairEnd(str(name), Key(*map(str, before)))
    if first.node == reader or not reader or (before is not None and not name):
        raise ValueError(f"{name!r} and {reader!r} are no pair")
    return first, PairEnd(str(reader), Key(*map(str, run)))


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no time")


def _ticks(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_TICKS:
        raise ValueError(f"{value!r} is no cost of a pair")
    return value


def _hash(plan: _C.Plan) -> str:
    return hashlib.sha256(json.dumps(choices_of(plan)).encode()).hexdigest()
