# SPDX-License-Identifier: BSD-3-Clause
"""Measures and checks in a separate process, so that no candidate can end the user's process."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.time_budget import Deadline
from torchalgo._base.user_warning import warn_user
from torchalgo._ir.costs import engine_of
from torchalgo._ir.failures import LATE, MOST_OF_ONE, NOT_RUN, ended_too_often, hung_as
from torchalgo._measure.worker import read_state, run_request
from torchalgo._measure.worker_process import (
    NoWorkerError,
    WorkerDeathError,
    WorkerProcess,
    default_command,
)

Task = tuple[str, _C.Primitive]


# "0": measure in this process. Use it with a debugger, or if a second process is not wanted.
ISOLATE = "TORCHALGO_ISOLATE"

# A step that takes longer than LEAST_LIMIT_S plus its flops over FLOPS_PER_S counts as an endless
# loop. A candidate that computes fewer flops per second would never be chosen. The limit for GPUs
# is longer, because their libraries may compile a kernel first. On an H100, that took at most
# 3.6 s, and the slowest one of 28,603 candidates took 25 ms.
LEAST_LIMIT_S = {"cpu": 12.0, "cuda": 20.0}
FLOPS_PER_S = {"cpu": 2e8, "cuda": 1e10}

# If this many candidates in a row end the worker, the cause is not the candidates.
MOST_IN_A_ROW = 20

# A worker that ends while it starts may have been ended from outside. So it is started again, up to
# this many times in all.
MOST_STARTS = 3


@dataclasses.dataclass
class TakenSamples:
    """The samples of one candidate, with fields of _C.Measurement. Times are in ns."""

    ns: list[float]
    failure: str = ""
    disturbed: int = 0


class Worker:
    """The worker of this process, which all threads share.

    It is started by the first request, and started again after it has died.
    """

    def __init__(self, command: Callable[[], list[str]] = default_command) -> None:
        """Starts nothing yet."""
        self._command = command
        self._lock = threading.RLock()
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the worker if it does not run, and returns before it is ready.

        The worker needs seconds to import torch.

        Raises: NoWorkerError if the system does not start it.
        """
        with self._lock:
            self._started()

    def ask(
        self, request: Mapping[str, Any], limit_s: Callable[[int | None], float]
    ) -> dict[str, Any]:
        """Returns the answer to one request, see WorkerProcess.ask. Starts the worker if needed.

        Raises: WorkerDeathError if the worker ends before it answers; NoWorkerError if no worker
            can be started, or if it cannot use the GPU; torchalgo.Error if the request is invalid.
        """
        with self._lock:
            for starts_left in reversed(range(MOST_STARTS)):
                try:
                    answer = self._started().ask({**request, "state": read_state()}, limit_s)
                    break
                except NoWorkerError:
                    if not starts_left:
                        raise
        if "closed" in answer:
            raise NoWorkerError(f"it cannot use the GPU: {answer['closed']}")
        if "error" in answer:
            raise _C.Error(with_inner_code(f"TA3001 {answer['error']}"))
        return answer

    def is_usable(self) -> bool:
        """Returns True if the worker runs and the next request needs no other one."""
        with self._lock:
            return self._process is not None and self._process.is_usable()

    def close(self) -> None:
        """Ends the worker. The next request starts another one."""
        with self._lock:
            self.end()

    def end(self) -> None:
        """Ends the worker even if another thread waits for it. For the end of this process."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def forget(self) -> None:
        """Lets go of the parent's worker in a forked child. The child starts its own if needed."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        if self._process is not None:
            self._process.forget()
        self._process = None

    def _started(self) -> WorkerProcess:
        if self._process is None or not self._process.is_usable():
            self.end()
            self._process = WorkerProcess(self._command())
        return self._process


worker = Worker()
atexit.register(worker.end)
os.register_at_fork(after_in_child=worker.forget)


def is_isolated() -> bool:
    """Returns whether candidates run in a separate process."""
    return os.environ.get(ISOLATE, "1") != "0"


def start_early() -> None:
    """Starts the worker early, since it needs seconds to import torch.

    Raises nothing if it cannot be started: the first measurement warns.
    """
    if is_isolated():
        with contextlib.suppress(NoWorkerError):
            worker.start()


class ProcessBench:
    """The functions `measure` and `check` of sampling.Bench, run by a worker.

    A candidate may end the worker by a crash, an abort, an endless loop or by using up the memory.
    Then its failure is the reason, and the other candidates of the call still get their samples.
    Before a candidate is blamed for a crash, it is tried alone: another candidate may have written
    into its memory, or the worker may have been ended from outside.
    If a candidate hangs, its engine is not run on the same problem again: neither in other layouts
    nor with other knobs. Each of them would hang as well, until its time limit.
    If no worker can be started, or if it cannot use the GPU, candidates run in this process, after
    one warning.
    """

    def __init__(
        self,
        device: _C.Device | None = None,
        worker: Worker = worker,
        least_limit_s: float | None = None,
        deadline: Deadline | None = None,
        *,
        has_worker: bool = True,
    ) -> None:
        """Starts nothing yet.

        Args:
            deadline: the worker is ended when a step of it is lost, see Deadline.is_lost.
            has_worker: if False, candidates run in this process from the start.
        """
        self._deadline = deadline if deadline is not None else Deadline(None)
        kind = "cpu" if device is None else device.kind
        self._device, self._worker = device, worker
        self._least_limit_s = LEAST_LIMIT_S[kind] if least_limit_s is None else least_limit_s
        self._flops_per_s = FLOPS_PER_S[kind]
        self._has_worker = has_worker
        self._dead_in_a_row = 0
        self._given_up = ""  # the reason why no candidate is run any more
        # By primitive and problem: the reason why it ended the worker.
        self._deaths_by: dict[str, dict[str, str]] = {}
        # By engine and problem: the primitive that hung, and the reason.
        self._hung: dict[tuple[str, str], tuple[str, str]] = {}

    @property
    def pid(self) -> int | None:
        """The id of the process that runs candidates; None if it is not started."""
        return self._worker.pid if self._has_worker else os.getpid()

    def start(self) -> None:
        """Starts the worker and waits until it can measure, on a GPU with CUDA and cuDNN loaded.

        This takes seconds, which a visit should not pay. Raises nothing: if there is no worker, the
        first visit says so.
        """
        if self._has_worker:
            with contextlib.suppress(NoWorkerError, WorkerDeathError, _C.Error):
                self._ask({"do": "start"}, [])

    def release(self) -> None:
        """Gives the memory of a GPU back that the worker keeps for the next visit.

        The worker itself is kept, because its start takes seconds. Raises nothing.
        """
        if self._device is None or self._device.kind == "cpu" or not self._has_worker:
            return
        if not self._worker.is_usable():
            self._worker.close()
            return
        with contextlib.suppress(NoWorkerError, WorkerDeathError, _C.Error):
            self._ask({"do": "release"}, [])

    def measure(self, tasks: Sequence[Task], **options: Any) -> list[Any]:
        """Times `tasks` as _C.measure does, and returns one result per task."""
        return self._of_tasks(
            tasks,
            {"do": "measure", "options": options},
            lambda result: TakenSamples(*result),
            lambda reason: TakenSamples([], reason),
        )

    def check(
        self, problem: str, primitives: Sequence[_C.Primitive], max_error: float
    ) -> list[tuple[float, str]]:
        """Checks `primitives` as _C.check_primitives does. Returns (error, failure) of each."""
        return self._of_tasks(
            [(problem, primitive) for primitive in primitives],
            {"do": "check", "max_error": max_error},
            tuple,
            lambda reason: (0.0, reason),
        )

    def componentwise(self, tasks: Sequence[Task]) -> list[tuple[float, str]]:
        """Returns _C.componentwise_error of each task, and why it has none; "" if it has one."""
        return self._of_tasks(
            tasks, {"do": "componentwise"}, tuple, lambda reason: (math.inf, reason)
        )

    def why_not_run(self, tasks: Sequence[Task]) -> str:
        """Runs each of `tasks` once, in the worker only.

        Returns: why one of them failed, or was not run; "" if all ran.
        """
        options = {"warmup": 0, "rounds": 1, "budget_s": 0.0, "cold_bytes": 0, "seed": 0}
        try:
            answer = self._ask({"do": "measure", "options": options}, tasks)
        except (NoWorkerError, WorkerDeathError, _C.Error) as problem:
            return str(problem)
        return next((failure for _, failure, *_ in answer if failure), "")

    def _of_tasks(
        self,
        tasks: Sequence[Task],
        request: Mapping[str, Any],
        read: Callable[[Any], Any],
        failed: Callable[[str], Any],
    ) -> list[Any]:
        """Sends a request with `tasks`, and returns one result per task.

        Without a worker, this process computes the results.

        Args:
            read: makes a result from one in the worker's answer.
            failed: makes a result from the reason of a failure.
        """

        def ask(chosen: Sequence[int]) -> list[Any]:
            return [read(each) for each in self._ask(request, [tasks[i] for i in chosen])]

        if self._has_worker:
            try:
                return self._run([(problem, p.name) for problem, p in tasks], ask, failed)
            except NoWorkerError as missing:
                self._go_without(missing)
        return [read(each) for each in run_request(self._spelled(request, tasks))]

    # ---- finding the candidate that ended the worker -------------------------------------------

    def _run(
        self,
        keys: Sequence[tuple[str, str]],
        ask: Callable[[Sequence[int]], list[Any]],
        failed: Callable[[str], Any],
    ) -> list[Any]:
        """Returns the result of each candidate, even if some of them end the worker.

        Args:
            keys: the problem of each candidate, and the name of its primitive.
            ask: sends a request for the candidates with these indices.
            failed: makes a result from the reason of a failure.
        """
        results: dict[int, Any] = {}
        left = list(range(len(keys)))
        unsolved = 0  # number of times that the worker ended and no candidate could be blamed

        def attempt(candidates: Sequence[int]) -> WorkerDeathError | None:
            try:
                results.update(zip(candidates, ask(candidates), strict=True))
            except WorkerDeathError as death:
                return death
            self._dead_in_a_row = 0
            return None

        while left := [candidate for candidate in left if candidate not in results]:
            reasons = {candidate: self._why_not(*keys[candidate]) for candidate in left}
            results.update((candidate, failed(why)) for candidate, why in reasons.items() if why)
            able = [candidate for candidate in left if not reasons[candidate]]
            # Two candidates together may end the worker, or the board may not tell which one did.
            # So each of the remaining candidates runs alone in the end.
            batch = able if unsolved < 2 else able[:1]
            death = attempt(batch) if batch else None
            if death is None:
                continue
            task = 0 if len(batch) == 1 else death.task
            if task is not None and not death.hung:
                death = attempt([batch[task]])
            if death is not None and death.reason == LATE:
                results.update((other, failed(LATE)) for other in able if other not in results)
                with contextlib.suppress(NoWorkerError):
                    self._worker.start()  # a new one for the next requests
            elif death is None or task is None:
                unsolved += 1
            else:
                results[batch[task]] = failed(death.reason)
                self._blame(*keys[batch[task]], death)
        return [results[i] for i in range(len(keys))]

    def _blame(self, problem: str, name: str, death: WorkerDeathError) -> None:
        self._deaths_by.setdefault(name, {})[problem] = death.reason
        if death.hung:
            self._hung[engine_of(name), problem] = name, death.reason
        self._dead_in_a_row += 1
        if self._dead_in_a_row >= MOST_IN_A_ROW:
            self._give_up(death)

    def _why_not(self, problem: str, name: str) -> str:
        """Returns the reason why a primitive is not run on a problem; "" if it is run."""
        if hung := self._hung.get((engine_of(name), problem)):
            return hung_as(*hung)
        reasons = self._deaths_by.get(name, {})
        if len(reasons) < MOST_OF_ONE:
            return self._given_up
        return ended_too_often(list(reasons.values()))

    def _ask(self, request: Mapping[str, Any], tasks: Sequence[Task]) -> list[Any]:
        flops = [_C.flop_count(problem) for problem, _ in tasks]
        step = "check" if request["do"] == "check" else "measure"  # of the deadline

        def limit_s(task: int | None) -> float:
            # Before the first candidate runs, the worker computes a reference in f64.
            if self._deadline.is_lost(step):
                return 0.0
            if task is None:
                return 3 * self._least_limit_s + max(flops, default=0) / self._flops_per_s
            return self._least_limit_s + flops[task] / self._flops_per_s

        try:
            answer = self._worker.ask(self._spelled(request, tasks), limit_s)
        except WorkerDeathError as death:
            if death.hung and self._deadline.is_lost(step):
                raise WorkerDeathError(LATE, None, hung=True) from None
            raise
        if answer["lost"]:
            self._worker.close()
            raise WorkerDeathError(answer["lost"], None)  # any candidate may have caused it
        return list(answer["results"])

    def _spelled(self, request: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
        """Returns a request with its tasks and the device, as values of JSON."""
        fields = ("kind", "name", "isa", "threads", "l2_bytes", "properties", "provenance", "index")
        device = self._device and {field: getattr(self._device, field) for field in fields}
        own = [(problem, spelled(primitive)) for problem, primitive in tasks]
        return {**request, "tasks": own, "device": device}

    def _give_up(self, death: WorkerDeathError) -> None:
        self._given_up = (
            f"{NOT_RUN}{self._dead_in_a_row} candidates in a row ended the worker, the last one by"
            f" {death.reason}"
        )
        warn_user(self._given_up, RuntimeWarning)

    def _go_without(self, missing: NoWorkerError) -> None:
        """Lets this process measure, after a warning.

        Raises: RuntimeError of torch if this process cannot use the GPU either. Else each candidate
            would seem to fail.
        """
        if self._device is not None and self._device.kind == "cuda":
            torch.cuda.synchronize(self._device.index)
        if self._has_worker:
            warn_user(
                "candidates are measured in this process, which one that crashes would end: no"
                f" worker starts ({missing}). {ISOLATE}=0 says that this is meant",
                RuntimeWarning,
            )
        self._has_worker = False


def spelled(primitive: _C.Primitive) -> list[Any]:
    """Returns the arguments of _C.Primitive's constructor as a list, for JSON."""
    return [primitive.name, primitive.src, primitive.dst, primitive.workspace_bytes]
