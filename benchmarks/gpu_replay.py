# SPDX-License-Identifier: BSD-3-Clause
"""Replays tuning with the costs of an H100, for several choices of what is measured.

TABLE holds what one GPU took for almost all candidates of a ResNet-50 in f16 with batch 8. For
three of its 68 groups of operations there was no time; their costs are predicted from the others.
The stage tables of gpu_check.py writes more tables.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path

from cost_tables import Row, Table, candidates_of, read_table, usable
from harness import RESULTS, Record, git_state, record
from replay import plan_of, price, ticks_of, tune
from torchalgo import _C
from torchalgo._ir.bounds import GpuPeaks
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._ir.devices import named_device

TABLE = RESULTS / "gpu" / "h100" / "resnet50_8_f16_table.json.gz"
VISIT_S = 0.00564  # of a candidate, when the table was recorded: the mean
CHECK_S = 0.05  # of a candidate
BUDGETS_S = (5.0, 10.0, 20.0)  # of measuring

Allow = Callable[[_C.Candidate], bool]


def complete(table: Table, peaks: GpuPeaks) -> Table:
    """Returns the table with predicted costs for the convolutions that it lacks.

    The prediction is the roofline times the median ratio of the same engine with the same layouts
    and fused steps to its roofline, preferably with the same knobs.
    """

    def roofline(key: Key) -> float:
        return TICKS_PER_NS * peaks.roofline_ns(key.problem, _C.Primitive(*key[1:]))

    def likes(key: Key) -> list[tuple[str, ...]]:
        fused = key.problem.partition("_g")[2].partition("+")[2]
        engine = key.primitive.partition("{")[0]
        return [(name, key.src, key.dst, fused) for name in (key.primitive, engine)]

    ratios: dict[tuple[str, ...], list[float]] = {}
    for key, row in table.rows.items():
        for like in likes(key):
            ratios.setdefault(like, []).append(row.ticks / roofline(key))
    rows = dict(table.rows)
    wanted = {key_of(c.problem, c.primitive) for c in candidates_of(table)} - rows.keys()
    for key in wanted:
        known = next(filter(None, (ratios.get(like) for like in likes(key))), None)
        if known and key.problem.startswith("fwd"):
            ticks = round(statistics.median(known) * roofline(key))
            rows[key] = Row(ticks, 0, 3, ticks, VISIT_S, 0.0)
    failures = dict.fromkeys(wanted - rows.keys(), "was not reached")
    return usable(dataclasses.replace(table, rows=rows, failures=failures))


LAUNCH_NS = 1750.0  # of an own kernel, beside the bytes that it reads and writes once
MODELLED = "all and own kernels"


def with_own_kernels(table: Table, device: _C.Device, peaks: GpuPeaks) -> Table:
    """Returns the table with the kernels of csrc/cuda, which did not exist when it was recorded.

    Their costs are modelled: LAUNCH_NS, and the bytes at the highest rate.
    """
    found = _C.find_candidates(table.graph, 1 << 30, device, False, True, False, False)
    assert len(found.by_anchor) == len(table.found.by_anchor)
    rows, by_anchor = dict(table.rows), []
    for known, new in zip(table.found.by_anchor, found.by_anchor, strict=True):
        own = [c for c in new if c.primitive.name.startswith("cuda.")]
        for c in own:
            ticks = round(TICKS_PER_NS * (LAUNCH_NS + peaks.roofline_ns(c.problem, c.primitive)))
            rows[key_of(c.problem, c.primitive)] = Row(ticks, 0, 3, ticks, VISIT_S, 0.0)
        by_anchor.append([*known, *own])
    return dataclasses.replace(table, rows=rows, found=_C.Candidates(by_anchor))


def choices(table: Table, device: _C.Device) -> dict[str, Allow]:
    """Returns what may be measured, by name of the choice.

    cuDNN is asked about a described GPU. Engines that need a driver are unknown here. They count
    as cuDNN's first choice if they have no knobs.
    """

    def keys_of(dropped: bool, all_knobs: bool) -> set[Key]:
        found = _C.find_candidates(
            table.graph, 1 << 30, device, False, dropped, not dropped, all_knobs
        )
        return {key_of(c.problem, c.primitive) for own in found.by_anchor for c in own}

    every = keys_of(False, True)

    def allow(all_knobs: bool) -> Allow:
        kept = keys_of(True, all_knobs)

        def is_kept(c: _C.Candidate) -> bool:
            key = key_of(c.problem, c.primitive)
            is_engine = key.primitive.startswith("cudnn9.")
            needs_driver = is_engine and key not in every
            return key in kept or (needs_driver and (all_knobs or "{" not in key.primitive))

        return is_kept

    return {
        "all": lambda c: True,
        "all_knobs=True": allow(True),
        "the default": allow(False),
        "PyTorch's own": lambda c: not c.primitive.name.startswith("cudnn"),
    }


def run_gpu(out: Path, *paths: Path) -> int:
    """Replays the tuning with each table, or with TABLE, and appends a record of each choice."""
    device = named_device("h100")
    peaks = GpuPeaks.of(device)
    assert peaks is not None
    for path in paths or (TABLE,):
        print(path.name)
        replay_table(out, path, device, peaks)
    return 0


def replay_table(out: Path, path: Path, device: _C.Device, peaks: GpuPeaks) -> None:
    """Replays the tuning for each choice and budget."""
    table = complete(read_table(path), peaks)
    print(f"{'measured':16} {'number':>7} {'best':>8}" + "".join(f"{b:>8.0f} s" for b in BUDGETS_S))
    parts = {
        name: dataclasses.replace(
            table,
            found=_C.Candidates([[c for c in own if allows(c)] for own in table.found.by_anchor]),
        )
        for name, allows in choices(table, device).items()
    }
    parts[MODELLED] = with_own_kernels(table, device, peaks)
    for name, part in parts.items():
        few = part.found.by_anchor
        count = len({key_of(c.problem, c.primitive) for own in few for c in own})
        best = price(plan_of(part, part.costs()), ticks_of(part)) / TICKS_PER_NS / 1000
        plans = [tune(part, b, peaks=peaks, check_s=CHECK_S)[0] for b in BUDGETS_S]
        after = [price(plan, ticks_of(part)) / TICKS_PER_NS / 1000 for plan in plans]
        print(
            f"{name:16} {count:7} {best:8.1f}" + "".join(f"{us:10.1f}" for us in after), flush=True
        )
        result: Record = {
            "schema": 1, "benchmark": "gpu_replay", "table": path.name, "measured": name,
            "candidates": count, "best_us": round(best, 1), "budgets_s": BUDGETS_S,
            "plan_us": [round(us, 1) for us in after], "git": git_state(),
        }  # fmt: skip
        record(out, result)
