# SPDX-License-Identifier: BSD-3-Clause
"""A small model, and the same optimized once for all tests that only look at the result."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

import torchalgo
from support import run_record
from support.fake_bench import FakeBench, spread
from support.nets import Net, make_net, run_plan
from support.several_shapes import SHAPES, optimize_for
from support.workers import make_bench  # noqa: F401
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model

# On a loaded machine a second thread makes tuning wait at each barrier; other numbers of threads
# have tests of their own.
torch.set_num_threads(1)


# Tests of what a later run finds in the database must hold on a loaded machine too.
os.environ["TORCHALGO_IGNORE_LOAD"] = "1"

# Nothing here reads or writes the user's own database of costs.
_CACHE = tempfile.TemporaryDirectory(prefix="torchalgo-tests-")
os.environ["TORCHALGO_CACHE_DIR"] = _CACHE.name


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the costs of another."""
    monkeypatch.setenv("TORCHALGO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _own_seed() -> None:
    """The random numbers of a test are the same whatever ran before it in this process."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/cudnn for this cuDNN"
    )
    run_record.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    run_record.register(config)


@pytest.fixture
def net() -> Net:
    return make_net()


@pytest.fixture(scope="session")
def x() -> torch.Tensor:
    return torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def fast(x: torch.Tensor) -> torchalgo.Optimized:
    """Optimized, and forced to run its plan: the guard's verdict depends on the machine's load."""
    return run_plan(make_net(), x)


@pytest.fixture
def drawn_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """optimize draws its costs instead of measuring, for tests that need a plan, and any will do.

    No worker starts. The plan is timed against PyTorch as always.
    """
    bench = dataclasses.replace(FakeBench(spread).bench(), now_s=time.monotonic)
    monkeypatch.setattr("torchalgo._measure.sampling.Bench.on", lambda *_: bench)
    monkeypatch.setattr("torchalgo._measure.process_bench.start_early", lambda: None)


@pytest.fixture
def count_ops() -> Callable[[nn.Module, torch.Tensor], dict[str, int]]:
    """How often each torchalgo op runs in a call."""

    def count(model: nn.Module, x: torch.Tensor) -> dict[str, int]:
        with torch.no_grad(), torch.profiler.profile(acc_events=True) as profile:
            model(x)
        events = {e.key: e.count for e in profile.key_averages()}
        return {key: n for key, n in events.items() if key.startswith("torchalgo::")}

    return count


@pytest.fixture(scope="session")
def imported() -> _C.Imported:
    """make_net's graph for a small image."""
    x = torch.rand(1, 3, 16, 16)
    return _C.import_graph(freeze_model(make_net(), (x,))._c, (x,))


@pytest.fixture(scope="session")
def run_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program that runs files on saved inputs."""
    source = Path(__file__).parents[1] / "deploy/run_files.cpp"
    program = tmp_path_factory.mktemp("deploy") / "run_files"
    library = Path(torchalgo.__file__).with_name("libtorchalgo.so")
    torch_lib = cpp_extension.library_paths()[0]
    command = ["g++", "-std=c++20", "-O0", str(source), "-o", str(program)]
    command += [f"-I{path}" for path in cpp_extension.include_paths()]
    command += [f"-L{torch_lib}", "-Wl,--no-as-needed", str(library), "-ltorch_cpu", "-lc10"]
    command += ["-Wl,--allow-shlib-undefined", f"-Wl,-rpath,{torch_lib}:{library.parent}"]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="session")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> torchalgo.Optimized:
    """make_net with a plan for each of SHAPES."""
    costs = tmp_path_factory.mktemp("costs") / "costs.sqlite3"
    return optimize_for(make_net(), *SHAPES, cost_db=costs)


@pytest.fixture
def again(shaped: torchalgo.Optimized) -> torchalgo.Optimized:
    """A copy of `shaped` that was never called."""
    return copy.deepcopy(shaped)


@pytest.fixture
def no_unseen_warning() -> Iterator[None]:
    """Ignores the warning that a call has shapes without a plan."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torchalgo: there is no plan for inputs")
        yield


@pytest.fixture
def runs() -> Iterator[Callable[[], dict[tuple[str, str], int]]]:
    """(direction of the problem, primitive) -> count of what ran since the test began."""
    _C.reset_recorded_runs()
    old = _C.set_recording(True)

    def read() -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for problem, primitive, _, count in _C.recorded_runs():
            direction = next(
                d for d in ("fwd", "bwd_data", "bwd_filter") if problem.startswith(d + "_")
            )
            counts[direction, primitive] = counts.get((direction, primitive), 0) + count
        return counts

    yield read
    _C.set_recording(old)
    _C.reset_recorded_runs()


@pytest.fixture
def clean_settings() -> Iterator[None]:
    """Afterwards no choice of an algorithm is set anywhere."""
    yield
    _C.set_flag_choices("", "", "")
    _C.set_context_choices("", "", "")
    _C.set_planned_choices({})
    _C.set_conflict_policy("error")
    torchalgo.set_strict(False)
    torchalgo.reset_fallbacks()
