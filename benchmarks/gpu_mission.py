# SPDX-License-Identifier: BSD-3-Clause
"""The first stage of gpu_check.py that needs a GPU: what is asked for is what runs.

Each algorithm of cuDNN's legacy enumeration is asked for by number and by name, in each direction,
on ten problems, and compared with f64. Then one is asked for through each other door: per module,
for a block of unchanged code, as an override of a plan, and in a saved file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import torchalgo
from gpu_problems import DTYPES, LAYERS, Rows
from gpu_stage import Context, Outcome
from torchalgo import _C

ARGUMENTS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_filter": "backward_filter"}
BOUNDS = {"f32": 1e-4, "f16": 4e-3}  # relative L2 to f64
PROBLEMS = list(LAYERS)[:10]


@dataclass(frozen=True)
class Ground:
    """A device, and what is asked for there: per direction, pairs of a choice and what must run."""

    device: str
    choices: dict[str, list[tuple[int | str, str]]]
    dtypes: tuple[str, ...] = ("f32", "f16")
    batch: int = 4


def cuda() -> Ground:
    """cuDNN's legacy algorithms by number and by name."""
    choices: dict[str, list[tuple[int | str, str]]] = {}
    for direction in ARGUMENTS:
        for number, word in _C.legacy_algorithms(direction):
            runs = f"cudnn_legacy.{direction}.{number}"
            choices.setdefault(direction, []).extend([(number, runs), (word, runs)])
    return Ground("cuda", choices)


def synchronize(ground: Ground) -> None:
    if ground.device == "cuda":
        torch.cuda.synchronize()


def case(layer: str, dtype: str, ground: Ground, seed: int) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Returns image, weights, gradient of the result, and the geometry of a problem."""
    c, h, k, r, stride, pad, groups = LAYERS[layer]
    generator = torch.Generator().manual_seed(seed)
    geometry = {"stride": stride, "padding": pad, "groups": groups}
    x = torch.randn(ground.batch, c, h, h, generator=generator)
    w = torch.randn(k, c // groups, r, r, generator=generator) / (c // groups * r * r) ** 0.5
    side = (h + 2 * pad - r) // stride + 1
    g = torch.randn(ground.batch, k, side, side, generator=generator)
    x, w, g = (t.to(ground.device, DTYPES[dtype]) for t in (x, w, g))
    return x, w, g, geometry


def compute(
    direction: str, tensors: tuple[Tensor, Tensor, Tensor], run: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Returns the result of `run`, or its gradient for the image or the weights."""
    x, w, g = tensors
    x = x.detach().requires_grad_(direction == "bwd_data")
    w = w.detach().requires_grad_(direction == "bwd_filter")
    y = run(x, w)
    if direction == "fwd":
        return y.detach()
    return torch.autograd.grad(y, x if direction == "bwd_data" else w, g)[0]


def ran_in(runs: Any, direction: str) -> set[str]:
    """Returns the primitives that ran in a direction, without their variants."""
    return {
        run.primitive.partition("@")[0].partition("{")[0]
        for run in runs if run.problem.startswith(f"{direction}_")
    }  # fmt: skip


def ask(
    direction: str, choice: int | str, expected: str, tensors: Any, geometry: Any, ground: Ground
) -> dict[str, Any]:
    """Returns a row of the table: status, error to f64, milliseconds, and why it did not run."""
    options: Any = {ARGUMENTS[direction]: choice, **geometry}

    def run(x: Tensor, w: Tensor) -> Tensor:
        return torchalgo.conv2d(x, w, **options)

    try:
        with torchalgo.record_runs() as runs:
            found = compute(direction, tensors, run)
        synchronize(ground)
    except RuntimeError as problem:  # autograd makes one of a torchalgo.Error in backward
        is_own = re.search(r"\bTA\d{4}\b", str(problem)) is not None
        return {"status": "refused" if is_own else "failed", "why": str(problem)[:300]}
    ran = ran_in(runs, direction)
    if not all(name == expected or name.startswith(f"{expected}.") for name in ran) or not ran:
        return {"status": "other", "why": f"{sorted(ran)} ran"}
    exact = compute(
        direction, tuple(t.double() for t in tensors),
        lambda x, w: nn.functional.conv2d(x, w, **geometry),
    )  # fmt: skip
    error = float((found.double() - exact).norm() / exact.norm())
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        compute(direction, tensors, run)
        synchronize(ground)
        times.append((time.perf_counter() - begin) * 1e3)
    return {"status": "ran", "error": error, "ms": sorted(times)[2]}


def table(context: Context, ground: Ground, outcome: Outcome) -> list[dict[str, Any]]:
    """Asks for each choice in each direction, type and problem."""
    rows: list[dict[str, Any]] = Rows(context)
    for layer in PROBLEMS[:2] if context.quick else PROBLEMS:
        for dtype in ground.dtypes:
            x, w, g, geometry = case(layer, dtype, ground, context.seed)
            for direction, choices in ground.choices.items():
                for choice, expected in choices:
                    if context.left_s() < 0:
                        outcome.data["reached"] = layer
                        return rows
                    row = ask(direction, choice, expected, (x, w, g), geometry, ground)
                    if row["status"] == "ran" and row["error"] > BOUNDS[dtype]:
                        row["status"] = "wrong"
                    where = {"problem": layer, "dtype": dtype, "direction": direction}
                    rows.append({**where, "asked": choice, **row})
    return rows


CHANNELS, SIDE = 64, 28  # of the input of Net


class Net(nn.Module):
    """Two convolutions with an activation between them, as user code has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(torch.relu(self.first(x)))
        return result


REOPEN = """
import sys, torchalgo
plan = torchalgo.load(sys.argv[1]).plan
print(*[node.primitive for node in plan.nodes if node.name == "second"])
"""


def doors(context: Context, ground: Ground, outcome: Outcome) -> dict[str, str]:
    """Asks for one forward algorithm through each other door. Returns what ran, by door."""
    choice, expected = ground.choices["fwd"][1]
    net = Net().to(ground.device).eval()
    x = torch.randn(2, CHANNELS, SIDE, SIDE, device=ground.device)
    found: dict[str, str] = {}

    def note(door: str, names: set[str]) -> None:
        found[door] = " ".join(sorted(names))
        is_right = bool(names) and all(n.partition("{")[0].startswith(expected) for n in names)
        outcome.expect(is_right, f"{door}: {found[door] or 'nothing'} ran, asked for {expected}")

    with torch.no_grad():
        converted = torchalgo.convert(net)
        torchalgo.set_algorithms(converted, {"second": {"forward": choice}})
        with torchalgo.record_runs() as runs:
            converted(x)
        note("set_algorithms", ran_in(runs, "fwd") - {"auto"})
        chosen = torchalgo.algorithms(forward=choice)
        with torchalgo.enable(), chosen, torchalgo.record_runs() as runs:
            net(x)
        note("enable", ran_in(runs, "fwd"))
        if ground.device == "cuda":
            with torchalgo.enable(), torchalgo.record_runs() as runs:
                torch.backends.cudnn.conv_fwd_algo = choice  # type: ignore[attr-defined]
                net(x)
            note("conv_fwd_algo", ran_in(runs, "fwd"))
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    fast = torchalgo.optimize(
        net, x, overrides={"second": expected}, budget_s=3.0 if context.quick else 10.0,
        settings=settings,
    )  # fmt: skip
    note("override", {n.primitive for n in fast.plan.nodes if n.name == "second"})
    path = context.out / "mission.pt"
    fast.save(path)
    done = subprocess.run(
        [sys.executable, "-c", REOPEN, str(path)], capture_output=True, text=True, check=False
    )
    note("saved file", set(done.stdout.split()))
    return found


def mission_on(ground: Ground, context: Context) -> Outcome:
    outcome = Outcome()
    was_strict = torchalgo.set_strict(True)
    try:
        outcome.data["doors"] = doors(context, ground, outcome)
        rows = outcome.data["rows"] = table(context, ground, outcome)
    finally:
        torchalgo.set_strict(was_strict)
    counts = {status: sum(row["status"] == status for row in rows)
              for status in ("ran", "refused", "wrong", "other", "failed")}  # fmt: skip
    outcome.summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    outcome.failures += [
        f"{row['asked']} of {row['direction']} on {row['problem']} {row['dtype']}: {row['status']},"
        f" {row.get('why') or row.get('error')}"
        for row in rows
        if row["status"] not in ("ran", "refused")
    ][:10]
    for direction in ground.choices:
        outcome.expect(
            any(row["status"] == "ran" for row in rows if row["direction"] == direction),
            f"nothing of {direction} ran",
        )
    return outcome


def mission(context: Context) -> Outcome:
    """Each legacy algorithm by number and by name, and through each door."""
    torch.backends.cudnn.allow_tf32 = False
    return mission_on(cuda(), context)
