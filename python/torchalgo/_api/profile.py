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
from torchalgo._base.stats import median_noise
from torchalgo._C import Error
from torchalgo._capture.freeze import as_inputs
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
    bare_convolution,
    check_directions,
    check_dtype,
    dtype_of,
    gradient_of,
    is_other_operation,
    problems_of,
    with_direction,
    with_dtype,
)
from torchalgo._measure.componentwise import errors_of
from torchalgo._measure.sampling import Bench
from torchalgo._plan.candidates import (
    DeviceLike,
    default_device,
    describe_device,
    find_device,
)

MAX_COLUMNS = 100
FINALIST_RATIO = 2.0  # primitives that take at most this many times the fastest's time go on
MOST_AT_ONCE = 32  # the most primitives in the same rounds
MOST_SAMPLES = 51
TIMING_SHARE = 0.6  # the part of the budget for timing; checks have the rest
RUNTIME_COMPILED = "is compiled when it first runs, which takes seconds: see runtime_compiled"
# Bytes that are read before each sample. So weights come from memory, as in a usual network.
COLD_BYTES = 48 << 20
_HEAD = (
    "algorithm", "layout", "us", "+-", "memory", "determ.", "error", "componentwise", "supported",
)  # fmt: skip


@dataclass(frozen=True)
class ProfileRow:
    """A row of a Profile: one algorithm on one problem.

    If the algorithm is not supported, it has no times, and `reason` says why.
    """

    problem: str
    primitive: str
    src: str
    dst: str
    median_us: float | None
    noise_us: float | None  # half the 95 % interval of the median; with < 4 samples half the range
    samples: int
    workspace_bytes: int
    is_deterministic: bool
    is_runtime_compiled: bool
    numerics: list[str]
    hidden_bytes: int | None  # bytes that it copies between layouts inside; None: unknown
    rel_error: float | None  # relative L2 to a result in f64; None: not checked
    # The error of a single result beside a large value: Settings(max_componentwise_error). None:
    # not tried, or no convolution.
    componentwise_error: float | None
    reason: str  # "": it is supported

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
        fields = {
            "device": self.device,
            "layers": self.layers,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        return json.dumps(fields, indent=1, allow_nan=False) + "\n"

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

    Returns: a Profile with a row for each algorithm and problem.
    Raises: torchalgo.Error if an argument is invalid, or if the device is not in this machine.
    """
    found = check_directions(directions, "profile")
    word = check_dtype(dtype, "profile")
    if budget_s <= 0:
        raise Error(f"TA1001 profile: budget_s={budget_s}, expected a number of seconds above 0")
    layers: dict[str, list[str]] = {}
    where = find_device(default_device(target, example_inputs) if device is None else device)
    if isinstance(target, str) and not found:
        named = [("", str(_C.parse_problem(target)))]
    elif isinstance(target, str):
        spelled = bare_convolution(target, "profile")
        named = [("", with_direction(spelled, direction)) for direction in found]
    else:
        found = found or ("fwd",)
        inputs = _inputs(target, example_inputs)
        problems = problems_of(target, inputs, where.kind)
        named = [(name, gradient_of(p, direction)) for name, p in problems for direction in found]
    if where.kind == "cuda" and where.index < 0:
        raise Error(
            f"TA5006 profile: {where.name} is only described, so nothing can run on it;"
            " torchalgo.candidates(..., device=...) lists its candidates without running them"
        )
    for name, problem in named:
        names = layers.setdefault(with_dtype(problem, word) if word else problem, [])
        if name not in names:
            names.append(name)
    effort = _Effort(
        budget_s, max_error if check else None, workspace_limit_bytes, runtime_compiled,
        allows_coarse_types(max_error),
    )  # fmt: skip
    warn_if_busy(torch.get_num_threads(), None)
    try:
        rows = [row for problem in layers for row in _measured(problem, where, effort)]
    finally:
        _bench_on(where).release()
    name = describe_device(where) or f"{where.name}, {where.threads} threads"
    return Profile(name, layers, rows)


def _inputs(module: nn.Module, example_inputs: Any) -> tuple[Any, ...]:
    if not isinstance(module, nn.Module):
        raise Error(
            f"TA4008 profile: target is {type(module).__name__}, expected a module or the text of a"
            " problem"
        )
    if example_inputs is None:
        raise Error(
            "TA4008 profile: got a module without its input: call profile(module, torch.rand(...))"
        )
    return as_inputs(example_inputs)


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
    offered, offered_traits, refusals = _C.offers_of(
        problem, effort.limit_bytes, device, effort.coarse_types
    )
    # A view is not measured. It does no work, but outside its graph it would have to copy.
    moved = [i for i, p in enumerate(offered) if not _C.is_view(p.name)]
    primitives, traits = [offered[i] for i in moved], [offered_traits[i] for i in moved]
    is_left_out = [t.is_runtime_compiled and not effort.runtime_compiled for t in traits]
    failures = [RUNTIME_COMPILED if left_out else "" for left_out in is_left_out]
    times = _times(problem, primitives, failures, device, TIMING_SHARE * effort.budget_s)
    errors: list[float | None] = [None] * len(primitives)
    if effort.bound is not None:
        allowed = max(effort.bound, COARSE_BOUND.get(dtype_of(problem), 0.0))
        order = sorted((statistics.median(ns), i) for i, ns in enumerate(times) if ns)
        has_passed = False
        for _, i in order:
            if has_passed and time.monotonic() - started > effort.budget_s:
                break
            ((errors[i], failures[i]),) = _bench_on(device).check(problem, [primitives[i]], allowed)
            has_passed |= not failures[i]
            times[i] = times[i] if not failures[i] else []
    passed = [i for i, error in enumerate(errors) if error is not None and not failures[i]]
    tried = errors_of([(problem, primitives[i]) for i in passed], _bench_on(device))
    componentwise = {
        i: None if why else error for i, (error, why) in zip(passed, tried, strict=True)
    }
    rows = []
    for i, (p, t) in enumerate(zip(primitives, traits, strict=True)):
        us = [ns / 1000 for ns in times[i]]
        rows.append(
            ProfileRow(
                problem=problem,
                primitive=p.name,
                src=p.src,
                dst=p.dst,
                median_us=statistics.median(us) if us else None,
                noise_us=_spread(us) if us else None,
                samples=len(us),
                workspace_bytes=p.workspace_bytes,
                is_deterministic=t.is_deterministic,
                is_runtime_compiled=t.is_runtime_compiled,
                numerics=list(t.numerics),
                hidden_bytes=t.hidden_bytes,
                rel_error=errors[i],
                componentwise_error=componentwise.get(i),
                reason=failures[i],
            )
        )
    rows.sort(key=lambda r: (r.median_us is None, r.median_us or 0.0, r.primitive, r.src, r.dst))
    return rows + [_refused(problem, r) for r in refusals]


def _bench_on(device: _C.Device) -> Bench:
    return Bench.on(None if device.kind == "cpu" else device)


def _spread(us: list[float]) -> float:
    return median_noise(us) if len(us) >= 4 else (max(us) - min(us)) / 2


def _refused(problem: str, refusal: _C.Refusal) -> ProfileRow:
    return ProfileRow(
        problem, refusal.primitive, "", "", None, None, 0, 0, True, False, [], None, None, None,
        refusal.reason,
    )  # fmt: skip


def _times(
    problem: str,
    primitives: Sequence[_C.Primitive],
    failures: list[str],
    device: _C.Device,
    budget_s: float,
) -> list[list[float]]:
    """Times the primitives whose `failures` are empty. Returns their times in ns.

    Puts the reason of each new failure into `failures`. Such primitives have no times.

    First, a few samples of all primitives are taken, then more samples of the fast ones. Samples
    are interleaved. Calls are short, so that Ctrl-C takes effect soon. They time few primitives at
    once, since each has its own buffers.
    """
    bench = _bench_on(device)
    times: list[list[float]] = [[] for _ in primitives]
    started = time.monotonic()

    def take(chosen: Sequence[int], rounds: int, part_s: float) -> None:
        tasks = [(problem, primitives[i]) for i in chosen]
        taken = bench.measure(
            tasks, warmup=1, rounds=rounds, budget_s=part_s, cold_bytes=COLD_BYTES, seed=0
        )
        for i, result in zip(chosen, taken, strict=True):
            times[i] += result.ns
            if result.failure or not times[i]:
                failures[i] = result.failure or "gave no samples"
                times[i] = []

    untimed = [i for i, failure in enumerate(failures) if not failure]
    for first in range(0, len(untimed), MOST_AT_ONCE):
        chosen = untimed[first : first + MOST_AT_ONCE]
        take(chosen, 3, budget_s / 3 * len(chosen) / len(untimed))
    while (left := budget_s - (time.monotonic() - started)) > 0:
        medians = {i: statistics.median(ns) for i, ns in enumerate(times) if ns}
        most = FINALIST_RATIO * min(medians.values(), default=0.0)
        fast = sorted((ns, i) for i, ns in medians.items() if ns <= most)[:MOST_AT_ONCE]
        chosen = [i for _, i in fast if len(times[i]) < MOST_SAMPLES]
        if not chosen:
            break
        take(chosen, 9, min(left, 1.0))
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
        shown = sorted(set(names), key=names.index)
        text = ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
        lines += textwrap.wrap(
            f"not supported: {text}: {' '.join(reason.split())}",
            MAX_COLUMNS,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    return lines
