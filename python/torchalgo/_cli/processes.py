# SPDX-License-Identifier: BSD-3-Clause
"""Times calls of several processes at once, for `torchalgo bench --processes`."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from torchalgo._api.optimize import optimize
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli.tuning_flags import plans_in
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._run.model_files import load_model
from torchalgo_cli.child import Child, EndedError
from torchalgo_cli.turns import answers, by_call

NAMES = ("torchalgo", "eager")  # what takes turns
TURN_S = 1.0  # of each turn
LEAD_S = 0.05  # until all processes begin
LIMIT_S = 300.0  # until a process has loaded the model, or answers
JOIN: dict[str, Callable[[Iterable[float]], float]] = {
    "calls_per_s": sum,
    "median_ms": statistics.median,
    "p95_ms": statistics.median,
}

Turn = Sequence[Mapping[str, float]]  # what each process has measured


@dataclass(frozen=True)
class LoadTimes(ShownAsText):
    """The times of calls that several processes make at once. `print` shows a table."""

    processes: int
    threads: int  # of each process
    turns: Mapping[str, Sequence[Turn]]  # by what ran, torchalgo first

    def records(self) -> list[dict[str, Any]]:
        """Returns a dict for each line of the table. Rates are those of all processes together."""
        return [
            {"name": name, "processes": self.processes, "threads": self.threads}
            | {
                key: statistics.median(join(own[key] for own in turn) for turn in turns)
                for key, join in JOIN.items()
            }
            for name, turns in self.turns.items()
        ]

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [("what runs", "calls per s", "median ms", "95th perc.")]
        for it in self.records():
            numbers = f"{it['calls_per_s']:.1f}", f"{it['median_ms']:.3f}", f"{it['p95_ms']:.3f}"
            rows.append((it["name"], *numbers))
        plural = "s" * (self.threads > 1)
        title = f"{self.processes} processes with {self.threads} thread{plural} each"
        return "\n".join([title, *text_table(rows, right=(1, 2, 3))])


def time_processes(
    target: str, shapes: Sequence[Any], plan: Path, processes: int, rounds: int
) -> LoadTimes:
    """Returns the times of calls that `processes` processes make at once, with torch's threads.

    The plan and the unchanged model take turns, `rounds` of each.

    Raises: torchalgo.Error if a process fails or ends.
    """
    threads = torch.get_num_threads()
    call = f"serve({target!r}, {shapes!r}, {str(plan)!r}, {threads})"
    command = [sys.executable, "-c", f"from torchalgo._cli.processes import serve; {call}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(command, env)) for _ in range(processes)]
        try:
            for child in children:
                child.receive(LIMIT_S)
            for name in NAMES * rounds:
                start_s = monotonic() + LEAD_S
                for child in children:
                    child.send([start_s, TURN_S])
                turns[name].append([child.receive(LIMIT_S) for child in children])
        except EndedError as problem:
            raise Error(f"TA7205 bench: a process {problem}") from None
    return LoadTimes(processes, threads, turns)


def serve(target: str, shapes: Sequence[Any], plan: str, threads: int) -> None:
    """Runs in each process: loads the model and its plan, and calls them in turns."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints is no answer
    torch.set_num_threads(threads)
    model = load_model(target)
    inputs = random_inputs(model, shapes)
    settings = Settings(run_untimed=True, progress=False)
    fast = optimize(model, inputs, plan=plans_in(Path(plan)), settings=settings)
    calls = [partial(side, *inputs) for side in (fast, model)]
    with torch.inference_mode():
        for call in calls:
            call()
        for answer in chain([{}], answers(*map(by_call, calls))):
            print(json.dumps(answer), file=lines, flush=True)
