# SPDX-License-Identifier: BSD-3-Clause
"""Loaders refuse, with an error of torchalgo, whatever is no file, and read no file without end."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import torchalgo
from torchalgo._base.read_file import MOST_TEXT_BYTES, MOST_UNPACKED_BYTES
from torchalgo._ir.devices import read_device
from torchalgo._run.load import load_with_graphs
from torchalgo._run.model_files import load_model, read_data
from torchalgo_cli import main

LOADERS: dict[str, Callable[[Any], Any]] = {
    "load": torchalgo.load,
    "load_plan": torchalgo.load_plan,
    "load_plans": torchalgo.load_plans,
    "load_onnx": torchalgo.load_onnx,
    "load_caffe": torchalgo.load_caffe,
    "Plan.load": torchalgo.Plan.load,
    "TrainingPlan.load": torchalgo.TrainingPlan.load,
    "read_device": read_device,
    "read_data": read_data,
    "load_with_graphs": load_with_graphs,
}
NO_PATHS = (None, 1, 2.5, True, ["net.pt"], object(), torch.rand(2), len)
PART = "net/extra/plan.json"


@pytest.fixture(params=LOADERS)
def loader(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return LOADERS[request.param]


@pytest.mark.parametrize("given", NO_PATHS, ids=lambda given: type(given).__name__)
def test_what_is_no_path_is_named_with_what_is_expected(
    loader: Callable[[Any], Any], given: Any
) -> None:
    said = rf"^TA1001 \w+: path is {type(given).__name__}, expected the path of a file"
    with pytest.raises(torchalgo.Error, match=said):
        loader(given)


@pytest.mark.parametrize("given", ["a\0b.pt", b"a\0b.pt", "\ud800.pt", "x" * 5000, "a/" * 3000])
def test_a_name_that_no_file_can_have_is_an_error(
    loader: Callable[[Any], Any], given: str | bytes
) -> None:
    with pytest.raises(torchalgo.Error, match=r"^TA2004 \w+: cannot read .*; check the path$"):
        loader(given)


def test_a_path_may_be_bytes_or_an_object_with_a_path(
    fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path
) -> None:
    class Holder:
        def __fspath__(self) -> str:
            return str(tmp_path / "net.pt")

    fast.save(Holder())  # type: ignore[arg-type]
    for path in (Holder(), os.fsencode(Holder())):
        assert torch.equal(torchalgo.load(path)(x), fast(x))  # type: ignore[arg-type]
        assert torchalgo.load_plan(path) == fast.plan  # type: ignore[arg-type]


@pytest.fixture(params=["pipe", "socket", "device", "folder", "endless"])
def no_file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    path = tmp_path / "net.pt"
    bound = socket.socket(socket.AF_UNIX)
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        monkeypatch.chdir(tmp_path)  # the path of a socket has at most 108 bytes
        bound.bind(path.name)
    elif request.param == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/tty" if request.param == "device" else "/dev/zero")
    yield path
    bound.close()


def test_pipes_devices_and_folders_are_refused_unopened(
    loader: Callable[[Any], Any], no_file: Path
) -> None:
    with pytest.raises(torchalgo.Error, match=r"^TA2004 \w+: cannot read .*net.pt: it is a "):
        loader(no_file)


def test_commands_refuse_them_too(no_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["explain"], ["optimize", "-o", "o.pt", "--input", "1x3x8x8"], ["compare", str(no_file)],
        ["db", "import"], ["check"],
    ):  # fmt: skip
        assert main([*words, str(no_file)]) == (2 if words == ["check"] else 1)
        assert "it is a " in capsys.readouterr().err


def test_an_endless_standard_input_is_read_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchalgo._db.commands.MOST_IMPORTED_BYTES", 1 << 20)
    with open("/dev/zero", encoding="latin-1") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert main(["db", "import", "-"]) == 1
    assert "TA2012 db import: the standard input has more than 1 MiB" in capsys.readouterr().err


def bomb(path: Path, method: int, size: int = 1 << 30) -> Path:
    """Writes an archive with a plan that consists of `size` spaces."""
    block = b" " * (1 << 20)
    with (
        zipfile.ZipFile(path, "w", method, compresslevel=1) as archive,
        archive.open(PART, "w", force_zip64=True) as part,
    ):
        for _ in range(size >> 20):
            part.write(block)
    return path


def overlapping(path: Path) -> Path:
    """Writes an archive in whose directory 4096 parts have the same 1 MiB of bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(PART, b" " * (1 << 20))
        archive.filelist *= 4096
    return path


@pytest.mark.parametrize("kind", ["compressed", "overlapping"])
@pytest.mark.parametrize(
    "read", [torchalgo.load, torchalgo.load_plan, load_with_graphs, read_data, load_model]
)
def test_a_small_archive_with_large_parts_is_refused_unread(
    read: Callable[[Any], Any], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.pt"
    if kind == "compressed":
        bomb(path, zipfile.ZIP_DEFLATED, MOST_UNPACKED_BYTES + (2 << 20))
    else:
        overlapping(path)
    with pytest.raises(torchalgo.Error, match=r"^TA2012 .* parts that overlap, or that unpack to"):
        read(str(path) if read is load_model else path)


def test_a_text_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """Parsed texts need several times the memory of their bytes."""
    stored = bomb(tmp_path / "net.pt", zipfile.ZIP_STORED, MOST_TEXT_BYTES + (1 << 20))
    plain = tmp_path / "net.plan.json"
    with plain.open("wb") as file:
        file.truncate(8 << 30)  # a hole, which takes no disk
    for path in (stored, plain):
        with pytest.raises(torchalgo.Error, match=r"^TA2012 load_plan: .* has more than 64 MiB"):
            torchalgo.load_plan(path)


def test_a_file_without_end_needs_no_memory(tmp_path: Path) -> None:
    """A file of 3 MB took 6.6 GB, and a link to /dev/zero all there is."""
    bomb(tmp_path / "bomb.pt", zipfile.ZIP_DEFLATED)
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    code = (
        "import resource, torchalgo\n"
        "limit = 2 << 30\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in ('bomb.pt', 'zero.json'):\n"
        "    try: torchalgo.load_plan(name)\n"
        "    except torchalgo.Error as problem: print(problem.code)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print('small' if used < 100_000 else used)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )  # fmt: skip
    assert done.stdout.split() == ["TA2012", "TA2004", "small"], done.stderr


def test_savers_name_what_is_no_path(fast: torchalgo.Optimized) -> None:
    for save in (fast.save, fast.report, fast.plan.save):
        for given in (None, 3):
            with pytest.raises(torchalgo.Error, match=r"^TA1001 \w+: path is \w+, expected"):
                save(given)  # type: ignore[operator]
    for save in (fast.save, fast.plan.save):
        with pytest.raises(torchalgo.Error, match=r"^TA2001 save: cannot write"):
            save("a\0b.pt")  # type: ignore[operator]


def test_a_database_whose_name_has_a_nul_is_told_and_not_used(x: torch.Tensor) -> None:
    settings = torchalgo.Settings(progress=False, run_untimed=True, cost_db="a\0b.sqlite3")
    model = torch.nn.Conv2d(3, 4, 1).eval()
    with pytest.warns(UserWarning, match="the cost database .* cannot be used"):
        torchalgo.optimize(model, x[:, :, :8, :8], budget_s=1, settings=settings)


def test_arrays_and_tensors_are_still_read(tmp_path: Path) -> None:
    given = torch.rand(2, 3)
    numpy.save(tmp_path / "x.npy", given.numpy())
    torch.save(given, tmp_path / "x.pt")
    for name in ("x.npy", "x.pt"):
        assert torch.equal(read_data(tmp_path / name), given)
