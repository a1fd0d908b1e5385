# SPDX-License-Identifier: BSD-3-Clause
"""Lines of the user's code, found on Python's stack while the model runs."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import CodeType, FrameType

import torch

_FOLDERS = tuple(
    f"{folder}/"
    for folder in (
        Path(torch.__file__).parent,
        Path(__file__).parents[1],
        sysconfig.get_paths()["stdlib"],
    )
)
_PACKAGES = ("site-packages", "dist-packages")  # these may be inside the folder of the library


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        """Returns "net.py:12", with the folders below the current one, or else the whole path."""
        path = PurePath(self.file)
        if path.is_relative_to(here := Path.cwd()):
            path = path.relative_to(here)
        return f"{path}:{self.line}"


Lines = tuple[SourceLine, ...]  # the innermost call first


def user_lines(frame: FrameType | None, stop: CodeType) -> Lines:
    """Returns the lines of the user's code from `frame` outwards, the innermost first.

    Frames of torch, torchalgo and Python's library are left out. Ends at the frame of `stop`.
    """
    found: list[SourceLine] = []
    while frame is not None and frame.f_code is not stop:
        code = frame.f_code
        if is_user_file(code.co_filename):
            found.append(SourceLine(code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def is_user_file(file: str) -> bool:
    """Returns False for a file of torch, torchalgo or Python's library, and for code without one"""
    if file.startswith("<"):
        return False
    own = _FOLDERS[:2]
    if file.startswith(own):
        return False
    return not file.startswith(_FOLDERS[2]) or any(name in file for name in _PACKAGES)
