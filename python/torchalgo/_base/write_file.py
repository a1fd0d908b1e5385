# SPDX-License-Identifier: BSD-3-Clause
"""Writes files atomically: a reader finds the old content or the new content, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Any

from torchalgo._base.read_file import path_of
from torchalgo._C import Error


def write_file(path: str | Path, data: bytes | str, caller: str) -> None:
    """Replaces the content of `path` with `data`; text is encoded as UTF-8. A link stays a link.

    Writes a new file in the same folder, flushes it to the disk and renames it to `path`. A failure
    or a crash leaves `path` as it was. A device or a pipe is written directly.

    Raises: torchalgo.Error; its text begins with `caller` and has the path and the system's reason.
    """
    given = path_of(path, caller)
    try:
        raw = data.encode() if isinstance(data, str) else data
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            target.write_bytes(raw)
            return
        _replace(target, raw)
    except (OSError, ValueError) as problem:
        raise Error(f"TA2001 {caller}: cannot write {path}: {_reason(problem)}") from None


def write_object(file: Any, data: bytes, caller: str) -> None:
    """Writes `data` to a file object that was opened for writing bytes.

    Raises: torchalgo.Error if it takes no bytes, or cannot be written.
    """
    try:
        file.write(data)
    except TypeError:
        raise Error(
            f'TA1001 {caller}: the file object takes no bytes: open the file with mode "wb"'
        ) from None
    except (OSError, ValueError) as problem:  # such as that of a closed file
        raise Error(f"TA2001 {caller}: cannot write the file object: {_reason(problem)}") from None


def _replace(target: Path, data: bytes) -> None:
    part = target.parent / f".torchalgo-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        # The usual mode of a new file: 0666 without the bits of the umask.
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    # Without this a power cut may undo the renaming. Some file systems do not support it.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _reason(problem: Exception) -> str:
    """Returns the system's text and the error's name: "No space left on device (ENOSPC)"."""
    if isinstance(problem, OSError) and problem.errno is not None:
        return f"{problem.strerror} ({errno.errorcode.get(problem.errno, problem.errno)})"
    return str(problem)
