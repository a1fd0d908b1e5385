# SPDX-License-Identifier: BSD-3-Clause
"""Reads files that may be missing, endless or hostile. Every loader opens its files with this."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchalgo._C import Error
from torchalgo_cli.files import why_unreadable

# No plan file is nearly as large. Data of Python need ten times the memory of their text.
MOST_TEXT_BYTES = 64 << 20
# The code of a network is far smaller.
MOST_UNPACKED_BYTES = 256 << 20

# The errors that zipfile raises for a damaged archive.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, LookupError, ValueError,
    RuntimeError, OverflowError,
)  # fmt: skip


def path_of(path: Any, caller: str) -> Path:
    """Returns an argument of the user as a path. `caller` begins the error's text.

    Raises: torchalgo.Error if it is no text, no bytes and no os.PathLike.
    """
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise Error(
            f"TA1001 {caller}: path is {type(path).__name__}, expected the path of a file, such as"
            " 'model.pt'"
        ) from None


def read_object(file: Any, caller: str) -> io.BytesIO:
    """Returns the rest of a file object that was opened for reading bytes.

    Raises: torchalgo.Error if it cannot be read, or gives text.
    """
    try:
        data = file.read()
    except (OSError, ValueError) as problem:  # such as that of a closed file
        raise Error(f"TA2004 {caller}: cannot read the file object: {problem}") from None
    if not isinstance(data, bytes):
        raise Error(
            f"TA1001 {caller}: the file object gives {type(data).__name__}, expected bytes: open"
            ' the file with mode "rb"'
        )
    return io.BytesIO(data)


def file_at(path: Any, caller: str) -> Path:
    """Returns the path of a regular file, which has an end.

    Raises: torchalgo.Error if `path` is no path, or if no such file can be read there.
    """
    file = path_of(path, caller)
    if why := why_unreadable(file):
        raise Error(f"TA2004 {caller}: cannot read {_shown(file)}: {_shown(why)}; check the path")
    return file


def read_file(path: Any, caller: str, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Returns the bytes of a file.

    Raises: torchalgo.Error as `file_at` does, and if the file has more than `most_bytes`.
    """
    file = file_at(path, caller)
    try:
        with file.open("rb") as opened:
            data = opened.read(most_bytes + 1)
    except OSError as problem:
        raise Error(f"TA2004 {caller}: cannot read {file}: {problem.strerror}") from None
    return check_size(data, file, caller, most_bytes)


def check_size(data: bytes, name: object, caller: str, most_bytes: int) -> bytes:
    """Returns `data`, of which at most one byte more than `most_bytes` was read.

    Raises: torchalgo.Error if there is this byte.
    """
    if len(data) > most_bytes:
        raise Error(
            f"TA2012 {caller}: {name} has more than {most_bytes >> 20} MiB, expected a text that"
            " torchalgo wrote: name another file"
        )
    return data


def is_archive(file: Path | io.BytesIO) -> bool:
    """Returns whether the file is a zip archive, as torch.save and torch.jit.save write."""
    try:
        return zipfile.is_zipfile(file)
    except OSError:
        return False


def has_part(file: Path | io.BytesIO, end: str, caller: str) -> bool:
    """Returns whether the file is an archive with a part whose name has this end."""
    if not is_archive(file):
        return False
    with open_archive(file, caller) as archive:
        return any(name.endswith(end) for name in archive.namelist())


@contextlib.contextmanager
def open_archive(file: str | Path | io.BytesIO, caller: str) -> Iterator[zipfile.ZipFile]:
    """Opens an archive whose parts need little more memory than its file.

    PyTorch compresses code only. A small archive could fill the memory if its parts are compressed,
    or if they lie on each other.

    Raises: torchalgo.Error if the archive is damaged, also in the block, or has such parts.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            parts, size = archive.infolist(), archive.fp.seek(0, os.SEEK_END)  # type: ignore[union-attr]
            packed = sum(part.compress_size for part in parts)
            if packed > size or sum(part.file_size for part in parts) > size + MOST_UNPACKED_BYTES:
                raise Error(
                    f"TA2012 {caller}: {file} has {size} bytes and parts that overlap, or that"
                    f" unpack to over {MOST_UNPACKED_BYTES >> 20} MiB more, expected a file that"
                    " PyTorch wrote: save it again"
                )
            yield archive
    except Error:
        raise
    except _DAMAGE as problem:
        raise Error(
            f"TA2005 {caller}: {file} is damaged or truncated: {problem}; copy or save it again"
        ) from None


def read_part(
    archive: zipfile.ZipFile, end: str, caller: str, most_bytes: int = MOST_TEXT_BYTES
) -> bytes | None:
    """Returns the part of an archive whose name has this end, or None if there is none.

    Raises: torchalgo.Error if it has more than `most_bytes`; the default is for a text.
    """
    for part in archive.infolist():
        if part.filename.endswith(end):
            with archive.open(part) as opened:
                data = opened.read(most_bytes + 1)
            return check_size(data, f"{archive.filename}:{end}", caller, most_bytes)
    return None


def _shown(text: object) -> str:
    """Returns a text in a form that can be printed."""
    shown = str(text)
    return shown if shown.isprintable() else repr(shown)[1:-1]
