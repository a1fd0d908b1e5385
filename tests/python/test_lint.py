# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo.lint finds the faults of small models, and nothing in their clean twins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.faulty_models import CASES, Case, Clone
from torchalgo._base.stats import Faster
from torchalgo._lint import copies, groups, repeats
from torchalgo._lint.facts import layout_of
from torchalgo._lint.source import is_user_file
from torchalgo._lint.what_if import Lab, Trial
from torchalgo_cli import main

LEAST_FOUND = 8  # of the 9 faults
PAGE = Path(__file__).resolve().parents[2] / "docs" / "lint.md"
SMALL = torch.zeros(1, 16, 56, 56)


def is_found(case: Case, report: torchalgo.LintReport) -> bool:
    """True if a finding has the kind, the layer and the line of a case."""
    place = f"faulty_models.py:{case.line()}"
    return any(
        f.kind == case.kind and f.layer == case.layer and f.source.endswith(place) for f in report
    )


def test_the_suite_has_ten_models_with_one_fault_each() -> None:
    assert len(CASES) == 9
    assert all(case.line() for case in CASES)


@pytest.mark.slow
def test_faults_are_found_with_kind_layer_and_line() -> None:
    missed = []
    for case in CASES:
        report = torchalgo.lint(*case.make(is_faulty=True))
        if not is_found(case, report):
            missed.append(f"{case.model.__name__}: {report}")
    assert len(CASES) - len(missed) >= LEAST_FOUND, "\n".join(missed)


@pytest.mark.slow
def test_clean_twins_have_no_finding() -> None:
    for case in CASES:
        report = torchalgo.lint(*case.make(is_faulty=False))
        assert not report.findings, f"{case.model.__name__}: {report}"


def test_a_finding_names_its_bytes_its_fix_and_its_place() -> None:
    case = next(c for c in CASES if c.model is Clone)
    (finding,) = torchalgo.lint(*case.make(is_faulty=True))
    assert finding.bytes == 2 * 16 * 56 * 56 * 4
    assert finding.fix == "Remove the copy (clone): what reads it accepts the tensor as it is."


class Blocks(nn.Module):
    """A network whose blocks all have the same fault."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Clone(True) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def test_one_line_that_several_layers_run_is_one_finding() -> None:
    (finding,) = torchalgo.lint(Blocks().eval(), torch.rand(2, 16, 56, 56))
    assert finding.layers == ("blocks.0", "blocks.1", "blocks.2")
    assert finding.bytes == 3 * 2 * 16 * 56 * 56 * 4


class Untraceable(nn.Module):
    """Its Python code looks at values, and takes a dict."""

    def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> dict[str, Tensor]:
        x = batch["image"]
        if float(x[0, 0, 0, 0]) > 2.0:
            x = -x
        return {"image": (x * scale).clone().relu()}


def test_a_model_that_cannot_be_traced_is_linted() -> None:
    batch = {"image": torch.rand(2, 16, 56, 56)}
    report = torchalgo.lint(Untraceable().eval(), (batch,), example_kwargs={"scale": 2.0})
    assert [f.kind for f in report] == ["hidden-copy"]


class LastStep(nn.Module):
    """nn.LSTM computes its last states as well, and this model does not read them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(32, 64, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


def test_results_that_pytorch_computes_together_with_used_ones_are_no_fault() -> None:
    assert not torchalgo.lint(LastStep().eval(), torch.rand(64, 20, 32)).findings


class Anchors(nn.Module):
    """A grid that depends on the size of the input only."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.size(2), dtype=torch.float32).sqrt() * 2
        return x + rows[:, None] * torch.arange(x.size(3))


def test_what_depends_on_sizes_only_is_not_called_a_constant() -> None:
    assert not torchalgo.lint(Anchors(), torch.rand(1, 2, 256, 256)).findings


class SparseProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        where, ones = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
        sparse = torch.sparse_coo_tensor(where, ones, (64, 64), check_invariants=True)
        self.register_buffer("a", sparse)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.a, x)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_tensor_without_strides_is_no_obstacle() -> None:
    assert not torchalgo.lint(SparseProduct(), torch.rand(64, 256)).findings


class ReadByPython(nn.Module):
    """Its Python code reads a result that reaches no output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)
        self.seen = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen = float(self.first(x).numpy().mean())
        return self.last(x)


def test_what_python_code_reads_is_not_unused() -> None:
    assert not torchalgo.lint(ReadByPython().eval(), SMALL).findings


def test_a_grouped_convolution_is_named_with_the_number_of_groups_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(1e6, 0.5, Faster("faster", 0.5, 0.5, 0.5), 0)
    monkeypatch.setattr(Lab, "_decided", lambda *_: trial)
    model = nn.Sequential(nn.Conv2d(32, 32, 3, groups=16), nn.ReLU())
    (finding,) = torchalgo.lint(model.eval(), torch.rand(1, 32, 28, 28))
    assert (finding.kind, finding.layer) == ("slow-groups", "0")
    assert finding.fix.startswith("Use groups=1 ") and "groups=16 leaves only 2" in finding.fix


def test_lint_does_not_change_the_model_its_mode_the_inputs_or_random_numbers() -> None:
    layers = nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.3)
    model, x = nn.Sequential(*layers).train(), torch.rand(2, 16, 28, 28)
    model[0].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    given = x.clone()
    torch.manual_seed(7)
    report = torchalgo.lint(model, x)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.manual_seed(7)))
    assert [module.training for module in model.modules()] == [True, False, True, True]
    assert torch.equal(given, x)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    assert report.notes == ("the model is in train mode; it was run in eval mode",)


def test_a_script_is_linted_without_lines_and_keeps_its_mode() -> None:
    model = nn.Sequential(Appends(), nn.BatchNorm2d(8))
    script = torch.jit.script(model.train())
    report = torchalgo.lint(script, torch.rand(1, 8, 64, 64))
    assert "layers and lines of its operations are not known" in report.notes[1]
    assert script.training and not bool(model[1].running_mean.any())


class Appends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        parts.append(x.clone())
        return torch.cat(parts).relu()


class ChangesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1).clone()


def test_a_model_that_changes_its_input_gets_a_note() -> None:
    x = torch.zeros(1, 16, 56, 56)
    report = torchalgo.lint(ChangesItsInput(), x)
    assert any("changes its inputs" in note for note in report.notes)
    assert not x.any()


def test_without_time_for_trials_nothing_is_reported_and_a_note_says_so() -> None:
    case = next(c for c in CASES if c.model is Clone)
    report = torchalgo.lint(*case.make(is_faulty=True), budget_s=1e-9)
    assert not report.findings
    assert any("were not tried" in note for note in report.notes)


# ---- arguments -----------------------------------------------------------------------------------


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such image")


@pytest.mark.parametrize(
    ("call", "code", "texts"),
    [
        (lambda: torchalgo.lint(3, SMALL), "TA1701", ("model is int", "expected", "load or make")),
        (
            lambda: torchalgo.lint(nn.ReLU, SMALL),
            "TA1701",
            ("model is the class ReLU", "make an instance, ReLU(...)"),
        ),
        (
            lambda: torchalgo.lint(nn.ReLU(), SMALL, budget_s=0),
            "TA1702",
            ("budget_s is 0", "above 0", "such as 60"),
        ),
        (
            lambda: torchalgo.lint(nn.ReLU(), SMALL, budget_s=float("nan")),
            "TA1702",
            ("budget_s is nan", "above 0"),
        ),
        (
            lambda: torchalgo.lint(nn.ReLU(), 3),
            "TA1201",
            ("example_inputs is int", "expected a tensor", "torch.rand"),
        ),
        (lambda: torchalgo.lint(nn.ReLU(), None), "TA1201", ("example_inputs is NoneType",)),
        (
            lambda: torchalgo.lint(nn.ReLU(), SMALL, example_kwargs=[1]),  # type: ignore[arg-type]
            "TA1206",
            ("example_kwargs is list", "expected a dict"),
        ),
        (
            lambda: torchalgo.lint(Fails(), SMALL),
            "TA1110",
            ("the model raises", "[1, 16, 56, 56]", "no such image", "give inputs"),
        ),
    ],
)
def test_wrong_arguments_say_what_was_given_expected_and_how_to_fix_it(
    call: Any, code: str, texts: tuple[str, ...]
) -> None:
    with pytest.raises(torchalgo.Error) as error:
        call()
    assert error.value.code == code
    assert all(text in str(error.value) for text in texts)


def test_an_optimized_model_is_refused() -> None:
    fast = torchalgo.optimize(nn.ReLU().eval(), torch.rand(1, 2))
    with pytest.raises(torchalgo.Error, match="TA1701 lint: the model is already optimized"):
        torchalgo.lint(fast, torch.rand(1, 2))


# ---- the command ---------------------------------------------------------------------------------

FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.conv, self.is_faulty = nn.Conv2d(3, 16, 3), is_faulty

    def forward(self, x):
        x = self.conv(x)
        return (x.clone() if self.is_faulty else x).relu()

def faulty():
    return Net(True)

def clean():
    return Net(False)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lint_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield


@pytest.mark.usefixtures("factories")
def test_the_command_ends_with_0_1_or_2(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--input", "1x3x256x256")  # a copy of 4 MB is a fault, also on a busy machine
    assert main(["check", "lint_factories:clean", *shape]) == 0
    assert "no fault found" in capsys.readouterr().out
    assert main(["check", "lint_factories:faulty", *shape, "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    (finding,) = out["findings"]
    assert (finding["kind"], finding["source"]) == ("hidden-copy", "lint_factories.py:12")
    assert finding["bytes"] == 16 * 254 * 254 * 4
    assert main(["check", "lint_factories:missing", *shape]) == 2
    assert "has no function 'missing'" in capsys.readouterr().err
    assert main(["check", "no_such.pt", *shape]) == 2
    assert main(["check", "lint_factories:clean", "--input", "1x4x64x64"]) == 2
    assert "TA1110 lint: the model raises" in capsys.readouterr().err


# ---- parts, and the page -------------------------------------------------------------------------


def test_layouts_are_told_from_strides_and_dimensions_of_size_1_do_not_count() -> None:
    x = torch.rand(2, 3, 4, 5)
    last = x.contiguous(memory_format=torch.channels_last)
    for tensor, layout in (
        (x, "contiguous"),
        (last, "channels_last"),
        (x.transpose(2, 3), "transposed"),
        (x[:, :, 1:], "strided"),
        (x[:1, :1].expand(2, 3, 4, 5), "broadcast"),
        (last[:, :, :1, :1].contiguous(), "contiguous"),
        (torch.rand(()), "contiguous"),
    ):
        assert layout_of(tensor.shape, tensor.stride()) == layout


def test_files_of_torch_and_python_are_not_the_users() -> None:
    assert not is_user_file(torch.__file__)
    assert not is_user_file(json.__file__)
    assert not is_user_file(torchalgo.__file__)
    assert not is_user_file("<string>")
    assert is_user_file(__file__)


def test_the_page_explains_each_kind_of_finding() -> None:
    fixes = {*copies.FIXES, *groups.FIXES, *repeats.FIXES}
    headings = re.findall(r"^### `([a-z0-9-]+)`$", PAGE.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(fixes)
    assert {case.kind for case in CASES} <= fixes
