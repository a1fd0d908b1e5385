# SPDX-License-Identifier: BSD-3-Clause
"""Plain C loop nests of convolutions, as GCC and Clang compile them, beside primitives.

price_compilers.py measures them.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

import harness
from compare import in_rounds
from pages import table
from torchalgo import _C
from torchalgo._base.stats import Faster, cost_of_samples, is_faster

LAYOUTS = ("nchw", "nhwc", "nChw16c")
FLOOR = "relu_f32_n1c16h1w1"  # costs as good as nothing but its call
SAMPLES, ROUNDS, BUDGET_S, RACE_ROUNDS = 5, 15, 8.0, 5
CONVOLUTIONS = (  # c, h = w, k, filter, stride, padding, groups
    (3, 224, 64, (7, 7), 2, (3, 3), 1), (3, 224, 64, (11, 11), 4, (2, 2), 1),
    (3, 224, 32, (3, 3), 2, (1, 1), 1), (64, 56, 64, (3, 3), 1, (1, 1), 1),
    (128, 28, 128, (3, 3), 1, (1, 1), 1), (256, 14, 256, (3, 3), 1, (1, 1), 1),
    (128, 56, 32, (3, 3), 1, (1, 1), 1), (64, 56, 128, (3, 3), 2, (1, 1), 1),
    (256, 14, 512, (3, 3), 2, (1, 1), 1), (64, 27, 192, (5, 5), 1, (2, 2), 1),
    (48, 25, 64, (5, 5), 1, (2, 2), 1), (160, 12, 160, (1, 7), 1, (0, 3), 1),
    (64, 56, 256, (1, 1), 1, (0, 0), 1), (256, 14, 1024, (1, 1), 1, (0, 0), 1),
    (512, 7, 2048, (1, 1), 1, (0, 0), 1), (256, 56, 512, (1, 1), 2, (0, 0), 1),
    (64, 55, 16, (1, 1), 1, (0, 0), 1), (320, 7, 1280, (1, 1), 1, (0, 0), 1),
    (32, 112, 32, (3, 3), 1, (1, 1), 32), (144, 56, 144, (3, 3), 2, (1, 1), 144),
    (384, 14, 384, (3, 3), 1, (1, 1), 384), (240, 28, 240, (5, 5), 1, (2, 2), 240),
)  # fmt: skip
FLAGS = ["-O3", "-march=native", "-ffast-math", "-fPIC", "-shared"]
Bounds = tuple[tuple[str, int], ...]  # of loops: the variable, the trip count
COMPILERS = {
    "gcc": ["gcc"], "gcc graphite": ["gcc", "-floop-nest-optimize"],
    "clang": ["clang"], "clang polly": ["clang", "-mllvm", "-polly"],
}  # fmt: skip

# ---- times ---------------------------------------------------------------------------------------


def ours_us(problem: str, primitive: Any, rounds: int = SAMPLES) -> float:
    """The time of a primitive with warm weights."""
    (result,) = _C.measure([(problem, primitive)], warmup=1, rounds=rounds, cold_bytes=0)
    return cost_of_samples(result.ns)[0] / 1000


def fastest(problem: str, algorithm: str = "") -> dict[str, Any]:
    """The fastest primitive for each layout, or pair of layouts for the first convolution."""
    offered = [
        p for p in _C.offers_of(problem)[0]
        if not _C.is_view(p.name) and (not algorithm or _C.matches_name(p.name, algorithm))
    ]  # fmt: skip
    results = _C.measure(
        [(problem, p) for p in offered],
        warmup=1, rounds=RACE_ROUNDS, budget_s=1.5, cold_bytes=0, race=True,
    )  # fmt: skip
    found: dict[str, tuple[float, Any]] = {}
    for primitive, result in zip(offered, results, strict=True):
        src, dst = str(primitive.src), str(primitive.dst)
        is_first = src == "nchw" and re.search(r"_n1c3h", problem) is not None
        if result.ns and src in LAYOUTS and dst in LAYOUTS and (src == dst or is_first):
            us = cost_of_samples(result.ns)[0]
            if dst not in found or us < found[dst][0]:
                found[dst] = us, primitive
    return {layout: primitive for layout, (_, primitive) in found.items()}


def time_us(run: Callable[[], Any], refresh: Callable[[], Any], samples: int = SAMPLES) -> float:
    """The time of a run whose inputs were just written."""
    run()
    times = []
    for _ in range(samples):
        refresh()
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return cost_of_samples(times)[0] / 1000


def copied(inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """Returns what writes the inputs again."""
    pairs = [(x, x.clone()) for x in inputs]
    return lambda: [x.copy_(values) for x, values in pairs]


def error_of(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative L2."""
    return float((result - reference).double().norm() / reference.double().norm())


def record_of(kind: str, case: str, threads: int, **fields: Any) -> harness.Record:
    return {
        "schema": 1, "benchmark": "compilers", "kind": kind, "case": case, "threads": threads,
        "isa": _C.cpu_device().isa, **fields,
    }  # fmt: skip


def short(taken: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(us, 2) for us in times] for name, times in taken.items()}


# ---- loops ---------------------------------------------------------------------------------------


def conv_text(conv: Sequence[Any]) -> str:
    c, h, k, (r, s), stride, (pad_h, pad_w), groups = conv
    return (
        f"fwd_f32_n1c{c}h{h}w{h}_k{k}r{r}s{s}_st{stride}x{stride}"
        f"_pad{pad_h}x{pad_w}_dil1x1_g{groups}"
    )


def loops(*bounds: tuple[str, int]) -> str:
    return " ".join(f"for (int {v} = 0; {v} < {n}; ++{v})" for v, n in bounds)


def nest_of(conv: Sequence[Any], form: str) -> str:
    """A loop nest in C on a padded source.

    Args:
        form: "sums" has the sum innermost, "rows" a row of the result, both in nchw. "blocks" and
            "blocks, rows" are the same in nChw16c.
    """
    c, h, k, (r, s), stride, (pad_h, pad_w), groups = conv
    rows, columns = h + 2 * pad_h, h + 2 * pad_w
    p, q = (rows - r) // stride + 1, (columns - s) // stride + 1
    at = f"[p * {stride} + r][q * {stride} + s]"
    taps = (("r", r), ("s", s))
    outer: Bounds
    zero: Bounds
    inner: Bounds
    is_deep, is_blocked = groups > 1, form.startswith("blocks")
    if is_blocked:
        blocks_c, last = (c, "") if c < 16 else (c // 16, "[16]")
        source, weights = f"[{blocks_c}][{rows}][{columns}]{last}", f"[{r}][{s}][16]"
        lanes, outer = ("l", 16), (("k", k // 16), ("p", p), ("q", q))
        result, dst = f"[{k // 16}][{p}][{q}][16]", "dst[k][p][q][l]"
        if is_deep:
            inner, term = (*taps, lanes), f"src[k]{at}[l] * wei[k][r][s][l]"
            weights = f"[{k // 16}]{weights}"
        elif last:
            inner = (("c", blocks_c), *taps, ("i", 16), lanes)
            term = f"src[c]{at}[i] * wei[k][c][r][s][i][l]"
            weights = f"[{k // 16}][{blocks_c}][{r}][{s}][16][16]"
        else:
            inner, term = (("c", c), *taps, lanes), f"src[c]{at} * wei[k][c][r][s][l]"
            weights = f"[{k // 16}][{c}]{weights}"
        zero = (lanes,)
        if form == "blocks, rows":
            outer, zero = outer[:-1], (outer[-1], lanes)
            inner = (*inner[:-1], *zero)
    else:
        source, result, dst = f"[{c}][{rows}][{columns}]", f"[{k}][{p}][{q}]", "dst[k][p][q]"
        channel = () if is_deep else (("c", c),)
        weights = f"[{k}][{r}][{s}]" if is_deep else f"[{k}][{c}][{r}][{s}]"
        term = f"src[k]{at} * wei[k][r][s]" if is_deep else f"src[c]{at} * wei[k][c][r][s]"
        if form == "sums":
            outer, zero, inner = (("k", k), ("p", p), ("q", q)), (), (*channel, *taps)
        else:
            outer, zero, inner = (("k", k), ("p", p)), (("q", q),), (*channel, *taps, ("q", q))
    return (
        f"void kernel(const float src[restrict]{source[source.index(']') + 1 :]},\n"
        f"            const float wei[restrict]{weights[weights.index(']') + 1 :]},\n"
        f"            float dst[restrict]{result[result.index(']') + 1 :]}) {{\n"
        f"  {loops(*outer)} {{\n"
        f"    {loops(*zero)} {dst} = 0;\n    {loops(*inner)} {dst} += {term};\n  }}\n}}\n"
    )


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """nchw as nChw16c."""
    n, c, h, w = x.shape
    return x.reshape(n, c // 16, 16, h, w).permute(0, 1, 3, 4, 2).contiguous()


def blocked_weights(w: torch.Tensor, is_deep: bool) -> torch.Tensor:
    k, c, r, s = w.shape
    if is_deep:
        return w.reshape(k // 16, 16, r, s).permute(0, 2, 3, 1).contiguous()
    if c < 16:
        return w.reshape(k // 16, 16, c, r, s).permute(0, 2, 3, 4, 1).contiguous()
    return w.reshape(k // 16, 16, c // 16, 16, r, s).permute(0, 2, 4, 5, 3, 1).contiguous()


def build(source: str, command: Sequence[str], folder: Path) -> tuple[Any, str]:
    """The function, and the hash of its instructions."""
    (folder / "nest.c").write_text(source)
    flags = [*command[1:], *FLAGS]
    name = hashlib.sha256(f"{command}{source}".encode()).hexdigest()[:16]
    run = partial(subprocess.run, check=True, cwd=folder, timeout=120, capture_output=True)
    run([command[0], *flags[:-1], "-S", "nest.c", "-o", f"{name}.s"])
    run([command[0], "-shared", f"{name}.s", "-o", f"{name}.so"])
    return ctypes.CDLL(str(folder / f"{name}.so")).kernel, hashlib.sha256(
        (folder / f"{name}.s").read_bytes()
    ).hexdigest()


def price_loops(index: Sequence[int], options: harness.Record) -> Iterator[harness.Record]:
    """Loop nests beside ours, one record per convolution."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    for conv in [CONVOLUTIONS[i] for i in index]:
        with tempfile.TemporaryDirectory() as folder:
            yield price_nest(conv, Path(folder), options["threads"])


def price_nest(conv: Sequence[Any], folder: Path, threads: int) -> harness.Record:
    """The record of one convolution."""
    c, h, k, (r, s), stride, (pad_h, pad_w), groups = conv
    problem = conv_text(conv)
    x, w = torch.rand(1, c, h, h) - 0.5, torch.rand(k, c // groups, r, s) - 0.5
    reference = functional.conv2d(x, w, None, stride, (pad_h, pad_w), 1, groups)
    padded = functional.pad(x, (pad_w, pad_w, pad_h, pad_h))
    given: dict[str, list[torch.Tensor]] = {
        "nchw": [padded, w, torch.zeros_like(reference)],
        "nChw16c": [
            padded if c < 16 else in_blocks(padded), blocked_weights(w, groups > 1),
            torch.zeros_like(in_blocks(reference)),
        ],
    }  # fmt: skip
    looks, hashes, errors, failures = {}, {}, {}, {}
    runs: dict[str, tuple[str, Callable[[], float]]] = {}
    for form in ("sums", "rows", "blocks", "blocks, rows"):
        layout = "nChw16c" if form.startswith("blocks") else "nchw"
        src, weights, dst = given[layout]
        want, refresh = reference if layout == "nchw" else in_blocks(reference), copied([src])
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (src, weights, dst)]
        for name, command in COMPILERS.items():
            key = f"{name}, {form}"
            try:
                function, hashes[key] = build(nest_of(conv, form), command, folder)
            except (subprocess.SubprocessError, OSError) as problem_of_it:
                failures[key] = type(problem_of_it).__name__
                continue
            run = partial(function, *pointers)
            looks[key] = time_us(run, refresh, 1)
            errors[key] = error_of(dst, want)
            samples = SAMPLES if looks[key] < 5e3 else 1
            best = f"{name} {layout}"
            if best not in runs or looks[key] < looks[runs[best][0]]:
                runs[best] = key, partial(time_us, run, refresh, samples)
    own = {f"ours {layout}": p for layout, p in fastest(problem).items()}
    own |= {f"cpu.direct {at}": p for at, p in fastest(problem, "cpu.direct").items()}
    takers: dict[str, Callable[[], float]] = {
        name: partial(ours_us, problem, p) for name, p in own.items()
    }
    for layout, (src, *_) in given.items():
        takers[f"pad {layout}"] = pad_taker(src, pad_h, pad_w)
    nothing = build("void kernel(void) {}\n", ["gcc"], folder)[0]
    takers["floor nest"] = lambda: time_us(partial(nothing, *pointers), refresh)
    takers["floor ours"] = partial(ours_us, FLOOR, fastest(FLOOR)["nchw"])
    taken = in_rounds(takers | {n: t for n, (_, t) in runs.items()}, ROUNDS, BUDGET_S)
    return record_of(
        "loops", problem, threads, flop=_C.flop_count(problem), wall_us=short(taken),
        primitives={name: p.name for name, p in own.items()},
        nests={name: key for name, (key, _) in runs.items()},
        looks_us={key: round(us, 1) for key, us in looks.items()}, rel_error=errors,
        changed=[
            key for key in hashes
            if hashes[key] != hashes.get(key.replace(" graphite", "").replace(" polly", ""))
        ],
        failures=failures, versions=compiler_versions(),
    )  # fmt: skip


def pad_taker(padded: torch.Tensor, pad_h: int, pad_w: int) -> Callable[[], float]:
    """Returns a function that times the copy of an image into a padded one; 0 without padding."""
    if pad_h == pad_w == 0:
        return lambda: 0.0
    rows, columns = padded.shape[2:4]
    inside = padded[:, :, pad_h : rows - pad_h, pad_w : columns - pad_w]
    image = inside.contiguous()
    return lambda: time_us(lambda: inside.copy_(image), copied([image]))


def called_as_ours(
    us: Sequence[float], floor: Sequence[float], ours: Sequence[float]
) -> list[float]:
    """Times by round, with the price of a call of ours instead of their own."""
    return [max(a - own, 0.0) + call for a, own, call in zip(us, floor, ours, strict=True)]


def compiler_versions() -> dict[str, str]:
    found = {}
    for name in ("gcc", "clang"):
        done = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        found[name] = done.stdout.splitlines()[0]
    return found


# ---- tables --------------------------------------------------------------------------------------


def cell(result: Faster | None) -> str:
    if result is None:
        return "-"
    return f"{result.ratio:.2f} [{result.low:.2f}, {result.high:.2f}]"


def nest_over_ours(line: harness.Record, layout: str, *, padded: bool) -> Faster:
    """The fastest nest of a layout over ours; with `padded`, the time to pad its source too."""
    wall = line["wall_us"]
    nests = [wall[f"{name} {layout}"] for name in COMPILERS if f"{name} {layout}" in wall]
    best = called_as_ours(min(nests, key=median), wall["floor nest"], wall["floor ours"])
    if padded:
        best = [a + b for a, b in zip(best, wall[f"pad {layout}"], strict=True)]
    return is_faster(best, wall[f"ours {layout}"])


def loops_table(lines: Mapping[str, Any]) -> list[str]:
    """GFLOP/s of ours and of the loop nests; ratios of the best nest to ours of its layout."""
    rows = []
    for problem, line in lines.items():
        wall = line["wall_us"]
        for layout in ("nchw", "nChw16c"):
            if f"ours {layout}" not in wall:
                continue
            names = [f"ours {layout}", f"cpu.direct {layout}"]
            names += [f"{compiler} {layout}" for compiler in COMPILERS]
            rates = [
                f"{line['flop'] / median(wall[name]) / 1e3:.1f}" if name in wall else "-"
                for name in names
            ]
            ratios = [
                cell(nest_over_ours(line, layout, padded=with_it)) for with_it in (False, True)
            ]
            rows.append([problem, layout, *rates, *ratios])
    head = ["ours", "cpu.direct", *COMPILERS, "best nest / ours", "with padding"]
    return table(["problem", "layout", *head], rows)


def free_gain_us(nodes: Sequence[Any], lines: Mapping[str, Any]) -> float:
    """Returns the time that nests in nChw16c save on a plan's depthwise convolutions.

    Padding counts as free. A convolution takes the ratio of the measured one with the nearest
    product of sizes.
    """
    ratios = {}
    for problem, line in lines.items():
        if (size := depthwise_size(problem)) > 0:
            result = nest_over_ours(line, "nChw16c", padded=False)
            ratios[size] = result.ratio if result.verdict == "faster" else 1.0
    gain = 0.0
    for problem, *_, us in nodes:
        if ratios and (size := depthwise_size(problem)) > 0:
            gain += us * (1 - ratios[min(ratios, key=lambda known: abs(math.log(known / size)))])
    return gain


def depthwise_size(problem: str) -> float:
    """The work of a depthwise convolution; 0 for another problem."""
    found = re.match(r"fwd_f32_n1c(\d+)h\d+w\d+_k.*_g(\d+)", problem)
    return _C.flop_count(problem) if found and found[1] == found[2] != "1" else 0.0
