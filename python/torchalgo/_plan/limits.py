# SPDX-License-Identifier: BSD-3-Clause
"""Limits plans: their primitives, their memory, and the errors of the outputs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C
from torchalgo._base.f32_precision import cpu_is_exact
from torchalgo._C import Error
from torchalgo._ir.costs import Key, key_of
from torchalgo._ir.plan import OF_OTHERS, PlanNode
from torchalgo._measure.knowledge import Knowledge, is_trusted
from torchalgo._measure.steps import Allows
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.memory_limit import MemoryLimit
from torchalgo._plan.sensitivities import Sensitivity

# A limit that is no integer is divided into this many units. The amount of each candidate is
# rounded up to whole units.
UNITS = 1 << 30
MOST = UNITS * 1024  # the largest amount of a candidate: above any limit, and sums do not overflow
# After this many plans whose outputs missed the bound, only candidates without errors are allowed.
MOST_SOLVES = 8
SEARCH_WITHIN_LIMITS = "Lagrangian sweep"  # begins the planner's name of this method


@dataclass(frozen=True)
class Prediction:
    """The predicted error of a plan's outputs, from the errors of its candidates.

    Each number is the error of the outputs if only that layer had one.
    """

    of_calls: Mapping[str, float]  # by layer, without casts, as the solver knows them
    shares: Mapping[str, float]  # by layer; a cast counts to the layer whose result it rounds

    @property
    def error(self) -> float:
        """The error of the outputs."""
        return math.hypot(*self.shares.values())

    @property
    def casts(self) -> float:
        """The error relative to the one that the solver knows: 1 without casts."""
        known = math.hypot(*self.of_calls.values())
        return self.error / known if known > 0 else 1.0


@dataclass(frozen=True)
class Limits:
    """The limits of a tuning's plans. A tighter limit of errors is another value.

    Rounding errors of layers are independent, so their squares add up (Higham 2002, section 2.8).
    Errors are one additive resource: the sum over the plan of (gain * sensitivity * error)^2 is at
    most bound^2. `error` is a candidate's own, measured against f64. `sensitivity` is how much the
    outputs change, relative to a change of the layer's result. The gain corrects the prediction: it
    is the error of the outputs divided by the predicted one.

    A cast rounds too, as a layer's result does. Only the plan tells where casts are, so the solver
    does not know them. A plan whose error with its casts is above the bound is excluded, as one
    whose outputs missed it: see settle().

    ATen's algorithms in the model's own type count 0, because the outputs are compared with those
    of ATen's module. A candidate that was not checked yet counts 0, until it is chosen and checked.

    The gain is the largest of all plans whose outputs missed the bound. So each of these plans is
    excluded. By cost, the solver decides which layers change.
    """

    tuning: Tuning
    # True for the primitives that a plan may use; None: any. Overrides stay in force.
    may_run: Callable[[str], bool] | None = None
    memory: MemoryLimit | None = None
    weight_limit_bytes: int | None = None
    # Bytes of packed weights of each candidate, in the order of found.by_anchor; empty: no limit.
    packed_bytes: Sequence[Sequence[int]] = ()
    sensitivities: Sequence[Sensitivity] = ()  # by node of the graph; empty: 1 for each
    bound: float | None = None  # of the outputs' error; None: no output missed it yet
    gain: float = 0.0  # infinite: only candidates without errors are allowed
    casts: float = 1.0  # the predicted error with casts, relative to the one that the solver knows
    misses: int = 0  # the number of plans whose outputs missed the bound

    @staticmethod
    def of(
        tuning: Tuning, weight_limit_bytes: int | None = None, own_kernels: bool = False
    ) -> Limits:
        """Returns the limits before any plan's outputs have missed their bound."""
        packed = [] if weight_limit_bytes is None else _C.packed_bytes_of(tuning.found)
        limits = Limits(tuning, weight_limit_bytes=weight_limit_bytes, packed_bytes=packed)
        return limits.with_own_kernels() if own_kernels else limits

    def with_own_kernels(self) -> Limits:
        """Returns limits under which neither PyTorch nor another library runs any call."""
        return dataclasses.replace(self, may_run=_C.has_own_kernel)

    def without_filter(self) -> Limits:
        """Returns limits under which plans may use any primitive."""
        return dataclasses.replace(self, may_run=None)

    def predicting(self, sensitivities: Sequence[Sensitivity], bound: float) -> Limits:
        """Returns limits that keep plans whose predicted error is above `bound` from the start."""
        return dataclasses.replace(self, sensitivities=sensitivities, bound=bound, gain=1.0)

    def settle(self, **options: Any) -> _C.Plan:
        """Returns the cheapest plan within the limits, after measuring and checking it.

        If its casts lead to a predicted error above the bound, the solver gets a tighter one.

        Raises: torchalgo.Error if no plan keeps the limits.
        """
        native, limits = self.tuning.settle(limits=self, **options), self
        for _ in range(MOST_SOLVES):
            found = self.predict(native)
            if self.bound is None or self.gain * found.error <= self.bound or found.casts <= 1.0:
                break
            limits = limits._with_casts_of(found)
            try:
                native = self.tuning.settle(limits=limits, **options)
            except Error:  # no plan keeps the tighter bound
                break
        return native

    def check_memory(self, native: _C.Plan) -> None:
        """Raises: torchalgo.Error if a plan with other overrides exceeds the limit of memory."""
        if self.memory is not None and (use := sum(self.memory.use_of(native))) > self.memory.limit:
            raise Error(
                f"TA2303 with_overrides: the plan needs {use} bytes, and"
                f" memory_limit_bytes={self.memory.limit}: name primitives with a smaller"
                " workspace, or optimize with these overrides"
            )

    def _with_casts_of(self, found: Prediction) -> Limits:
        return dataclasses.replace(self, casts=max(found.casts, self.casts))

    def tightened(self, native: _C.Plan, error: float, bound: float) -> Limits | None:
        """Returns limits that exclude `native`, whose outputs have a relative L2 above `bound`.

        Returns None if the errors of its candidates are all 0, so that no limit helps.

        Args:
            error: the relative L2 of its outputs.
        """
        found = self.predict(native)
        if found.error == 0:
            return None
        misses, factor = self.misses + 1, error / found.error
        is_hopeless = misses > MOST_SOLVES or not factor < math.inf
        gain = math.inf if is_hopeless else max(self.gain, factor)
        limits = self._with_casts_of(found)
        memory = None if self.memory is None else self.memory.whole
        return dataclasses.replace(limits, bound=bound, gain=gain, misses=misses, memory=memory)

    def expected_errors(self, native: _C.Plan, nodes: Sequence[PlanNode]) -> dict[str, Any]:
        """Returns the fields of a plan that tell the predicted errors of its outputs.

        Args:
            nodes: those of the plan, whose errors are filled in.
        """
        if not self.sensitivities or self.bound is None:
            return {}
        factor = self.gain if math.isfinite(self.gain) else 1.0
        shares = {name: factor * share for name, share in self.predict(native).shares.items()}
        return {
            "max_error": self.bound,
            "predicted_error": math.hypot(*shares.values()),
            "nodes": [
                dataclasses.replace(node, output_error=shares.get(node.name) or None)
                for node in nodes
            ],
        }

    def predict(self, native: _C.Plan) -> Prediction:
        """Returns the predicted errors of a plan. Casts of inputs are not known."""
        errors = self.tuning.errors
        numbers = {node.name: n for n, node in enumerate(self.tuning.graph.nodes)}
        covers: dict[str, list[int]] = {}
        for node in native.nodes:
            covers.setdefault(node.absorbed_by or node.name, []).append(numbers[node.name])
        of_calls = {
            node.name: self._share(errors, covers[node.name], node.problem, node.primitive)
            for node in native.nodes
            if node.primitive.name
        }
        shares, owners = dict(of_calls), {n.name: n.absorbed_by or n.name for n in native.nodes}
        for change in native.transforms if self.sensitivities else ():
            own = errors.get(key_of(change.problem, change.primitive), 0.0)
            if own > 0 and change.producer in numbers:
                name = owners.get(change.producer, change.producer)
                cast = own * self.sensitivities[numbers[change.producer]].result
                shares[name] = math.hypot(shares.get(name, 0.0), cast)
        return Prediction(of_calls, shares)

    def _share(
        self,
        errors: Mapping[Key, float],
        covers: Sequence[int],
        problem: str,
        primitive: _C.Primitive,
    ) -> float:
        """Returns the error of the outputs by a candidate that computes the nodes `covers`."""
        own = error_of(errors, problem, primitive)
        if own == 0 or not self.sensitivities:
            return own
        result = self.sensitivities[covers[-1]].result
        is_by_setting = _computes_coarsely(problem, primitive)
        if not is_by_setting and not _C.rounds_coarsely(problem, primitive):
            return own * result
        # The error has equal parts: those of the input, of each layer's weights, and of the result,
        # as far as they are rounded. An input that is stored was counted by the call that wrote it.
        weights = [w for n in covers if (w := self.sensitivities[n].weights) is not None]
        has_typed_tensors = "." in primitive.src + primitive.dst
        parts = is_by_setting + has_typed_tensors + ("." in primitive.dst) + len(weights)
        results = [result] if is_by_setting or "." in primitive.dst or not weights else []
        return own * math.hypot(*results, *weights) / math.sqrt(max(parts, 1))

    @property
    def are_none(self) -> bool:
        """True if nothing is limited."""
        limits = (self.may_run, self.weight_limit_bytes, self.bound, self.memory)
        return all(limit is None for limit in limits)

    @property
    def allows(self) -> Allows | None:
        """True for the candidates that a plan may use; None: any. Overrides stay in force."""
        may_run, memory = self.may_run, self.memory
        if memory is None:
            return None if may_run is None else lambda c: may_run(c.primitive.name)
        return lambda c: (may_run is None or may_run(c.primitive.name)) and memory.allows(c)

    def resources(self, knowledge: Knowledge) -> list[_C.Resource]:
        """Returns the limits as resources for make_plan; empty if there are none."""
        resources = [] if self.memory is None else [self.memory.resource]
        if self.weight_limit_bytes is not None:
            resources.append(
                _C.Resource("weight bytes", self.packed_bytes, self.weight_limit_bytes)
            )
        if self.bound is not None:
            squares = [
                [
                    self._share(knowledge.errors, c.covers, c.problem, c.primitive) ** 2
                    for c in list_
                ]
                for list_ in self.tuning.found.by_anchor
            ]
            limit = (self.bound / (self.gain * self.casts)) ** 2
            resources.append(scaled_resource("sum of squared errors", squares, limit))
        return resources

    def described(self, native: _C.Plan) -> dict[str, Any]:
        """Returns the fields of a plan that tell its limits, and why it is not proven, if so."""
        fields: dict[str, Any] = {}
        limits = {} if self.may_run is None else {OF_OTHERS: 0.0}
        own = dataclasses.replace(self, memory=None)
        limits |= {r.name: r.limit * r.unit for r in own.resources(self.tuning.knowledge)}
        if self.memory is not None:
            limits["bytes of memory"] = float(self.memory.limit)
            fields["memory_bytes"] = sum(self.memory.use_of(native))
        fields["limits"] = limits
        # The planner searches within the limits only if the best plan without them exceeds one.
        # This search gives no certificate.
        is_divided = self.memory is not None and self.memory.is_divided
        if not is_divided and not native.method.startswith(SEARCH_WITHIN_LIMITS):
            return fields
        texts = ["the limit of weight bytes"] if self.weight_limit_bytes is not None else []
        texts += ["the limit of memory"] if self.memory is not None else []
        texts += ["the error bound"] if self.bound is not None else []
        verb = "decide" if len(texts) > 1 else "decides"
        return {**fields, "unproven": f"{' and '.join(texts)} {verb}"}


def error_of(errors: Mapping[Key, float], problem: str, primitive: _C.Primitive) -> float:
    """Returns a candidate's error, as far as it counts.

    It is 0 if unchecked, and for ATen's own algorithms, unless they round to a coarser type.
    """
    key = key_of(problem, primitive)
    is_atens = is_trusted(key) and not _computes_coarsely(problem, primitive)
    return 0.0 if not primitive.name or is_atens else errors.get(key, 0.0)


def _computes_coarsely(problem: str, primitive: _C.Primitive) -> bool:
    """Returns True if torch's settings let a candidate compute in a coarser type than it stores."""
    return not cpu_is_exact() and _C.computes_coarsely(problem, primitive)  # the first is quicker


def scaled_resource(name: str, amounts: list[list[float]], limit: float) -> _C.Resource:
    """Returns a resource whose amounts and limit are no integers.

    Each amount is rounded up by at most one part in 2**30 of the limit, so that the limit holds.
    With a limit of 0, only candidates with an amount of 0 may be chosen.
    """
    if limit <= 0:
        use = [[0 if amount == 0 else 1 for amount in list_] for list_ in amounts]
        return _C.Resource(name, use, 0)
    scale = UNITS / limit
    use = [
        [math.ceil(min(a * scale, MOST)) if a == a else MOST for a in list_] for list_ in amounts
    ]
    return _C.Resource(name, use, UNITS, limit / UNITS)


@functools.lru_cache(maxsize=1 << 16)
def _packed_bytes(problem: str, name: str, src: str, dst: str) -> int:
    return _C.packed_bytes(problem, _C.Primitive(name, src, dst))


def packed_bytes(problem: str, primitive: _C.Primitive) -> int:
    """Returns the bytes that `primitive` allocates for the packed weights of `problem`.

    For oneDNN's primitives, this packs weights once. Returns 0 for an empty primitive.
    """
    if not primitive.name:
        return 0
    return _packed_bytes(problem, primitive.name, primitive.src, primitive.dst)
