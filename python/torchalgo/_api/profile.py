# SPDX-License-Identifier: BSD-3-Clause
"""Measures every algorithm of a convolution: time, memory, support, determinism.

The fork AliJahan/pytorch prints such a table after a first run. This one has all three directions.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.processor_load import warn_if_busy
from torchalgo._base.progress import Progress
from torchalgo._base.stats import median_noise
from torchalgo._C import Error
from torchalgo._capture.settings import allows_coarse_types
from torchalgo._ir.bounds import COARSE_BOUND
from torchalgo._ir.choices import DType
from torchalgo._ir.costs import MAX_ERROR
from torchalgo._ir.facts import without_layouts
from torchalgo._ir.names import knobs_of, without_knobs
from torchalgo._ir.plan import format_bytes
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._ir.problems import (
    Directions,
    LayerProblem,
    bare_convolution,
    dtype_of,
    is_other_operation,
)
from torchalgo._measure.componentwise import errors_of
from torchalgo._measure.sampling import Bench
from torchalgo._plan.candidates import (
    DeviceLike,
    OfferedPrimitive,
    ask,
    asked_layers,
    default_device,
    describe_device,
    find_device,
    some_of,
)

MAX_COLUMNS = 100
MOST_AT_ONCE = 32  # the most primitives in the same rounds
ROUNDS = 17  # samples of a primitive that is not slow; a noisy one has up to three times as many
TIMING_SHARE = 0.6  # the part of the budget for timing; checks have the rest
RUNTIME_COMPILED = "is compiled when it first runs, which takes seconds: see runtime_compiled"
# Bytes that are read before each sample. So weights come from memory, as in a usual network.
COLD_BYTES = 48 << 20
_HEAD = (
    "algorithm", "layout", "us", "+-", "memory", "determ.", "error", "componentwise", "supported",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProfileRow(OfferedPrimitive):
    """A row of a Profile: one algorithm on one problem.

    If the algorithm is not supported, it has no times, and `reason` says why.
    """

    problem: str
    median_us: float | None = None
    noise_us: float | None = None  # half the median's 95 % interval; half the range if < 4 samples
    samples: int = 0
    rel_error: float | None = None  # relative L2 to a result in f64; None: not checked
    # The error of a single result beside a large value: Settings(max_componentwise_error). None:
    # not tried, or no convolution.
    componentwise_error: float | None = None
    reason: str = ""  # "": it is supported

    @property
    def is_supported(self) -> bool:
        """True if the algorithm ran, and its result was right if it was checked."""
        return not self.reason


@dataclass(frozen=True)
class Profile(ShownAsText):
    """The times that `profile` measured. `print` shows a table for each problem.

    Example:
        table = torchalgo.profile(model, x)
        for problem in table.layers:
            print(problem, table.best(problem))
    """

    device: str
    layers: dict[str, list[str]]  # problem -> names of the layers that have it
    rows: list[ProfileRow]  # by problem, the fastest first

    def of(self, problem: str) -> list[ProfileRow]:
        """Returns the rows of one problem, the fastest first."""
        return [row for row in self.rows if row.problem == problem]

    def best(self, problem: str) -> ProfileRow | None:
        """Returns the fastest supported row of a problem, None if there is none.

        If any of its rows was checked, returns the fastest of these.
        """
        supported = [row for row in self.of(problem) if row.is_supported]
        checked = [row for row in supported if row.rel_error is not None]
        return next(iter(checked or supported), None)

    def to_json(self) -> str:
        """Returns the profile as one JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return "\n\n".join("\n".join(self._table(problem)) for problem in self.layers)

    def _table(self, problem: str) -> list[str]:
        names = [name for name in self.layers[problem] if name]
        lines = textwrap.wrap(", ".join(names), MAX_COLUMNS) if names else []
        rows = self.of(problem)
        fastest, others = _fastest_settings(row for row in rows if row.is_supported)
        # The column with the least information is cut first.
        head, *shown = text_table(
            [_HEAD, *map(_cells, fastest)], right=(2, 3, 4, 6, 7), indent="  ",
            columns=MAX_COLUMNS, shrink=({8: 9}, {0: 24}),
        )  # fmt: skip
        table = [head]
        for line, row, count in zip(shown, fastest, others, strict=True):
            table += [line, *_settings(row, count)]
        return [*lines, f"{problem}  on {self.device}", *table, *_refusals(rows)]


def profile(
    target: nn.Module | str,
    example_inputs: Any = None,
    *,
    directions: Directions | None = "all",
    device: DeviceLike = None,
    dtype: DType | torch.dtype | None = None,
    budget_s: float = 2.0,
    check: bool = True,
    max_error: float = MAX_ERROR,
    workspace_limit_bytes: int = 1 << 30,
    runtime_compiled: bool = False,
    progress: bool = True,
) -> Profile:
    """Times every algorithm that computes the convolutions of `target`, on random data.

        print(torchalgo.profile(model, x, directions="forward"))

    Args:
        target: a module, or the text of a problem. Of a module, each distinct convolution is
            timed once. The module runs once, to find the sizes of its layers.
        example_inputs: the inputs of forward, if `target` is a module.
        directions: "forward", "backward_data", "backward_filter", several, or "all". They replace a
            problem's own direction. None: the problem as it is, which need not be a convolution
            then; or the forward convolutions of a module.
        device: the device to run on. None: the device of the module, or this CPU for a problem.
        dtype: "f32", "tf32", "f16", ...: replaces the data type of the convolutions. None: keeps
            it.
        budget_s: the seconds of timing and checking for each problem in each direction. Work that
            has begun is finished.
        check: True compares results with f64, the fastest first, until the budget is over and one
            result was right. If there was no time, `rel_error` is None. What was right has a
            `componentwise_error` too, see Settings(max_componentwise_error).
        max_error: the largest relative L2 of a result; it is larger for lower precisions. A
            primitive whose result exceeds it counts as not supported. From 1e-3 on, there are also
            rows of algorithms that store tensors or weights in bf16 or f16.
        workspace_limit_bytes: the most bytes of workspace; primitives that need more are refused.
        runtime_compiled: True also times cuDNN's engines that are compiled when they first run.
            Each takes seconds, regardless of the budget.
        progress: False shows no progress on stderr.

    Returns: a Profile with a row for each algorithm and problem.
    Raises: torchalgo.Error if an argument is invalid, or if the device is not in this machine.
    """
    if budget_s <= 0:
        raise Error(f"TA1001 profile: budget_s={budget_s}, expected a number of seconds above 0")
    where = find_device(default_device(target, example_inputs) if device is None else device)
    if isinstance(target, str) and directions is not None:
        target = bare_convolution(target, "profile")
    named = asked_layers(target, example_inputs, where, directions, dtype, "profile")
    if where.kind == "cuda" and where.index < 0:
        raise Error(
            f"TA5006 profile: {where.name} is only described, so nothing can run on it;"
            " torchalgo.candidates(..., device=...) lists its candidates without running them"
        )
    layers: dict[str, list[str]] = {}
    for name, problem in named:
        if name not in layers.setdefault(problem, []):
            layers[problem].append(name)
    effort = _Effort(
        budget_s, max_error if check else None, workspace_limit_bytes, runtime_compiled,
        allows_coarse_types(max_error),
    )  # fmt: skip
    warn_if_busy(torch.get_num_threads(), None)
    rows: list[ProfileRow] = []
    done: list[str] = []
    try:
        with Progress(progress).watched(lambda: f"timing problem {len(done) + 1} of {len(layers)}"):
            for problem in layers:
                rows += _measured(problem, where, effort)
                done.append(problem)
    finally:
        _bench_on(where).release()
    name = describe_device(where) or f"{where.name}, {where.threads} threads"
    return Profile(name, layers, rows)


# ---- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Effort:
    """The arguments of `profile` that hold for each problem."""

    budget_s: float
    bound: float | None  # None: nothing is checked
    limit_bytes: int
    runtime_compiled: bool
    coarse_types: bool


def _measured(problem: str, device: _C.Device, effort: _Effort) -> list[ProfileRow]:
    started = time.monotonic()
    layer = ask(LayerProblem("", problem), device, effort.limit_bytes, effort.coarse_types)
    # A view is not measured. It does no work, but outside its graph it would have to copy.
    offered = [o for o in layer.offered if not _C.is_view(o.primitive)]
    tasks = [(problem, _C.Primitive(o.primitive, o.src, o.dst, o.workspace_bytes)) for o in offered]
    is_left_out = [o.is_runtime_compiled and not effort.runtime_compiled for o in offered]
    failures = [RUNTIME_COMPILED if left_out else "" for left_out in is_left_out]
    bench = _bench_on(device)
    times = _times(tasks, failures, bench, TIMING_SHARE * effort.budget_s)
    errors: dict[int, float] = {}
    if effort.bound is not None:
        allowed = max(effort.bound, COARSE_BOUND.get(dtype_of(problem), 0.0))
        has_passed = False
        for _, i in sorted((statistics.median(ns), i) for i, ns in enumerate(times) if ns):
            if has_passed and time.monotonic() - started > effort.budget_s:
                break
            ((errors[i], failures[i]),) = bench.check(problem, [tasks[i][1]], allowed)
            has_passed |= not failures[i]
            times[i] = times[i] if not failures[i] else []
    passed = [i for i in errors if not failures[i]]
    tried = errors_of([tasks[i] for i in passed], bench)
    componentwise = {i: error for i, (error, why) in zip(passed, tried, strict=True) if not why}
    rows = [
        ProfileRow(
            **vars(o),
            problem=problem,
            median_us=statistics.median(ns) / 1000 if ns else None,
            noise_us=_spread(ns) / 1000 if ns else None,
            samples=len(ns),
            rel_error=errors.get(i),
            componentwise_error=componentwise.get(i),
            reason=failures[i],
        )
        for i, (o, ns) in enumerate(zip(offered, times, strict=True))
    ]
    rows.sort(key=lambda r: (r.median_us is None, r.median_us or 0.0, r.primitive, r.src, r.dst))
    refused = [
        ProfileRow(r.primitive, "", "", 0, problem=problem, reason=r.reason) for r in layer.refused
    ]
    return rows + refused


def _bench_on(device: _C.Device) -> Bench:
    return Bench.on(None if device.kind == "cpu" else device)


def _spread(ns: list[float]) -> float:
    return median_noise(ns) if len(ns) >= 4 else (max(ns) - min(ns)) / 2


def _times(
    tasks: Sequence[tuple[str, _C.Primitive]], failures: list[str], bench: Bench, budget_s: float
) -> list[list[float]]:
    """Times the tasks whose `failures` are empty. Returns their times in ns.

    Puts the reason of each new failure into `failures`. Such tasks have no times.

    They race, in interleaved rounds: slow ones get fewer samples. Few are timed at once, since each
    has its own buffers.
    """
    times: list[list[float]] = [[] for _ in tasks]
    untimed = [i for i, failure in enumerate(failures) if not failure]
    for first in range(0, len(untimed), MOST_AT_ONCE):
        chosen = untimed[first : first + MOST_AT_ONCE]
        taken = bench.measure(
            [tasks[i] for i in chosen],
            warmup=1,
            rounds=ROUNDS,
            budget_s=budget_s * len(chosen) / len(untimed),
            cold_bytes=COLD_BYTES,
            seed=0,
            race=True,
        )
        for i, result in zip(chosen, taken, strict=True):
            times[i] = [] if result.failure else result.ns
            failures[i] = result.failure or ("" if result.ns else "gave no samples")
    return times


# ---- print(profile) ------------------------------------------------------------------------------


def _cells(row: ProfileRow) -> tuple[str, ...]:
    layout = row.src if row.src == row.dst else f"{row.src}>{row.dst}"
    return (
        without_knobs(row.primitive),
        layout,
        f"{row.median_us:.1f}",
        f"{row.noise_us:.1f}",
        format_bytes(row.workspace_bytes),
        "yes" if row.is_deterministic else "no",
        "" if row.rel_error is None else f"{row.rel_error:.0e}",
        "" if row.componentwise_error is None else f"{row.componentwise_error:.0e}",
        ", ".join(["yes", *row.numerics]),
    )


def _fastest_settings(rows: Iterable[ProfileRow]) -> tuple[list[ProfileRow], list[int]]:
    """Returns the fastest row of each engine in its layouts, and the number of its other settings.

    An engine of cuDNN has up to hundreds of settings: `{KNOB=value,...}` at the end of its name.
    """
    found: dict[tuple[str, str, str], list[ProfileRow]] = {}
    for row in rows:
        found.setdefault((without_knobs(row.primitive), row.src, row.dst), []).append(row)
    return [own[0] for own in found.values()], [len(own) - 1 for own in found.values()]


def _settings(row: ProfileRow, others: int) -> list[str]:
    """Returns lines with the settings of an engine's fastest row."""
    text = knobs_of(row.primitive) or ("its defaults" if others else "")
    if others:
        text += f"; {others} other {'settings are' if others > 1 else 'setting is'} slower"
    return textwrap.wrap(text, MAX_COLUMNS, initial_indent="    ", subsequent_indent="    ")


def _refusals(rows: list[ProfileRow]) -> list[str]:
    """Returns lines with the primitives that are not supported, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason and not is_other_operation(row.primitive, row.reason):
            reasons.setdefault(without_layouts(row.reason), []).append(row.primitive)
    lines = []
    for reason, names in reasons.items():
        text = f"not supported: {some_of(names, 6)}: {' '.join(reason.split())}"
        lines += textwrap.wrap(text, MAX_COLUMNS, initial_indent="  ", subsequent_indent="    ")
    return lines
