# SPDX-License-Identifier: BSD-3-Clause
"""The worker: candidates that crash, hang or lie end it, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.faulty_worker import NS
from support.workers import CONV, OPTIONS, MakeBench, faulty_command
from torchalgo import _C
from torchalgo._base.time_budget import Deadline
from torchalgo._measure.process_bench import MOST_IN_A_ROW, ProcessBench, TakenSamples, Worker
from torchalgo._measure.sampling import Bench
from torchalgo._measure.worker import (
    FLAGS,
    _closed_device,
    flushes_denormals,
    read_state,
    set_state,
)
from torchalgo._measure.worker_process import default_command

NAMES = ["aten.conv", "cpu.direct", "cpu.im2col_gemm", "cpu.stem"]
TASKS = [(CONV, _C.Primitive(name, "nchw", "nchw")) for name in NAMES]
PRIMITIVES = [primitive for _, primitive in TASKS]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_it_is_ready_after_its_start_and_a_start_that_fails_is_no_error() -> None:
    worker = Worker()
    deadline = Deadline(60.0)
    deadline.can_break = True  # so that the wait asks it whether the time is over
    bench = ProcessBench(worker=worker, deadline=deadline)
    assert worker.pid is None
    bench.start()
    assert worker.pid is not None
    begin = time.monotonic()
    (taken,) = bench.measure(TASKS[:1], **OPTIONS)
    assert taken.ns and time.monotonic() - begin < 60
    worker.close()
    missing = ProcessBench(worker=Worker(lambda: ["/nonexistent/python"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        missing.start()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segv", "SIGSEGV"),
        ("abort", "abort: free(): invalid pointer"),
        ("kill", "SIGKILL, as the system sends it where memory runs out"),
        ("leave", "exit with status 3"),
        ("hang", "no answer in 2 s"),
        ("stop", "no answer in 2 s"),
        ("garbage", "an answer that makes no sense"),
        ("fail", "exit with status 1: RuntimeError: unheard of"),
        ("chatter", "an answer that makes no sense"),
    ],
)
def test_a_candidate_that_ends_the_worker_is_told_why_and_the_others_are_measured(
    make_bench: MakeBench, fault: str, reason: str
) -> None:
    taken = make_bench(cpu__direct=fault).measure(TASKS, **OPTIONS)
    assert [samples.failure for samples in taken] == ["", reason, "", ""]
    assert [samples.ns for samples in taken] == [[NS] * 3, [], [NS] * 3, [NS] * 3]


def test_a_check_that_ends_the_worker_fails_for_its_candidate_alone(make_bench: MakeBench) -> None:
    bench = make_bench(cpu__stem="segv", aten__conv="hang")
    results = bench.check(CONV, PRIMITIVES, 1e-5)
    assert [failure for _, failure in results] == ["no answer in 2 s", "", "", "SIGSEGV"]


def test_no_memory_is_the_failure_of_the_one_that_wants_it(make_bench: MakeBench) -> None:
    bench = make_bench(cpu__direct="memory")
    bench._least_limit_s = 60.0  # filling memory takes its time
    taken = bench.measure(TASKS, **OPTIONS)
    assert [bool(samples.ns) for samples in taken] == [True, False, True, True]
    assert taken[1].failure == "exit with status 1: MemoryError"


def test_a_worker_that_is_killed_from_outside_costs_no_candidate_its_place(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(aten__conv="sleep")
    bench._least_limit_s = 60.0
    worker = bench._worker

    def kill_and_heal() -> None:
        assert wait_until(lambda: worker.pid is not None)
        time.sleep(0.3)
        worker._command = faulty_command()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill_and_heal)
    thread.start()
    taken = bench.measure(TASKS, **OPTIONS)
    thread.join()
    assert [samples.failure for samples in taken] == [""] * 4


def test_a_worker_that_is_killed_while_it_starts_is_started_again(make_bench: MakeBench) -> None:
    bench = make_bench(start="kill")
    commands = iter([bench._worker._command] * 2 + [faulty_command()])
    bench._worker._command = lambda: next(commands)()
    assert bench.measure(TASKS, **OPTIONS)[3].ns == [NS] * 3


def test_a_worker_that_does_not_start_is_one_warning_and_the_work_is_done_here(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(start="leave")
    with pytest.warns(RuntimeWarning, match=r"no worker starts \(it ended while starting: exit"):
        taken = bench.measure(TASKS[:1], **OPTIONS)
    assert taken[0].ns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bench.check(CONV, PRIMITIVES[:1], 1e-5)[0][1] == ""


GPU = _C.Device(kind="cuda", name="a fake", isa="sm_90", index=0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that this process can use. Returns what is done on it."""
    done: list[str] = []

    def measure(tasks: Any, **_: Any) -> list[Any]:
        done.append("measure")
        return [TakenSamples([NS]) for _ in tasks]

    def check(problem: str, primitives: Any, *_: Any, **__: Any) -> list[tuple[float, str]]:
        done.append("check")
        return [(0.0, "")] * len(primitives)

    monkeypatch.setattr(_C, "measure", measure)
    monkeypatch.setattr(_C, "check_primitives", check)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: done.append(f"wait {index}"))
    return done


def test_a_gpu_that_the_worker_cannot_use_is_measured_here_after_one_warning(
    make_bench: MakeBench, gpu: list[str]
) -> None:
    bench = make_bench(closed="CUDA error: devices are busy or unavailable")
    bench._device = GPU
    bench.start()  # says nothing
    with pytest.warns(RuntimeWarning, match=r"cannot use the GPU: CUDA error: devices") as seen:
        taken = bench.measure(TASKS, **OPTIONS)
        results = bench.check(CONV, PRIMITIVES, 1e-5)
        bench.release()
    assert len(seen) == 1 and gpu == ["wait 0", "measure", "check"]
    assert [samples.failure for samples in taken] == [""] * 4 == [text for _, text in results]


def test_a_gpu_that_no_process_can_use_is_an_error_and_no_failure_of_candidates(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    bench = make_bench(closed="CUDA error: unspecified launch failure")
    bench._device = GPU
    with pytest.raises(RuntimeError, match="launch failure"):
        bench.measure(TASKS, **OPTIONS)


def test_a_worker_says_why_it_cannot_use_a_gpu() -> None:
    request = {"device": {"index": 99}}
    assert "\n" not in (reason := _closed_device(request)) and reason
    assert _closed_device({"device": None}) == ""


def test_the_worker_releases_the_memory_of_a_gpu_and_lives_on(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench._device = GPU
    bench.release()
    assert bench.pid is None  # none is started for this
    bench.measure(TASKS, **OPTIONS)
    pid = bench.pid
    bench.release()
    assert bench.pid == pid and bench.measure(TASKS, **OPTIONS)[0].ns == [NS] * 3


@pytest.mark.parametrize("fault", ["segv", "hang", "garbage"])
def test_a_worker_that_fails_to_release_memory_is_ended(make_bench: MakeBench, fault: str) -> None:
    bench = make_bench(release=fault)
    bench._device, bench._least_limit_s = GPU, 0.5
    bench.measure(TASKS, **OPTIONS)
    pid = bench.pid
    assert pid is not None
    bench.release()
    assert not is_running(pid)
    assert bench.measure(TASKS, **OPTIONS)[0].ns == [NS] * 3  # by another one


@pytest.mark.parametrize("executable", ["", None, "/usr/sbin/uwsgi", "/nowhere/python3"])
def test_without_an_interpreter_the_work_is_done_here(
    monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    bench = ProcessBench(worker=Worker())
    with pytest.warns(RuntimeWarning, match=r"no worker starts \((sys.executable is|/nowhere)"):
        assert bench.measure(TASKS[:1], **OPTIONS)[0].ns


def test_if_all_candidates_end_the_worker_it_gives_up(make_bench: MakeBench) -> None:
    bench = make_bench(cpu__direct="leave", cpu__stem="leave")
    bench._dead_in_a_row = MOST_IN_A_ROW - 2
    with pytest.warns(RuntimeWarning, match=r"20 candidates in a row ended the worker"):
        taken = bench.measure([TASKS[1], TASKS[3], TASKS[0], TASKS[2]], **OPTIONS)
    failures = [t.failure.partition(":")[0] for t in taken]
    assert failures == ["exit with status 3"] * 2 + ["not run"] * 2


def test_a_primitive_that_crashes_everywhere_is_not_run_again(make_bench: MakeBench) -> None:
    bench = make_bench(cpu__direct="leave")
    for n in (1, 1, 2, 3):  # a second time on one problem does not count
        tasks = [(CONV.replace("_n1", f"_n{n}"), primitive) for _, primitive in TASKS[:2]]
        assert bench.measure(tasks, **OPTIONS)[1].failure == "exit with status 3"
    pid = bench._worker.pid
    taken = bench.measure(TASKS[:2], **OPTIONS)
    expected = "not run: ended the worker on 3 other problems, by exit with status 3"
    assert [t.failure for t in taken] == ["", expected]
    assert bench._worker.pid == pid


def test_an_engine_that_hangs_on_a_problem_is_not_run_again_on_it(make_bench: MakeBench) -> None:
    """Each of its layouts and knobs would hang until the limit. A crash says less about them."""
    names = ["cudnn9.conv.e5", "cudnn9.conv.e5{TILE=1}", "cudnn9.conv.e5.krsc", "cudnn9.conv.e50"]
    primitives = [_C.Primitive(name, src, "nhwc") for name in names for src in ("nchw", "nhwc")]
    tasks = [(CONV, primitive) for primitive in primitives]
    hung = "not run: cudnn9.conv.e5 hung on this problem: no answer in 2 s"
    expected = ["no answer in 2 s", *[hung] * 5, "", ""]
    bench = make_bench(**{name.replace(".", "__"): "hang" for name in names[:3]})
    assert [taken.failure for taken in bench.measure(tasks, **OPTIONS)] == expected
    checked = bench.check(CONV, primitives, 1e-5)
    assert [failure for _, failure in checked] == [hung, *expected[1:]]
    others = [(CONV.replace("_n1", "_n2"), primitives[i]) for i in (0, 6)]
    assert [t.failure for t in bench.measure(others, **OPTIONS)] == ["no answer in 2 s", ""]
    crashing = make_bench(**{names[0].replace(".", "__"): "leave"})
    failures = [taken.failure for taken in crashing.measure(tasks, **OPTIONS)]
    assert failures == ["exit with status 3"] * 2 + [""] * 6


def test_a_request_that_makes_no_sense_is_an_error_and_ends_nothing(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(real="yes")
    with pytest.raises(torchalgo.Error, match=r"no algorithm has the name .nonsense"):
        bench.check(CONV, [_C.Primitive("nonsense", "nchw", "nchw")], 1e-5)
    pid = bench._worker.pid
    assert bench.check(CONV, PRIMITIVES[:1], 1e-5)[0][1] == ""
    assert bench._worker.pid == pid


def test_an_interrupt_ends_the_worker_at_once_and_leaves_nothing_behind(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(cpu__direct="hang")
    bench._least_limit_s = 600.0
    bench.measure(TASKS[:1], **OPTIONS)
    pid = bench._worker.pid
    assert pid is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.measure(TASKS, **OPTIONS)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # it is reaped, too
    assert bench.measure(TASKS[:1], **OPTIONS)[0].ns == [NS] * 3


def test_the_worker_has_the_settings_of_this_process() -> None:
    before = read_state()
    try:
        torch.set_num_threads(2)
        torch.set_flush_denormal(True)
        torch.backends.cudnn.allow_tf32 = False
        state = read_state()
        assert state["threads"] == 2
        assert state["flush_denormal"]
        assert set(state["flags"]) <= set(FLAGS)
        seen = ask_state(state)
        assert seen == state
    finally:
        set_state(before)
    assert read_state() == before


def ask_state(state: dict[str, Any]) -> Any:
    """What a new process reads after it set `state`."""
    script = (
        "import json, sys; from torchalgo._measure.worker import read_state, set_state;"
        "set_state(json.loads(sys.argv[1])); print(json.dumps(read_state()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(torchalgo.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(state)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_denormals_are_told_apart_from_zero() -> None:
    assert not flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)
    assert not flushes_denormals()


# A program without a guard around its main part, with its own folder first on the path, standard
# streams closed, in a folder that is gone.
PROGRAM = """
import os, sys, tempfile
print("once", flush=True)
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), {package!r}]
import torch, torchalgo
from torchalgo._measure.process_bench import ProcessBench, worker
from torchalgo import _C
from torchalgo._measure.sampling import Bench
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
os.close(0)
bench = ProcessBench()
taken = bench.measure([({conv!r}, _C.Primitive("aten.conv", "nchw", "nchw"))], **{options!r})
print(worker.pid, len(taken[0].ns), taken[0].failure, flush=True)
if sys.argv[1:] == ["fork"]:
    child = os.fork()
    if child == 0:
        assert worker.pid is None
        os._exit(0 if bench.measure([({conv!r}, _C.Primitive("aten.conv", "nchw", "nchw"))],
                                    **{options!r})[0].ns else 1)
    assert os.waitpid(child, 0)[1] == 0
    bench.measure([({conv!r}, _C.Primitive("aten.conv", "nchw", "nchw"))], **{options!r})
    print(worker.pid, flush=True)
if sys.argv[1:] == ["die"]:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("ending", ["exit", "die", "fork"])
def test_a_script_without_guard_is_run_once_and_leaves_no_process(
    tmp_path: Path, ending: str
) -> None:
    script = tmp_path / "user_script.py"
    package = str(Path(torchalgo.__file__).parent.parent)
    script.write_text(PROGRAM.format(package=package, conv=CONV, options=OPTIONS))
    (tmp_path / "profile.py").write_text("raise ImportError('not this one')\n")
    done = subprocess.run(
        [sys.executable, str(script), ending], capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.split("\n")
    assert lines[0] == "once", done.stderr
    assert lines[1].split()[1] == "3", done.stdout + done.stderr
    assert lines.count("once") == 1
    pid = int(lines[1].split()[0])
    assert done.returncode == (-signal.SIGKILL if ending == "die" else 0), done.stderr
    assert "warning" not in done.stderr.lower()
    if ending == "fork":
        assert int(lines[2]) == pid  # the child had one of its own
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists() or not is_running(pid))


def test_the_default_command_is_isolated_and_names_a_file() -> None:
    command = default_command()
    assert command[0] == sys.executable
    assert command[1] == "-I"
    assert Path(command[2]).is_file()


def test_optimize_goes_on_when_a_candidate_crashes(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: no crashing primitive is in the plan, which names the reason."""
    bench = make_bench(real="yes", aten__prepacked="segv")
    bench._least_limit_s = 60.0
    monkeypatch.setattr(
        "torchalgo._measure.sampling.Bench.on",
        staticmethod(lambda *_: Bench(bench.measure, bench.check)),
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    x = torch.rand(1, 3, 12, 12)
    fast = torchalgo.optimize(
        model, (x,), settings=torchalgo.Settings(progress=False), budget_s=20.0
    )
    reasons = {q.primitive: q.reason for q in fast.plan.quarantined}
    assert reasons == {"aten.prepacked": "SIGSEGV"}
    assert "aten.prepacked" not in {n.primitive for n in fast.plan.nodes}
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
