# SPDX-License-Identifier: BSD-3-Clause
"""Writes files so that a reader finds the old content or the new one, and never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from torchalgo._C import Error


def write_file(path: str | Path, data: bytes | str, caller: str) -> None:
    """Replaces the content of `path` by `data`, text as UTF-8; a link stays a link.

    The bytes go to a new file in the same folder, to the disk, and then under the name. A failure
    or a crash leaves `path` as it was. A device or a pipe is written directly.

    Raises: torchalgo.Error beginning with `caller`, with the path and the system's reason.
    """
    raw = data.encode() if isinstance(data, str) else data
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            target.write_bytes(raw)
            return
        _replace(target, raw)
    except (OSError, ValueError) as problem:
        raise Error(f"{caller}: cannot write {path}: {_reason(problem)}") from None


def _replace(target: Path, data: bytes) -> None:
    part = target.parent / f".torchalgo-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        # The mode of a file that any program makes: 0666 without what the umask takes.
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    # Without this a power cut may take the new name back. Some file systems refuse it.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _reason(problem: Exception) -> str:
    """The system's text and the error's name: "No space left on device (ENOSPC)"."""
    if isinstance(problem, OSError) and problem.errno is not None:
        return f"{problem.strerror} ({errno.errorcode.get(problem.errno, problem.errno)})"
    return str(problem)
