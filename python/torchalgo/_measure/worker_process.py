# SPDX-License-Identifier: BSD-3-Clause
"""Starts, asks, watches and ends one process of worker.py, from its parent."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchalgo import _C
from torchalgo._ir.failures import ended_by, silent_for

START_LIMIT_S = 180.0  # importing torch from a slow disk may take this long
MOST_ANSWER_BYTES = 64 << 20


@dataclasses.dataclass
class WorkerDeathError(Exception):
    """The error that the worker ended, or was ended, before it answered.

    `task` is the index of the candidate that it ran, None if it had begun none. `hung` is True if
    the worker was ended because a step took too long.
    """

    reason: str
    task: int | None
    hung: bool = False

    def __str__(self) -> str:
        return self.reason


class NoWorkerError(Exception):
    """The error that no worker can be started here. The text says why."""


def default_command() -> list[str]:
    """Returns the command that starts a worker.

    It runs this interpreter, isolated from environment variables and the current folder.

    Raises: NoWorkerError if sys.executable is no interpreter, as in a program that embeds Python.
    """
    interpreter = sys.executable or ""
    if getattr(sys, "frozen", False) or "python" not in Path(interpreter).name.lower():
        raise NoWorkerError(f"sys.executable is {interpreter!r}, which is no Python interpreter")
    return [interpreter, "-I", str(Path(__file__).with_name("worker.py"))]


class WorkerProcess:
    """A running worker. Neither several threads at once nor a forked child may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the worker and returns before it is ready. `ask` waits for that.

        Args:
            command: the program and its first arguments, see default_command.

        Raises: NoWorkerError if the system does not start it.
        """
        self._affinity = _affinity()
        self._count = 0
        self._is_ready = False
        self._received = b""
        try:
            self._start(command)
        except OSError as error:
            raise NoWorkerError(f"{command[0]} cannot be started: {error}") from error
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        assert self._process.stdin is not None
        self._requests = self._process.stdin.fileno()
        os.set_blocking(self._requests, False)
        self._to_send = self._line(
            {
                "sys_path": _absolute(sys.path),
                "packages": {
                    "torch": str(Path(torch.__file__).parent),
                    "torchalgo": str(Path(__file__).parents[1]),
                },
            }
        )
        with contextlib.suppress(BrokenPipeError):
            self._send()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_usable(self) -> bool:
        """Returns True if the worker runs, and has the same processors as this thread."""
        return self._process.poll() is None and self._affinity == _affinity()

    def ask(
        self, request: Mapping[str, Any], limit_s: Callable[[int | None], float]
    ) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Ends the worker if any exception is raised meanwhile, KeyboardInterrupt included.

        Args:
            limit_s: returns the most seconds of a step of the task with this index; None stands for
                the time before the first task.

        Raises: NoWorkerError if the worker never became ready; WorkerDeathError if it does not
            answer.
        """
        try:
            if not self._is_ready:
                self._become_ready(limit_s)
            self._board[1] = -1
            os.ftruncate(self._log, 0)
            self._to_send += self._line(request)
            return self._wait(limit_s)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the worker at once and closes its files. May be called again."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            os.close(self._answers)
            os.close(self._log)

    def forget(self) -> None:
        """Closes this process's ends of the connection, in a forked child.

        The worker keeps running for the parent.
        """
        self._process.returncode = 0  # Popen would wait for a process that is not its child
        self.end()

    def _start(self, command: Sequence[str]) -> None:
        with contextlib.ExitStack() as mine, contextlib.ExitStack() as if_failed:
            log, board = _memory_file(), _memory_file()
            mine.callback(os.close, board)
            if_failed.callback(os.close, log)
            fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)  # it is emptied before each request
            os.ftruncate(board, 16)
            self._board = memoryview(mmap.mmap(board, 16)).cast("q")
            answers, answers_end = map(_above_standard, os.pipe())
            mine.callback(os.close, answers_end)
            if_failed.callback(os.close, answers)
            self._process = subprocess.Popen(
                [*command, str(answers_end), str(board), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(answers_end, board),
                cwd="/",  # the current folder may have been deleted
                start_new_session=True,  # Ctrl-C in the terminal does not reach the worker
            )
            self._log, self._answers = log, answers
            if_failed.pop_all()

    def _become_ready(self, limit_s: Callable[[int | None], float]) -> None:
        def start_limit_s(_: int | None) -> float:
            return START_LIMIT_S if limit_s(None) > 0 else 0.0  # 0: the caller's time is over

        try:
            answer = self._wait(start_limit_s)
        except WorkerDeathError as death:
            if death.hung and limit_s(None) <= 0:
                raise
            raise NoWorkerError(f"it ended while starting: {death}") from None
        here = _C.cpu_device().isa
        if answer["isa"] != here or answer["version"] != _C.version:
            raise NoWorkerError(
                f"it is torchalgo {answer['version']} for {answer['isa']}, and this process"
                f" {_C.version} for {here}"
            )
        self._is_ready = True

    def _line(self, request: Mapping[str, Any]) -> bytes:
        self._count += 1
        return json.dumps({**request, "id": self._count}).encode() + b"\n"

    def _wait(self, limit_s: Callable[[int | None], float]) -> dict[str, Any]:
        steps, started = self._board[0], time.monotonic()
        while True:
            # This process may have been stopped for hours, while the clock went on. So an answer is
            # looked for once more before the worker is ended.
            is_late = time.monotonic() - started > limit_s(self._task())
            if self._exchange():
                return self._take_answer()
            if self._board[0] != steps:
                steps, started = self._board[0], time.monotonic()
            elif is_late:
                reason = silent_for(limit_s(self._task()))
                raise WorkerDeathError(reason, self._task(), hung=True)

    def _exchange(self) -> bool:
        """Sends and receives as much as is possible now.

        Returns True if an answer is complete.

        Raises: WorkerDeathError if the worker has closed its answers, or an answer is too long.
        """
        try:
            self._send()
        except BrokenPipeError:
            self._to_send = b""
        if not self._poll.poll(50 if self._to_send else 200):
            return False
        data = os.read(self._answers, 1 << 16)
        if not data:
            raise self._death()
        self._received += data
        if len(self._received) > MOST_ANSWER_BYTES:
            raise WorkerDeathError("an answer without end", self._task())
        return data.endswith(b"\n")

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._to_send:
                self._to_send = self._to_send[os.write(self._requests, self._to_send) :]

    def _take_answer(self) -> dict[str, Any]:
        received, self._received = self._received, b""
        try:
            answer = json.loads(received)
            if answer["id"] == self._count:
                return dict(answer)
        except (ValueError, KeyError, TypeError):
            pass
        raise WorkerDeathError("an answer that makes no sense", self._task())

    def _task(self) -> int | None:
        task = int(self._board[1])
        return task if task >= 0 else None

    def _death(self) -> WorkerDeathError:
        """Returns the error for a worker that has closed its answers. Waits 5 s for its end."""
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return WorkerDeathError("it closed its answers", self._task())
        return WorkerDeathError(ended_by(code, self._last_words()), self._task())

    def _last_words(self) -> str:
        """Returns the last line that the worker printed, at most 200 characters; "" if none."""
        most = 4096
        tail = os.pread(self._log, most, max(0, os.fstat(self._log).st_size - most))
        lines = tail.decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:200] if said else ""


def _affinity() -> frozenset[int]:
    """Returns the processors that this thread may use. A worker inherits them when it starts."""
    return frozenset(os.sched_getaffinity(0))


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return _above_standard(os.memfd_create("torchalgo"))
    with tempfile.TemporaryFile() as file:
        return _above_standard(os.dup(file.fileno()))


def _above_standard(file: int) -> int:
    """Returns a descriptor of the same file with a number above stderr's. May close `file`.

    If a standard stream is closed, a new file gets its number. A child would then get its own
    standard stream under that number instead of the file.
    """
    if file > 2:
        return file
    higher = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(file)
    return higher


def _absolute(entries: Sequence[str]) -> list[str]:
    absolute = []
    for entry in entries:
        with contextlib.suppress(OSError):  # relative to a folder that is gone
            absolute.append(os.path.abspath(entry))
    return absolute
