# SPDX-License-Identifier: BSD-3-Clause
"""Files are replaced whole or stay as they were, whatever the disk does."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from torchalgo._base.write_file import write_file


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow past `size` bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_content_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "eins \u00fc\n", "save")
    assert path.read_bytes() == "eins \u00fc\n".encode()
    write_file(str(path), b"two", "save")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.txt"]
    with pytest.raises(torchalgo.Error, match="cannot write"):
        write_file(path, "no text of UTF-8: \udcff", "save")
    assert path.read_bytes() == b"two"


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a", b"", "save")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    write_file(link, b"content", "save")
    assert link.is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"content"


def test_a_device_is_written_directly_and_stays() -> None:
    write_file("/dev/null", b"content", "save")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(
        torchalgo.Error, match=r"^TA2001 save: cannot write /dev/full: .*\(ENOSPC\)$"
    ):
        write_file("/dev/full", b"content", "save")


def test_a_full_disk_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with largest_file(1000), pytest.raises(torchalgo.Error, match=r"cannot write .*/a: .*\(EFBIG"):
        write_file(path, bytes(5000), "save")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_of_any_later_call_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, os.strerror(5))

    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(torchalgo.Error, match=r"Input/output error \(EIO\)"):
        write_file(path, b"new", "save")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_paths_that_name_no_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, reason in (
        (tmp_path / "folder", "EISDIR"), (tmp_path / "no" / "file", "ENOENT"),
        (tmp_path / ("x" * 300), "ENAMETOOLONG"), ("a\0b", "null"),
    ):  # fmt: skip
        with pytest.raises(torchalgo.Error, match=reason):
            write_file(path, b"", "save")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_writer_that_is_killed_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    pid = os.fork()
    if pid == 0:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        write_file(path, b"new", "save")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def writers(fast: torchalgo.Optimized) -> list[tuple[str, Callable[[Path], None]]]:
    return [
        ("net.pt", fast.save),
        ("portable.pt", lambda path: fast.save(path, portable=True)),
        ("plan.json", fast.plan.save),
        ("report.html", fast.report),
    ]


def test_saving_to_a_full_disk_is_an_error_and_keeps_the_file_before(
    tuned: torchalgo.Optimized, tmp_path: Path
) -> None:
    # torch.jit.save ends the process here: its writer throws while it is destroyed.
    for name, write in writers(tuned):
        write(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        with largest_file(600), pytest.raises(torchalgo.Error, match=rf"{name}: .*\(EFBIG\)"):
            write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["net.pt", "plan.json", "portable.pt", "report.html"]
    with largest_file(0):
        copied = pickle.loads(pickle.dumps(tuned))
    x = torch.rand(1, 3, 12, 12)
    assert torch.equal(copied(x), torchalgo.load(tmp_path / "net.pt")(x))


@pytest.fixture(scope="module")
def tuned() -> torchalgo.Optimized:
    model = torch.nn.Conv2d(3, 8, 3).eval()
    return torchalgo.optimize(
        model, torch.rand(1, 3, 12, 12), budget_s=3, settings=torchalgo.Settings(progress=False)
    )
