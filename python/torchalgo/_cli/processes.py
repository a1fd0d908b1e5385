# SPDX-License-Identifier: BSD-3-Clause
"""Times calls of several processes at once, for `torchalgo bench --processes`."""

from __future__ import annotations

import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from torchalgo._api.optimize import optimize
from torchalgo._base.stats import percentile_95
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli.tuning_flags import plans_in
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._run.model_files import load_model

WARM_S, TURN_S = 0.2, 1.0  # of each turn: calls that do not count, and those that do
START_LIMIT_S = 300.0  # until all processes have loaded the model

Times = tuple[float, list[float]]  # the seconds of a turn, and the times of its calls in s


@dataclass(frozen=True)
class LoadTimes(ShownAsText):
    """The times of calls that several processes make at once. `print` shows a table."""

    processes: int
    threads: int  # of each process
    turns: Mapping[str, Sequence[Times]]  # by what ran, torchalgo first; one of each process

    def records(self) -> list[dict[str, Any]]:
        """Returns a dict for each line of the table. Rates are those of all processes together."""
        found = []
        for name, turns in self.turns.items():
            times = [t for _, of_turn in turns for t in of_turn]
            rate = statistics.fmean(len(of_turn) / seconds for seconds, of_turn in turns)
            found.append(
                {
                    "name": name,
                    "processes": self.processes,
                    "threads": self.threads,
                    "calls_per_s": rate * self.processes,
                    "median_ms": statistics.median(times) * 1e3,
                    "p95_ms": percentile_95(times) * 1e3,
                }
            )
        return found

    def __str__(self) -> str:
        rows = [("what runs", "calls per s", "median ms", "95th perc.")]
        rows += [
            (
                it["name"],
                f"{it['calls_per_s']:.1f}",
                f"{it['median_ms']:.3f}",
                f"{it['p95_ms']:.3f}",
            )
            for it in self.records()
        ]
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
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    together = context.Barrier(processes)
    words = (target, shapes, plan, torch.get_num_threads(), rounds, together, answers)
    children = [context.Process(target=_serve, args=words, daemon=True) for _ in range(processes)]
    try:
        for child in children:
            child.start()
        limit_s = START_LIMIT_S + 2 * rounds * (WARM_S + TURN_S)
        found = [_answer(answers, children, time.monotonic() + limit_s) for _ in children]
    finally:
        for child in children:
            child.kill()
    turns = {name: [turn for own in found for turn in own[name]] for name in found[0]}
    return LoadTimes(processes, torch.get_num_threads(), turns)


def _answer(answers: Any, children: Sequence[BaseProcess], end_s: float) -> dict[str, list[Times]]:
    while True:
        try:
            found = answers.get(timeout=0.2)
        except queue.Empty:
            ended = [child.exitcode for child in children if child.exitcode]
            if ended:
                raise Error(f"TA7205 bench: a process ended with exit code {ended[0]}") from None
            if time.monotonic() > end_s:
                raise Error("TA7205 bench: a process gave no answer in time") from None
            continue
        if isinstance(found, str):
            raise Error(f"TA7205 bench: a process failed: {found}")
        return dict(found)


def _serve(
    target: str, shapes: Sequence[Any], plan: Path, threads: int, rounds: int,
    together: Any, answers: Any,
) -> None:  # fmt: skip
    """Runs in each process: loads the model and its plan, and calls them when all are ready."""
    try:
        torch.set_num_threads(threads)
        model = load_model(target)
        inputs = random_inputs(model, shapes)
        settings = Settings(run_untimed=True, progress=False)
        fast = optimize(model, inputs, plan=plans_in(plan), settings=settings)
        sides = {"torchalgo": fast, "eager": model}
        found: dict[str, list[Times]] = {name: [] for name in sides}
        with torch.inference_mode():
            for side in sides.values():
                side(*inputs)
            for _ in range(rounds):
                for name, side in sides.items():
                    together.wait(START_LIMIT_S)
                    _call(side, inputs, WARM_S)
                    found[name].append(_call(side, inputs, TURN_S))
        answers.put(found)
    except Exception as problem:  # the parent says it
        kind = "" if isinstance(problem, Error) else f"{type(problem).__name__}: "
        answers.put(f"{kind}{problem}")
        together.abort()


def _call(call: Callable[..., Any], inputs: Sequence[Any], seconds: float) -> Times:
    """Makes one call after the other for `seconds`, at least one."""
    start = now = time.perf_counter()
    times: list[float] = []
    while not times or now - start < seconds:
        before = now
        call(*inputs)
        now = time.perf_counter()
        times.append(now - before)
    return now - start, times
