# SPDX-License-Identifier: BSD-3-Clause
"""The path of the database, and checks whether files there can be trusted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

FILE_NAME = "costs.sqlite3"
NO_LOCKS = "its file system has no locks"
SIDECARS = ("-wal", "-shm", "-journal")  # SQLite's files beside the database


def cache_dir() -> Path:
    """Returns `$TORCHALGO_CACHE_DIR`, or the folder torchalgo in the XDG cache if that is not set.

    Raises: RuntimeError if there is no home directory.
    """
    named = os.environ.get("TORCHALGO_CACHE_DIR")
    if named:
        return Path(named).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("torchalgo")


def default_path() -> Path:
    return cache_dir() / FILE_NAME


def make_folder(folder: Path) -> None:
    """Creates `folder` and its missing parents with mode 0700, for any umask."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)


def refusal(path: Path) -> str:
    """Returns why the file must not be used; "" if only this user (or root) can change it."""
    reason = _folder_refusal(path.parent)
    for file in (path, *(Path(f"{path}{suffix}") for suffix in SIDECARS)):
        reason = reason or _file_refusal(file)
    return reason


def _folder_refusal(folder: Path) -> str:
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        return f"{folder} is a link of another user (id {link.st_uid})"
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder"
    is_sticky = bool(found.st_mode & stat.S_ISVTX)  # /tmp: others cannot replace a file
    if found.st_mode & stat.S_IWOTH and not is_sticky:
        return f"everybody may write to {folder}"
    if found.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to another user (id {found.st_uid})"
    return ""


def _file_refusal(path: Path) -> str:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no regular file"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (id {found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return f"everybody may write to {path}"
    return ""


def identity(path: Path) -> tuple[int, int] | None:
    """Returns the device and inode of the file at `path`; None if that cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def write_trouble(folder: Path) -> str:
    """Returns why SQLite cannot write to files in the folder; "" if it can.

    SQLite itself would wait for a lock that cannot be had.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return NO_LOCKS
    except OSError as problem:
        return f"cannot be written: {problem.strerror}"
    return ""
