# SPDX-License-Identifier: BSD-3-Clause
"""The path of the database, and checks whether files there can be trusted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from datetime import datetime
from pathlib import Path

FILE_NAME = "costs.sqlite3"
LOCK_S = 2.0  # seconds to wait for a process that renames the same file
SIDECARS = ("-wal", "-shm", "-journal")  # SQLite's files beside the database

# File systems that several machines share. They cannot share the memory that a write-ahead log
# needs.
NETWORK_FILE_SYSTEMS = re.compile(
    "9p|afs|beegfs|ceph|cifs|fuse[.](ceph|gluster|ssh)fs|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2"
    "|orangefs|panfs|smb3|smbfs|vboxsf|virtiofs"
)


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


def file_system(path: Path) -> str:
    """Returns the type of the file system that holds `path`, such as "ext4"; empty if unknown."""
    try:
        place = str(path.resolve())
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        return ""
    best, kind = "", ""
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        holds = place == mount or place.startswith(mount.rstrip("/") + "/")
        if holds and len(mount) >= len(best):  # later mounts hide earlier ones
            best, kind = mount, after.split()[0]
    return kind


def is_network(path: Path) -> bool:
    """Returns whether other machines may use the file at the same time."""
    return NETWORK_FILE_SYSTEMS.fullmatch(file_system(path)) is not None


def has_locks(folder: Path) -> bool:
    """Returns whether files in the folder can be locked.

    SQLite would need ten seconds to find out.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def set_aside(path: Path, damaged: tuple[int, int] | None) -> Path | None:
    """Renames the file `damaged`, and SQLite's files with it, to <path>.corrupt-<date and time>.

    Returns: its new path, or None if `path` is another file, because a process was faster.
    Raises: OSError if the file cannot be renamed.
    """
    from filelock import FileLock

    lock = FileLock(f"{path}.lock", timeout=LOCK_S, mode=0o600)
    with contextlib.suppress(OSError, NotImplementedError):  # goes on if there are no locks
        lock.acquire()
    try:
        if damaged is None or identity(path) != damaged:
            return None
        aside = path.with_name(f"{path.name}.corrupt-{datetime.now():%Y-%m-%d-%H%M%S.%f}")
        # The database is last: a new one must never find the log of the old one.
        for suffix in (*SIDECARS, ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
        return aside
    finally:
        lock.release()


def set_aside_files(path: Path) -> list[Path]:
    """Returns the damaged files that are kept beside `path`."""
    files = path.parent.glob(f"{path.name}.corrupt-*")
    return sorted(f for f in files if not f.name.endswith(SIDECARS))
