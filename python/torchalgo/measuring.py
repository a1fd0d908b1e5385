# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the candidates of one model: what is measured, how often, and what may be chosen."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torchalgo import _C, process_bench
from torchalgo.costs import TICKS_PER_NS, Cost, CostFile, Key, key_of, native_key, summarize
from torchalgo.overrides import is_convolution, matches_name
from torchalgo.plan import Quarantined
from torchalgo.progress import Progress
from torchalgo.stats import faster_half, median_noise

# A fused candidate is not measured if its convolution alone is this much slower than the fastest of
# its provider with the same layouts: fusing saves both the same and layouts decide nothing.
SCREEN_RATIO = 2.0
REFINE_RATIO = 1.5  # of the fastest with the same layouts: these get more samples

# A cost with a wider interval than this is taken again: something else ran meanwhile.
NOISE_RATIO = 0.05
REPEATS = 3

# Weights are timed as cold as inside the model, whose other weights pass the caches in between;
# above this much nothing is left of them in any cache.
MOST_COLD_BYTES = 256 << 20

# No algorithm can hold max_rel_error in a type that rounds more coarsely.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}


class Measure(Protocol):
    def __call__(
        self,
        tasks: Sequence[tuple[str, _C.Primitive]],
        *,
        warmup: int,
        rounds: int,
        budget_s: float,
        cold_bytes: int,
        seed: int,
    ) -> list[_C.Samples]: ...


T = TypeVar("T")
Check = Callable[[str, Sequence[_C.Primitive], float], list[tuple[float, str]]]


@dataclass(frozen=True)
class Bench:
    """How to measure and check: injected, so that tests and other processes can replace it."""

    measure: Measure = _C.measure
    check: Check = _C.check_primitives
    now_s: Callable[[], float] = time.monotonic

    @staticmethod
    def on(device: _C.Device | None) -> Bench:
        """On a GPU, or on the CPU if None; by a worker, unless TORCHALGO_ISOLATE=0."""
        if process_bench.is_isolated():
            isolated = process_bench.ProcessBench(device)
            return Bench(isolated.measure, isolated.check)
        if device is None:
            return Bench()
        return Bench(
            functools.partial(_C.measure, device=device),
            functools.partial(_C.check_primitives, device=device),
        )


@dataclass(frozen=True)
class TuneSettings:
    max_rel_error: float = 1e-5
    budget_s: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Choice:
    """A candidate without its binding: what the rules below look at."""

    key: Key
    anchor: int
    covers: tuple[int, ...]

    @property
    def is_alone(self) -> bool:
        return len(self.covers) == 1


def _choice(candidate: _C.Candidate) -> _Choice:
    covers = tuple(candidate.covers)
    return _Choice(key_of(candidate.problem, candidate.primitive), covers[0], covers)


def dtype_of(problem: str) -> str:
    """The compute type in a problem's spelling: "f32" of "fwd_f32_n1..."."""
    types = {"f64", "f32", "tf32", "f16", "bf16"}
    return next((part for part in problem.split("_") if part in types), "f32")


class Tuning:
    """What is known about the candidates of one model: costs, errors, quarantine.

    The accumulator of the loop `while wanted: measure(wanted); plan, wanted = plan()`.
    """

    def __init__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        forced: Mapping[int, str],
        settings: TuneSettings,
        *,
        progress: Progress | None = None,
        cost_file: CostFile | None = None,
        bench: Bench | None = None,
        device: _C.Device | None = None,
    ) -> None:
        self.graph, self.found, self.settings = graph, found, settings
        self.device = device
        self.transforms = _C.transform_candidates(graph, found, device)
        self.costs = _C.CostTable()
        self.known: dict[Key, Cost] = {}
        self.errors: dict[Key, float] = {}  # relative L2 of each checked candidate
        self.quarantined: dict[Key, str] = {}
        self.screened: set[Key] = set()
        self.screened_of = 0
        self._forced = dict(forced)
        self._progress = progress if progress is not None else Progress(False)
        self._cost_file = cost_file
        self._measured_here: set[Key] = set()
        self._bench = bench if bench is not None else Bench.on(device)
        self._bound = settings.max_rel_error
        self._cold_bytes = cold_bytes(graph)
        self._is_screened = False
        self._stopped = ""  # why nothing more is measured: plan from what is known
        self._primitives: dict[Key, _C.Primitive] = {}
        self._choices: list[_Choice] = []
        self._list_candidates()
        budget = settings.budget_s
        self._deadline = None if budget is None else self._bench.now_s() + budget
        if cost_file is not None:
            self._learn(cost_file.read(self._primitives))
        unknown = {key.problem for key in self._primitives if key not in self.known}
        checked = {c.key.problem for c in self._choices}  # about half of them get chosen
        self._progress.start(sum(map(_work, unknown)) + sum(map(_check_work, checked)) // 2)

    # ---- the loop ------------------------------------------------------------------------------

    def plan(self) -> tuple[_C.Plan, list[Key]]:
        """The cheapest plan, and what must be measured or checked before it counts."""
        return self.plan_with(_C.make_plan)

    def plan_with(
        self,
        planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]],
        only: Callable[[str], bool] | None = None,
        checked: bool = True,
        **options: object,
    ) -> tuple[_C.Plan, list[Key]]:
        """The same for another planner, with primitives restricted by name to `only`, or, if not
        `checked`, of measured candidates whatever their numbers."""

        def allows(candidate: _C.Candidate) -> bool:
            choice = _choice(candidate)
            if only is None or choice.anchor in self._forced:  # an override stands in any case
                return self._allows(choice)
            return self._allows(choice) and only(choice.key.primitive)

        def solve() -> tuple[_C.Plan, list[Key]]:
            transforms = self._allowed_transforms()
            if only is not None and not self._forced:
                transforms = [t for t in transforms if only(t.primitive.name)]
            try:
                plan, wanted = planner(
                    self.graph, self.found, transforms, self.costs, allow=allows, **options
                )
            except _C.Error as problem:
                raise self._explained(problem) from None
            return plan, [Key(w.problem, w.primitive, w.src, w.dst) for w in wanted]

        plan, wanted = solve()
        if not wanted and not self._is_screened:
            self._screen()
            plan, wanted = solve()
        if not wanted and checked:
            wanted = [key for key in _chosen(plan) if key not in self.errors]
        return plan, wanted

    def settle(
        self, planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]], **options: object
    ) -> _C.Plan:
        """plan_with until nothing is wanted."""
        plan, wanted = self.plan_with(planner, **options)  # type: ignore[arg-type]
        while wanted:
            self.measure(wanted)
            plan, wanted = self.plan_with(planner, **options)  # type: ignore[arg-type]
        return plan

    def ask_known(self, planner: Callable[..., T], **options: object) -> T:
        """What `planner` makes of the costs there are; nothing is measured or checked."""
        before, self._stopped = self._stopped, "from known costs"
        try:
            return planner(
                self.graph,
                self.found,
                self._allowed_transforms(),
                self.costs,
                lambda candidate: self._allows(_choice(candidate)),
                **options,
            )
        finally:
            self._stopped = before

    def solve_known(self, forced: Mapping[int, str], **options: object) -> _C.Plan:
        """The cheapest plan that obeys `forced`, from the costs there are; nothing is measured.

        Raises: torchalgo.Error if a primitive it needs was never measured.
        """
        before = self._forced, self._stopped
        self._forced, self._stopped = dict(forced), "from known costs"
        try:
            plan, _ = self.plan_with(_C.make_plan, with_regrets=True, **options)  # type: ignore[arg-type]
        except _C.Error as problem:
            raise _C.Error(
                f"with_overrides: {problem}; what it needs was not measured here: use"
                " torchalgo.optimize(model, example_inputs, overrides=...)"
            ) from None
        finally:
            self._forced, self._stopped = before
        return plan

    def measure(self, wanted: Iterable[Key]) -> None:
        """Measures the keys without a cost and checks those that have one.

        Ctrl-C ends measuring: from then on plans are made of what is known, where that is enough.
        """
        wanted = list(wanted)
        missing = [key for key in wanted if key not in self.known]
        try:
            if missing:
                self._measure_all(missing)
            else:
                self._check_all(wanted)
        except KeyboardInterrupt:
            self._stop("interrupted")

    def method_note(self) -> str:
        """What the search left out, for the plan's method."""
        notes = []
        if self.screened:
            notes.append(
                f"screened out {len(self.screened)} of {self.screened_of} fused candidates"
                f" at > {SCREEN_RATIO:g}x"
            )
        if self._stopped:
            notes.append(f"{self._stopped}: only measured candidates")
        return "; ".join(notes)

    def quarantine_list(self) -> list[Quarantined]:
        return [
            Quarantined(key.problem, key.primitive, key.src, key.dst, reason)  # type: ignore[arg-type]
            for key, reason in sorted(self.quarantined.items())
        ]

    # ---- what may be chosen --------------------------------------------------------------------

    def _list_candidates(self) -> None:
        for candidates in self.found.by_anchor:
            for candidate in candidates:
                choice = _choice(candidate)
                self._choices.append(choice)
                self._primitives[choice.key] = candidate.primitive
        for candidate in self.transforms:
            self._primitives[key_of(candidate.problem, candidate.primitive)] = candidate.primitive
        for key in self._primitives:
            if (cost := self.costs.get(native_key(key))) is not None:  # views: nothing to measure
                self.known[key], self.errors[key] = Cost(cost[0], 0), 0.0

    def _allows(self, choice: _Choice) -> bool:
        if choice.key in self.quarantined:
            return False
        if any(node in self._forced for node in choice.covers[1:]):
            return False  # an overridden node is computed by itself
        name = self._forced.get(choice.anchor)
        if name is not None and not matches_name(choice.key.primitive, name):
            return False
        if self._stopped:
            return choice.key in self.known
        if choice.is_alone or name is not None:
            return True
        return self._is_screened and choice.key not in self.screened

    def _allowed_transforms(self) -> list[_C.Candidate]:
        if not self._stopped and not self.quarantined:
            return self.transforms
        keys = [(key_of(t.problem, t.primitive), t) for t in self.transforms]
        return [
            t
            for key, t in keys
            if key not in self.quarantined and (key in self.known or not self._stopped)
        ]

    def _screen(self) -> None:
        """Marks the fused candidates whose anchor alone is far behind its like."""
        self._is_screened = True
        alone = {
            (c.anchor, c.key.primitive, c.key.src, c.key.dst): self.known[c.key].ticks
            for c in self._choices
            if c.is_alone and c.key in self.known
        }
        best: dict[tuple[int, str, str, str], int] = {}
        for (anchor, primitive, src, dst), ticks in alone.items():
            group = (anchor, primitive.split(".")[0], src, dst)
            best[group] = min(best.get(group, ticks), ticks)
        fused = [c for c in self._choices if not c.is_alone]
        for c in fused:
            ticks = alone.get((c.anchor, c.key.primitive, c.key.src, c.key.dst), 0)
            group = (c.anchor, c.key.primitive.split(".")[0], c.key.src, c.key.dst)
            if ticks > SCREEN_RATIO * best.get(group, ticks):
                self.screened.add(c.key)
        self.screened_of = len({c.key for c in fused})

    def _explained(self, problem: Exception) -> Exception:
        if not self.quarantined:
            return problem
        reasons = [f"{k.primitive} ({k.problem}): {why}" for k, why in self.quarantined.items()]
        return _C.Error(f"{problem}; quarantined: {'; '.join(reasons[:5])}")

    # ---- measuring -----------------------------------------------------------------------------

    def _measure_all(self, missing: Sequence[Key]) -> None:
        left = len({key.problem for key in missing})
        for family, keys in _grouped(missing, _family).items():
            if self._is_late():
                self._stop("out of budget")
                return
            problems = {key.problem for key in keys}
            share_s = len(problems) * self._share_s(left)
            self._measure_family(keys, self._rivals(family), share_s)
            self._progress.advance(keys[-1].problem, sum(map(_work, problems)))
            left -= len(problems)

    def _is_late(self) -> bool:
        # Without a cost for every node alone there is no plan: those are measured in any case.
        late = self._deadline is not None and self._bench.now_s() >= self._deadline
        return late and self._is_screened

    def _share_s(self, problems_left: int) -> float:
        """Seconds for one problem."""
        if self._deadline is None:
            return 1.0
        left = max(0.0, self._deadline - self._bench.now_s())
        # A first visit leaves half of the time to the fused problems.
        return left / problems_left / (1 if self._is_screened else 2)

    def _rivals(self, family: str) -> list[Key]:
        """What was measured here of the same operation and came near its best: taken again in the
        same rounds, so that a slow phase of the machine decides nothing."""
        known = {
            key: float(cost.ticks)
            for key, cost in self.known.items()
            if key in self._measured_here and _family(key) == family
        }
        return [key for key in _near_best(known) if key not in self.quarantined]

    def _measure_family(self, keys: list[Key], rivals: list[Key], share_s: float) -> None:
        started = self._bench.now_s()
        samples: dict[Key, list[float]] = {}
        self._take([*keys, *rivals], samples, warmup=1, rounds=3, budget_s=share_s / 2)
        finalists = _near_best({key: _cost_ns(ns)[0] for key, ns in samples.items()})
        left = share_s - (self._bench.now_s() - started)
        for _ in range(REPEATS):
            if not finalists or left <= 0:
                break
            self._take(finalists, samples, warmup=1, rounds=9, budget_s=left)
            finalists = [key for key in finalists if _is_noisy(samples[key])]
            left = share_s - (self._bench.now_s() - started)
        costs = {
            key: _cost(taken, self._primitives[key])
            for key, taken in samples.items()
            if key not in self.quarantined
        }
        self._learn(costs)
        self._measured_here |= set(costs)
        if self._cost_file is not None:
            self._cost_file.append(costs)

    def _take(
        self,
        keys: list[Key],
        samples: dict[Key, list[float]],
        *,
        warmup: int,
        rounds: int,
        budget_s: float,
    ) -> None:
        taken = self._bench.measure(
            [(key.problem, self._primitives[key]) for key in keys],
            warmup=warmup,
            rounds=rounds,
            budget_s=budget_s,
            cold_bytes=self._cold_bytes,
            seed=self.settings.seed,
        )
        for key, result in zip(keys, taken, strict=True):
            if result.failure or not result.ns:
                self.quarantined[key] = result.failure or "gave no samples"
            else:
                samples.setdefault(key, []).extend(result.ns)

    def _learn(self, costs: Mapping[Key, Cost]) -> None:
        for key, cost in costs.items():
            self.known[key] = cost
            self.costs.set(native_key(key), cost.ticks, "measured")

    # ---- checking ------------------------------------------------------------------------------

    def _check_all(self, keys: Iterable[Key]) -> None:
        for problem, group in _grouped(keys, lambda key: key.problem).items():
            primitives = [self._primitives[key] for key in group]
            results = self._bench.check(problem, primitives, self._bound_of(problem))
            for key, (error, failure) in zip(group, results, strict=True):
                self.errors[key] = error
                if failure:
                    self.quarantined[key] = failure
            self._progress.advance(f"check {problem}", _check_work(problem))

    def _bound_of(self, problem: str) -> float:
        return max(self._bound, COARSE_BOUND.get(dtype_of(problem), 0.0))

    def _stop(self, reason: str) -> None:
        """Plan from what is known; KeyboardInterrupt if that gives no plan."""
        if self._stopped == "interrupted" == reason:
            raise KeyboardInterrupt
        self._stopped = reason
        try:
            self.plan()
        except _C.Error:
            raise KeyboardInterrupt from None


def _cost_ns(samples: Sequence[float]) -> tuple[float, float]:
    """The cost that some times tell, and its noise."""
    undisturbed = faster_half(samples)
    return statistics.median(undisturbed), median_noise(undisturbed)


def _cost(samples: Sequence[float], primitive: _C.Primitive) -> Cost:
    ticks, noise = (round(ns * TICKS_PER_NS) for ns in _cost_ns(samples))
    return Cost(ticks, noise, summarize(samples), primitive.workspace_bytes)


def cold_bytes(graph: _C.Graph) -> int:
    """What the model's weights take in f32, about what passes the caches between two runs: so much
    is read before each sample."""
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    weights = sum(4 * math.prod(sizes) for sizes in map(_C.weight_sizes, problems) if sizes)
    return min(MOST_COLD_BYTES, weights)


def _is_noisy(samples: Sequence[float]) -> bool:
    cost, noise = _cost_ns(samples)
    return noise > NOISE_RATIO * cost


def _work(problem: str) -> int:
    """How long measuring lasts, roughly, beside a layout transform: for the time left."""
    return 15 if problem.startswith(("fwd_", "bwd_")) else 1


def _check_work(problem: str) -> int:
    return 3 if problem.startswith(("fwd_", "bwd_")) else 1


def _family(key: Key) -> str:
    """The operation without what is fused to it: its candidates compete for one place."""
    return key.problem.partition("+")[0]


def _near_best(costs: Mapping[Key, float]) -> list[Key]:
    """The keys within REFINE_RATIO of the cheapest of the same problem and layouts."""
    best: dict[tuple[str, str, str], float] = {}
    for key, cost in costs.items():
        place = (key.problem, key.src, key.dst)
        best[place] = min(best.get(place, cost), cost)
    return [k for k, c in costs.items() if c <= REFINE_RATIO * best[k.problem, k.src, k.dst]]


def _grouped(keys: Iterable[Key], group_of: Callable[[Key], str]) -> dict[str, list[Key]]:
    groups: dict[str, list[Key]] = {}
    for key in keys:
        groups.setdefault(group_of(key), []).append(key)
    return groups


def _chosen(plan: _C.Plan) -> list[Key]:
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    keys += [key_of(t.problem, t.primitive) for t in plan.transforms]
    return list(dict.fromkeys(keys))


def tied_layers(graph: _C.Graph, plan: _C.Plan, known: Mapping[Key, Cost]) -> int:
    """Convolutions whose next best plan costs no more than the noise of their own measurement."""
    convolutions = {node.name for node in graph.nodes if is_convolution(node)}
    count = 0
    for node in plan.nodes:
        if node.name in convolutions and node.primitive.name and node.regret is not None:
            cost = known.get(key_of(node.problem, node.primitive))
            count += cost is not None and node.regret <= cost.noise_ticks
    return count
