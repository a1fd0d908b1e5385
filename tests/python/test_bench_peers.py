# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of engines for deployment: its processes, its records and its tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench_load
import bench_peers
import harness
import peer_engines
from bench_peers import head_of, left_to_do, measure
from make_tables import main as make_tables
from peer_page import NONE_YET, START, programs_table
from support import fake_peers

HERE = Path(__file__).resolve().parent


def options(folder: Path, *engines: str, **others: Any) -> argparse.Namespace:
    given = {
        "starts": 2, "rounds": 2, "seconds": 0.05, "tune_s": 1.0, "resume": True, "threads": 1,
        "max_error": 1e-5, **others,
    }  # fmt: skip
    return argparse.Namespace(engines=engines, out=folder / "peers.jsonl", **given)


# ---- processes -----------------------------------------------------------------------------------


def test_an_engine_that_fails_becomes_a_reason_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setattr(bench_load, "PAUSE_S", 0.02)
    monkeypatch.setattr(bench_peers, "SERVE", "support.fake_peers")
    monkeypatch.setattr(bench_peers, "peer_files", fake_peers)
    failing = {
        fake_peers.DIES_IN_TURN: "in its turn, the process ended with exit status 3",
        fake_peers.REFUSES: "ValueError: no such layer",
        fake_peers.HAS_NO_FILES: "TypeError: no operation swish",
        fake_peers.ITS_CONVERTER_DIES: "its converter ended with exit status 3",
    }
    records = measure("net", ["ncnn", *failing], options(tmp_path))
    found = {record["engine"]: record for record in records}
    assert {*found} == {"ncnn", *failing}  # the module ran for the ratios, and has a record already
    assert {name: found[name]["failure"] for name in failing} == failing
    ran = found["ncnn"]
    assert "failure" not in ran and 2 < ran["ratio"][0] < 6
    assert len(ran["ms"]) == len(ran["start_ms"]) == len(ran["open_first_ms"]) == 2
    assert min(ran["start_ms"]) > min(ran["open_first_ms"]) > 8
    assert ran["rel_error"] == 0.001 and ran["file_bytes"] == 1000 and ran["library_bytes"] == 0
    assert abs(ran["resident_bytes"]) < 10e6  # less that of Python with NumPy


def test_an_engine_with_two_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_peers.prepare("net", str(tmp_path))
    engine = peer_engines.Engine(lambda folder, x: lambda: np.full(4, 2.0), (), "numpy", "ncnn")
    monkeypatch.setitem(peer_engines.ENGINES, "ncnn", engine)
    assert peer_engines.opened("ncnn", tmp_path)[1]["rel_error"] == 0
    seconds = iter([0.0, 1e3])
    monkeypatch.setattr(peer_engines, "process_time", lambda: next(seconds))
    with pytest.raises(RuntimeError, match=r"processors, expected 1 thread\(s\)"):
        peer_engines.opened("ncnn", tmp_path)


def test_memory_and_libraries_are_read_and_those_for_gpus_left_out() -> None:
    kept = ["/v/MNN/_mnn.so", "/v/ncnn.libs/libgomp-1.so.1.0", "/v/torch/lib/libtorch_cpu.so"]
    for_gpus = ["/v/torch/lib/libtorch_cuda.so", "/v/nvidia/cu13/lib/libnvrtc.so.13"]
    maps = "".join(f"7f-8f r-xp 0000 fe:00 12   {path}\n" for path in kept + for_gpus + kept)
    assert peer_engines.libraries_of(f"{maps}7f-8f rw-p 0000 00:00 0 \n[heap]\n/v/a.so.txt") == kept
    status = "Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t   64 kB\nVmRSS:\t   32 kB\n"
    assert peer_engines.memory_of(status) == {"resident_bytes": 32 << 10, "peak_bytes": 64 << 10}


# ---- records -------------------------------------------------------------------------------------


def test_resume_skips_what_this_commit_measured_on_this_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = options(tmp_path, "torchalgo", "ncnn", "mnn")
    for engine in ("torchalgo", "ncnn"):
        line = {**head_of("net", engine, args), "failure": "any"}
        harness.record(args.out, line, show=lambda line: None)
    assert left_to_do("net", args) == ["mnn"]
    every = ["torchalgo", "ncnn", "mnn"]
    assert left_to_do("other", args) == every
    assert left_to_do("net", options(tmp_path, *every, rounds=3)) == every
    assert left_to_do("net", options(tmp_path, *every, threads=2)) == every
    assert left_to_do("net", options(tmp_path, *every, resume=False)) == every
    with monkeypatch.context() as patch:
        patch.setattr(harness, "machine_state", lambda: {"cpu": "other"})
        assert left_to_do("net", args) == every
    monkeypatch.setattr(harness, "git_state", lambda: {"commit": "0000000", "dirty": False})
    assert left_to_do("net", args) == every


# ---- tables --------------------------------------------------------------------------------------


def row(network: str, engine: str, ratio: float, **others: Any) -> dict[str, Any]:
    return {
        "schema": 1, "benchmark": "peers", "network": network, "engine": engine, "version": "1.2",
        "cpu": "CPU", "isa": "avx512", "cores": 2, "torch": "2.11.0", "torchalgo": "0.1.0",
        "python": "3.11", "starts": 5, "rounds": 2, "seconds": 0.4, "commit": "abc1234",
        "dirty": False, "date": "2026-01-02", "ms": [4 * ratio, 6 * ratio],
        "ratio": [ratio, ratio, ratio], "start_ms": [90.0, 100.0, 500.0], "open_first_ms": [12.0],
        "resident_bytes": 20_000_000, "peak_bytes": 30_000_000, "library_bytes": 35_000_000,
        "torch_bytes": 0, "file_bytes": 4_900_000, "rel_error": 2e-6, **others,
    }  # fmt: skip


def test_tables_hold_the_last_row_of_each_engine_and_the_reasons(tmp_path: Path) -> None:
    page, path = tmp_path / "page.md", tmp_path / "peers.jsonl"
    page.write_text(f"# Title\n\n{START}\nold\n<!-- end of table -->\nThe rest.\n")
    rows = [
        row("alpha", "torchalgo", 1.0, torch_bytes=9_000_000),
        row("alpha", "ncnn", 9.0),
        row("alpha", "emitted", 0.5, threads=2),  # has a table of its own
        row("alpha", "emitted", 0.5, max_error=1e-2),
        row("alpha", "ncnn", 2.0),
        row("beta", "torchalgo", 1.0, torch_bytes=9_000_000, runs="baseline"),
        row("beta", "emitted", 0.9, plan="of the module"),
        row("beta", "ncnn", 8.0, rel_error=3e-4),
        {**row("beta", "mnn", 1.0), "failure": "TypeError: no <layer>"},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert make_tables(["peers", str(path), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n") and text.endswith("The rest.\n") and "old" not in text
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    (ncnn,) = (cells for cells in lines if cells[0] == "ncnn")
    assert ncnn[1:8] == ["1.2", "2", "4.00 [2.00, 8.00]", "100", "12.0", "20.0", "30.0"]
    assert ncnn[8:] == ["35.0", "4.90", "3.0e-04 **above 1e-05**"]
    (own,) = (cells for cells in lines if cells[0] == "torchalgo, module")
    assert own[1] == "0.1.0" and own[8] == "35.0, 9.00 of them PyTorch's"
    times = next(cells for cells in lines if cells[0] == "beta")
    assert times == ["beta", "5.00 (1.00)", "4.50 (0.90)", "40.0 (8.00)", "-"]
    assert next(cells for cells in lines if cells[0] == "alpha")[-1] == ""
    assert text.split("Notes:\n\n")[1].split("\n<!--")[0].splitlines() == [
        "- MNN, beta: TypeError: no &lt;layer&gt;",
        "- torchalgo, module, beta: runs PyTorch, since the plan was not faster when it was tuned",
    ]
    assert make_tables(["peers", str(path), "--page", str(page), "--check"]) == 0


def test_a_record_says_that_a_plan_may_have_coarser_types(tmp_path: Path) -> None:
    args = options(tmp_path, max_error=1e-2)
    said = {engine: head_of("net", engine, args)["precision"] for engine in ("emitted", "ncnn")}
    assert said == {"emitted": "max_error=0.01", "ncnn": "f32"}


def test_programs_have_a_row_for_each_setting() -> None:
    rows = [
        row("beta", "emitted", 1.2, threads=2, max_error=1e-2),
        row("beta", "emitted", 0.9),
        row("alpha", "emitted", 0.8, threads=2),
        row("alpha", "torchalgo", 1.0, threads=2),
        {**row("gamma", "emitted", 1.0), "failure": "any"},
    ]
    cells = [line.split(" | ")[:6] for line in programs_table(rows).splitlines()[2:5]]
    assert [[cell.strip("| ") for cell in each] for each in cells] == [
        ["beta", "CPU", "f32", "1", "4.50", "0.90 [0.90, 0.90]"],
        ["alpha", "CPU", "f32", "2", "4.00", "0.80 [0.80, 0.80]"],
        ["beta", "CPU", "bf16", "2", "6.00", "1.20 [1.20, 1.20]"],
    ]


def test_without_records_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("make_tables.RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{START}\n<!-- end of table -->")
    assert make_tables(["peers", "--page", str(page)]) == 0
    assert NONE_YET in page.read_text()
