# SPDX-License-Identifier: BSD-3-Clause
"""What other programs disturbed serves its run and is not kept; a loaded machine is a warning."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchalgo
from support.fake_bench import FakeBench, make_tuning, spread
from torchalgo import _C
from torchalgo._base import processor_load
from torchalgo._base.processor_load import processors_s, used_s, warn_if_busy
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._db.row import Verdict
from torchalgo._ir.costs import Cost, Key
from torchalgo._ir.plan import GuardVerdict, guard_line
from torchalgo._measure import machine_load, sampling
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan import objective

KEY = Key("fwd_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1", "cpu.direct", "nchw", "nchw")
VERDICT = GuardVerdict("faster", "plan", "frozen", 1.0, 2.0, 0.5, 0.4, 0.6, 25, "")
WARNS = "not stored for later runs"


@pytest.fixture(autouse=True)
def _load_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor_load.IGNORE, "0")


def use_times(monkeypatch: pytest.MonkeyPatch, *used: tuple[float, float]) -> None:
    """From now on each process ran and waited so long, call after call; the last for ever."""
    left = list(used)
    monkeypatch.setattr(
        machine_load, "used_s", lambda _pid: left.pop(0) if len(left) > 1 else left[0]
    )
    monkeypatch.setattr(machine_load, "processors_s", lambda: (0.0, 0.0))


# ---- what the system counts ----------------------------------------------------------------------


@pytest.fixture
def two_on_one_processor() -> Iterator[subprocess.Popen[bytes]]:
    """This process and an endless loop have one processor between them."""
    before = os.sched_getaffinity(0)
    core = min(before)
    loop = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            os.sched_setaffinity(0, {core})
            yield other
        finally:
            os.sched_setaffinity(0, before)
            other.kill()


def work(watch: WaitWatch, least_s: float) -> None:
    """Computes until this process has run for so long."""
    ran, _ = used_s(os.getpid())
    while used_s(os.getpid())[0] < ran + least_s:
        sum(range(10_000))


@pytest.mark.skipif(used_s(os.getpid()) == (0.0, 0.0), reason="the system does not count waiting")
def test_a_process_that_shares_its_processor_was_disturbed(
    two_on_one_processor: subprocess.Popen[bytes],
) -> None:
    watch = WaitWatch()
    work(watch, 0.1)
    assert watch.was_disturbed()
    assert 0.15 < watch.share() <= 1.0
    of_other = WaitWatch(lambda: two_on_one_processor.pid)
    work(watch, 0.1)
    assert of_other.was_disturbed()


def test_what_the_system_does_not_count_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used_s(2**22 + 1) == (0.0, 0.0)
    assert used_s(None) == (0.0, 0.0)
    assert processors_s() >= (0.0, 0.0)
    assert WaitWatch(lambda: None).share() == 0.0
    monkeypatch.setattr(machine_load, "used_s", lambda _: (0.0, 0.0))
    assert not WaitWatch().was_disturbed()


def test_a_thread_that_ends_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = used_s(os.getpid())
    tasks = os.listdir(f"/proc/{os.getpid()}/task")
    monkeypatch.setattr(os, "listdir", lambda _: ["0", *tasks])
    assert used_s(os.getpid()) >= before


def test_an_interruption_is_no_disturbance_and_a_new_process_begins_at_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_times(monkeypatch, (1.0, 1.0), (1.01, 1.008))
    assert WaitWatch().share() == 0.0
    pids = iter([7, 8])
    use_times(monkeypatch, (5.0, 5.0), (3.0, 1.0))
    assert WaitWatch(lambda: next(pids)).share() == 0.25


def test_time_that_the_hypervisor_took_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_times(monkeypatch, (0.0, 0.0), (0.6, 0.0))
    stolen = iter([10.0, 10.4])
    monkeypatch.setattr(machine_load, "processors_s", lambda: (0.0, next(stolen)))
    assert WaitWatch().share() == pytest.approx(0.4)


def test_on_request_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor_load.IGNORE, "1")
    use_times(monkeypatch, (0.0, 0.0), (0.0, 9.0))
    assert not WaitWatch().was_disturbed()
    assert not warn_if_busy(64, None)


# ---- costs ---------------------------------------------------------------------------------------


def test_disturbed_costs_serve_their_run_and_are_not_kept(
    imported: _C.Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchalgo._measure.tuning.warn_if_busy", lambda *_: None)
    found, path = _C.find_candidates(imported.graph), tmp_path / "costs.sqlite3"

    def tune() -> tuple[FakeBench, Tuning]:
        fake = FakeBench(spread)
        with CostStore.open(path) as store:
            tuning = Tuning(
                imported.graph, found, {}, TuneSettings(),
                bench=fake.bench(), cost_file=DeviceCosts.of(store),
            )  # fmt: skip
            tuning.settle(_C.make_plan)
        return fake, tuning

    use_times(monkeypatch, (0.0, 0.0))
    with monkeypatch.context() as busy:
        busy.setattr(sampling.WaitWatch, "was_disturbed", lambda _: True)
        first, tuning = tune()
    assert first.measured
    assert "other programs used the processors while" in tuning.method_note()
    assert not tuning.is_kept
    with CostStore.open(path) as store:
        assert store.rows() == []
    second, tuning = tune()
    assert second.measured == first.measured
    assert "other programs" not in tuning.method_note()
    assert tuning.is_kept
    assert not tune()[0].measured


def test_a_disturbed_cost_does_not_replace_a_sound_one(tmp_path: Path) -> None:
    with CostStore.open(tmp_path / "costs.sqlite3") as store:
        costs = DeviceCosts.of(store)
        costs.append({KEY: Cost(7)})
        costs.append({KEY: Cost(9, is_disturbed=True)})
        assert costs.read([KEY]) == {KEY: Cost(7)}


def test_the_first_measurement_looks_at_the_load_once(
    imported: _C.Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[int, int | None]] = []
    monkeypatch.setattr("torchalgo._measure.tuning.warn_if_busy", lambda *args: looked.append(args))
    make_tuning(imported, FakeBench(spread)).settle(_C.make_plan)
    assert looked == [(torch.get_num_threads(), os.getpid())]


# ---- the warning ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def none_told() -> None:
    processor_load._warn_once.cache_clear()


def test_other_programs_that_need_the_processors_are_a_warning_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    clock, busy, own = iter([0.0, 1.0]), iter([5.0, 5.0 + cores]), iter([1.0, 1.0])
    monkeypatch.setattr(processor_load.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(processor_load.time, "sleep", lambda _: None)
    monkeypatch.setattr(processor_load, "processors_s", lambda: (next(busy), 0.0))
    monkeypatch.setattr(processor_load, "used_s", lambda _: (next(own), 0.0))
    with pytest.warns(RuntimeWarning, match=WARNS) as caught:
        assert warn_if_busy(cores, None)
    text = str(caught[0].message)
    assert f"other programs use {cores} of {cores} processors" in text
    assert "torch.set_num_threads" in text and caught[0].filename == __file__


def test_the_warning_names_the_users_line_and_comes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = iter([0.0, 9e9, 9e9, 99e9])
    monkeypatch.setattr(processor_load, "processors_s", lambda: (next(busy), 0.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torchalgo.lint(torch.nn.ReLU(), torch.rand(2, 2), budget_s=0.1)
    assert [each.filename for each in caught] == [__file__]


def test_what_this_process_and_its_worker_use_is_no_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    clock, busy = iter([0.0, 1.0]), iter([5.0, 5.0 + cores])
    own = {os.getpid(): iter([1.0, 1.0 + cores / 2]), 77: iter([0.0, cores / 2])}
    monkeypatch.setattr(processor_load.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(processor_load.time, "sleep", lambda _: None)
    monkeypatch.setattr(processor_load, "processors_s", lambda: (next(busy), 0.0))
    monkeypatch.setattr(processor_load, "used_s", lambda pid: (next(own[pid]), 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not warn_if_busy(cores, 77)


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_disturbed_verdict_is_told_and_not_kept(tmp_path: Path) -> None:
    disturbed = dataclasses.replace(VERDICT, waited=0.4)
    assert "other programs ran 40% of the time, so this result is not stored" in guard_line(
        disturbed
    )
    with CostStore.open(tmp_path / "costs.sqlite3") as store:
        costs = DeviceCosts.of(store)
        costs.keep_verdict("plan", disturbed)
        assert costs.read_verdict("plan") is None


def test_the_guard_says_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    use_times(monkeypatch, (0.0, 0.0), (1.0, 1.0))
    times = objective.Latency(sampling.Bench(), None).compare(
        {"plan": lambda: None, "frozen": lambda: None},
        limit_s=0.0, warmup=0, most_s=float("inf"), synchronize=lambda: None,
    )  # fmt: skip
    assert times is not None and times.waited == 0.5


def test_a_loaded_machine_leaves_no_cost_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)
    monkeypatch.setattr("torchalgo._measure.tuning.warn_if_busy", lambda *_: None)
    monkeypatch.setattr(WaitWatch, "share", lambda _: 0.5)
    path = tmp_path / "costs.sqlite3"
    fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    torch.testing.assert_close(fast(x), model(x))
    with CostStore.open(path) as store:
        assert (store.rows(), store.all_of(Verdict)) == ([], [])
        assert store.checks()  # that a candidate is right does not depend on the load
