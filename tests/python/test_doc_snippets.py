# SPDX-License-Identifier: BSD-3-Clause
"""The snippets and commands of the tutorial and other pages run as printed, with small images."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.doc_blocks import DOCS, NOT_RUN, blocks, small
from support.nets import net_factory
from torchalgo._base.compare_outputs import output_error
from torchalgo._train import optimize as train_optimize
from torchalgo_cli import main

Names = dict[str, Any]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torchalgo.reset_fallbacks()  # those of other tests


def names_of_model() -> Names:
    """Returns the objects that the code of pages names `model` and `x`, and the imports."""
    x = torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    return {"model": net_factory(), "x": x, "torch": torch, "torchalgo": torchalgo}


def run_python(page: str, text: str, names: Names) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other engines warn of themselves
        exec(compile(small(text), page, "exec"), names)


def run_commands(text: str) -> None:
    for line in text.splitlines():
        words = shlex.split(small(line), comments=True)
        assert words[0] == "torchalgo", line
        assert main(words[1:]) == 0, line


def run_page(page: str, names: Names, *sections: str) -> None:
    """Runs the blocks of a page, or of some sections, in order."""
    for language, text in blocks(page, *sections):
        if language == "python":
            run_python(page, text, names)
        elif not language:
            run_commands(text)


@pytest.mark.slow
def test_the_tutorial_finds_what_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    names: Names = {}
    printed = []
    for language, text in blocks("tutorial.md"):
        if text.startswith('"""A small network'):
            (tmp_path / "mymodels.py").write_text(text)
        elif language == "python":
            run_python("tutorial.md", text, names)
        elif not language:
            run_commands(text)
        printed.append(capsys.readouterr().out)
    sys.modules.pop("mymodels")
    out = "".join(printed)
    assert "torchalgo does not plan aten::avg_pool3d (mymodels.py:16 forward)" in out
    assert "top-1 agrees on 4 of 4: ok" in out
    assert "refuses: needs a 1x1 filter, got 3x3" in out
    assert names["distance"] < 1e-5
    assert names["other"].cost_us >= names["fast"].plan.cost_us


@pytest.mark.slow
def test_the_sections_about_ci_and_shared_costs_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save("images.npy", torch.rand(2, 3, 40, 40).numpy())
    run_page("ci.md", names_of_model(), "Make a plan", "Check it", "Commit a proof")
    assert "optimal" in capsys.readouterr().out
    shutil.copy("model.plan.json", "before.plan.json")
    (workflow,) = [text for language, text in blocks("ci.md") if language == "yaml"]
    steps = re.findall(r"^ +- run: (torchalgo .*)$", workflow, re.MULTILINE)
    compared = "Compare its speed with the plan before"
    (command,) = [text.strip() for _, text in blocks("ci.md", compared)]
    assert command in steps and len(steps) == 5
    run_commands("\n".join(steps).replace("0.8", "0.01"))  # the machine of the tests is busy
    assert capsys.readouterr().out.count("times as fast as the first") == 2
    run_page("saving.md", names_of_model(), "Share costs between machines")
    assert re.search(r"[1-9]\d* rows, [1-9]\d* taken|wrote [1-9]\d* rows", capsys.readouterr().out)


@pytest.mark.slow
def test_the_loops_of_other_packages_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_optimize, "compare_steps", lambda *_: None)  # small models may lose
    data = torch.utils.data.TensorDataset(torch.rand(6, 3, 20, 20), torch.arange(6))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    for section in ("Lightning", "Accelerate"):
        pytest.importorskip(section.lower())
        names = names_of_model() | {"model": net_factory().train(), "loader": loader}
        run_page("loops.md", names, section)
        assert capsys.readouterr().out.endswith(" Counter()\n")
        assert names["net"].planned_runs >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", ["database.md", "index.md", "limits.md", "shapes.md"])
def test_the_snippets_of_a_page_run(page: str) -> None:
    names = names_of_model()
    for language, text in blocks(page):
        if language == "python":
            run_python(page, text, names)


@pytest.mark.slow
def test_the_pages_about_overrides_and_saving_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torchvision = pytest.importorskip("torchvision")
    names = names_of_model() | {"model": torchvision.models.resnet18().eval()}
    for language, text in blocks("choosing.md", "Fix some layers of a plan"):
        if language == "python":
            run_python("choosing.md", text, names)
    with torch.no_grad():
        assert output_error(names["y"], names["model"](names["x"])) < 1e-4
    printed = capsys.readouterr().out
    assert "us without overrides" in printed and "['cpu.winograd_f4x4_3x3" in printed
    kept = {n.name: n.primitive for n in names["fast"].plan.nodes if n.primitive}
    own = {n.name: n.primitive for n in names["alone"].nodes}
    assert own.pop("layer1.0.conv1") == "aten.conv"
    assert all(own[name] == primitive for name, primitive in kept.items() if name in own)
    names["fast"].save("model.pt")
    names["fast"].save("model.pt2")
    sections = "A plan alone", "The model with its plan", "Which file lasts"
    run_page("saving.md", names, *sections)
    assert names["again"].plan.nodes == names["fast"].plan.nodes
    assert output_error(names["y"], names["module"](names["x"])) < 1e-5


class Masked(torch.nn.Module):
    """A model with the arguments that calls.md has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, batch: torch.Tensor, mask: torch.Tensor, return_dict: bool = False) -> Any:
        y = self.conv(batch * mask)
        return {"y": y} if return_dict else y


class Clock:
    """Stands for an energy meter: a watt, all the time."""

    name, covers, interval_s, step_uj = "clock", "nothing", 1e-4, 100.0

    def read_uj(self) -> int:
        return time.perf_counter_ns() // 1000


@pytest.mark.slow
@pytest.mark.parametrize("page", ["calls.md", "energy.md", "pbqp.md", "predicting.md", "tune.md"])
def test_the_snippets_of_other_pages_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    names = names_of_model()
    if page == "calls.md":
        names |= {"model": Masked().eval(), "batch": names["x"], "mask": torch.ones(1, 3, 40, 40)}
    if page == "energy.md":
        names["model"] = model
    if page == "predicting.md":
        pytest.importorskip("lightgbm")
        pytest.importorskip("torchvision")
    monkeypatch.setattr("torchalgo._measure.meters.find_meter", lambda *_: Clock())
    monkeypatch.setattr("torch.distributed.init_process_group", lambda _: None)  # one rank
    for language, text in blocks(page):
        if language == "python":
            run_python(page, text, names)


@pytest.mark.slow
def test_the_page_about_reports_runs(tmp_path: Path) -> None:
    names = names_of_model()
    fast = names["fast"] = torchalgo.optimize(names["model"], names["x"])
    fast.save("model.pt")
    fast.plan.save("model.plan.json")
    fast.plan.save("before.plan.json")
    fast.plan.save("after.plan.json")
    run_page("report.md", names)
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_programs_of_other_engines_and_ours_give_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    names = names_of_model()
    model, x = names["model"], names["x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "n"}}
        torch.onnx.export(
            model, (x,), "model.onnx", dynamo=False, input_names=["x"], dynamic_axes=axes
        )
    with torch.no_grad():
        want = model(x)
    ran = 0
    for language, text in blocks("migrating.md"):
        imported = re.findall(r"^import (openvino|onnxruntime)$", text, re.MULTILINE)
        if language != "python" or not all(map(importlib.util.find_spec, imported)):
            continue
        run_python("migrating.md", text, names)
        assert output_error(names["y"], want) <= 1e-4, text
        ran += 1
    torch.backends.cudnn.benchmark = False
    assert ran >= 11


def test_what_is_not_run_says_so() -> None:
    text = (DOCS / "migrating.md").read_text()
    assert text.count(f"(not run here):\n\n{NOT_RUN}") == text.count(NOT_RUN) == 2
    others = [path for path in DOCS.glob("*.md") if path.name != "migrating.md"]
    assert not [path.name for path in others if NOT_RUN in path.read_text()]


@pytest.mark.slow
def test_the_program_in_cpp_builds_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: torchalgo.Optimized
) -> None:
    if not (shutil.which("cmake") and shutil.which("g++")):
        pytest.skip("there is no cmake or no g++")
    pt2, lists, commands, program = [text for _, text in blocks("saving.md", "Run it in C++")]
    fast.save("model.pt")
    (tmp_path / "main.cpp").write_text(small(program))
    (tmp_path / "CMakeLists.txt").write_text(lists)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(torchalgo.__file__).parents[1]))
    built = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stdout.splitlines()[-1] == "[1, 10]"
    fast.save("model.pt2")
    (tmp_path / "main.cpp").write_text(small(pt2))
    built = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stdout.splitlines()[-1] == "[1, 10]"
