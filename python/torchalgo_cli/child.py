# SPDX-License-Identifier: BSD-3-Clause
"""Starts processes that answer while others run, as those that are timed in turns."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class EndedError(Exception):
    """A child ended, or did not answer in time. It is killed then."""


class Child:
    """A process that answers. It is used in a with block, and killed at its end.

    It prints a line when it is ready, and then one for each line of its stdin. Lines are JSON.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the process, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, value: Any) -> None:
        """Sends a line. If the process has ended, only `receive` says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: it was killed before
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def receive(self, limit_s: float | None = None) -> Any:
        """Returns the next value that the process prints.

        Raises: EndedError if the process ends first, or after `limit_s` seconds.
        """
        pipe = self._process.stdout
        assert pipe is not None
        is_late = not pipe.closed and not select.select([pipe], [], [], limit_s)[0]
        if is_late or pipe.closed or not (line := pipe.readline()):
            raise self._end(f"gave no answer within {limit_s:.3g} s" if is_late else "")
        return json.loads(line)

    def _end(self, why: str = "") -> EndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if why else 1)  # its own end, if it has one, says more
        self.close()
        code = self._process.returncode
        ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return EndedError(why or f"ended with {ending}")
