# SPDX-License-Identifier: BSD-3-Clause
"""Mistakes of users: each error says what was given and what was expected, and its advice works.

A row has the mistake, the code of docs/errors.md, the words that the message must have, and what a
user does who follows the message. This must work.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
import torchalgo_cli
from support.nets import arguments
from torchalgo import pbqp

Do = Callable[["Things"], Any]
PROBLEM = "fwd_f32_n1c3h8w8_k8r3s3_st1x1_pad0x0_dil1x1_g1+bias"


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


def images(batch: int = 1, side: int = 8) -> torch.Tensor:
    return torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


def quick(model: Any = None, inputs: Any = None, **options: Any) -> Any:
    """Calls optimize for the small model, and without the last comparison with PyTorch."""
    given = (images(),) if inputs is None else inputs
    model = small() if model is None else model
    return torchalgo.optimize(model, given, **arguments(**{"run_untimed": True, **options}))


@dataclass
class Things:
    """Holds an optimized model and its files, which the mistakes need."""

    fast: torchalgo.Optimized
    folder: Path

    @property
    def module_file(self) -> Path:
        return self.folder / "net.pt"

    @property
    def plan_file(self) -> Path:
        return self.folder / "net.plan.json"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def command(self, *words: object) -> None:
        """Runs `torchalgo` in this process. Raises Error with what it prints if it fails."""
        told = io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            status = torchalgo_cli.main([str(word) for word in words])
        if "torchalgo: TA" in told.getvalue():
            assert status > 0
            raise torchalgo.Error(told.getvalue().split("torchalgo: ")[-1])

    def with_plan(self, model: Any = None, inputs: Any = None, **options: Any) -> Any:
        """Calls optimize with the plan of the small model, so nothing is measured."""
        return quick(model, inputs, plan=self.fast.plan, run_untimed=False, **options)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Things:
    folder = tmp_path_factory.mktemp("misuse")
    tuned = quick()
    fast = torchalgo.optimize(small(), (images(),), plan=tuned.plan, **arguments())
    fast.save(folder / "net.pt")
    fast.plan.save(folder / "net.plan.json")
    return Things(fast, folder)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + self.conv(y)


class Noisy(nn.Module):
    """Random unless `fixed`."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.conv, self.fixed = nn.Conv2d(3, 4, 3), fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y if self.fixed else y + torch.rand_like(y)


class Odd(nn.Module):
    """Returns a set, which no saved module can, or a tuple."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv2d(3, 4, 3), kind

    def forward(self, x: torch.Tensor) -> Any:
        return self.kind([self.conv(x)])


def with_nan(model: nn.Sequential) -> nn.Sequential:
    model[0].weight.data[0, 0, 0, 0] = float("nan")
    return model


def on_meta(model: nn.Module) -> nn.Module:
    return model.to("meta")


def under_autocast(do: Callable[[], Any]) -> Any:
    with torch.autocast("cpu", torch.float16):
        return do()


def changed_weight(things: Things, refreshed: bool) -> torch.Tensor:
    model = small()
    fast = things.with_plan(model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    if refreshed:
        fast.refresh()
    return fast(images())


def compiled(**options: Any) -> torch.Tensor:
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            return torch.compile(small(), backend="torchalgo", **options)(images())
    except torch._dynamo.exc.BackendCompilerFailed as problem:  # PyTorch wraps every error
        raise problem.inner_exception from None


def second_gradient(twice: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    fast = torchalgo.optimize_training(
        model, (images(2),), budget_s=2.0, **arguments(run_untimed=True)
    )
    loss = fast(images(2)).square().sum()
    torch.autograd.grad(loss, list(fast.parameters()), create_graph=twice)


def enabled_twice(proper: bool) -> None:
    if proper:
        torchalgo.enable()
    torchalgo.disable()


def strict_call(strict: bool) -> torch.Tensor:
    before = torchalgo.set_strict(strict)
    try:
        weight = torch.rand(4, 3, 5, 5)
        return torchalgo.conv2d(images(), weight, forward="cpu.winograd_f2x2_3x3")
    finally:
        torchalgo.set_strict(before)


@dataclass
class Row:
    what: str
    code: str
    mistake: Do
    words: tuple[str, ...]
    advice: Do


ROWS = [
    # ---- optimize: the model -----------------------------------------------------------------
    Row(
        "a number as the model", "TA1101",
        lambda t: torchalgo.optimize(1, images()),  # type: ignore[arg-type]
        ("model is int", "expected torch.nn.Module"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a class as the model", "TA1101",
        lambda t: torchalgo.optimize(TwoInputs, images()),  # type: ignore[arg-type]
        ("TwoInputs", "expected", "instance"),
        lambda t: quick(TwoInputs().eval(), (images(), images())),
    ),
    Row(
        "a state_dict as the model", "TA1101",
        lambda t: torchalgo.optimize(small().state_dict(), images()),  # type: ignore[arg-type]
        ("a dict", "expected torch.nn.Module", "load_state_dict"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a path as the model", "TA1101",
        lambda t: torchalgo.optimize("net.onnx", images()),  # type: ignore[arg-type]
        ("'net.onnx'", "load the model first", "torchalgo.load_onnx"),
        lambda t: t.with_plan(),
    ),
    Row(
        "the module of an exported program", "TA1103",
        lambda t: quick(torch.export.export(small(), (images(),)).module()),
        ("train mode", "ExportedProgram itself"),
        lambda t: quick(torch.export.export(small(), (images(),))),
    ),
    Row(
        "an optimized model again", "TA1102",
        lambda t: torchalgo.optimize(t.fast, images()),
        ("already optimized", "pass the original"),
        lambda t: t.with_plan(),
    ),
    Row(
        "an optimized part", "TA1102",
        lambda t: torchalgo.optimize(nn.Sequential(t.fast, nn.ReLU()).eval(), images()),
        ("submodule '0'", "pass the original model"),
        lambda t: quick(nn.Sequential(small(), nn.ReLU()).eval()),
    ),
    Row(
        "a model in train mode", "TA1103",
        lambda t: torchalgo.optimize(small().train(), images()),
        ("train mode", "model.eval()"),
        lambda t: t.with_plan(small().train().eval()),
    ),
    Row(
        "a lazy module without sizes", "TA1104",
        lambda t: quick(nn.Sequential(nn.LazyConv2d(4, 3)).eval()),
        ("0.weight", "no sizes yet", "call the model once"),
        lambda t: (m := nn.Sequential(nn.LazyConv2d(4, 3)).eval(), m(images()), quick(m)),
    ),
    Row(
        "weights without data", "TA1105",
        lambda t: torchalgo.optimize(on_meta(small()), images()),
        ("0.weight", "is on meta", "expected a CPU or a CUDA"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a weight with NaN", "TA1107",
        lambda t: torchalgo.optimize(with_nan(small()), images()),
        ("0.weight", "1 of", "checkpoint"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a random model", "TA1111",
        lambda t: quick(Noisy(False).eval()),
        ("two runs", "differ", "relative L2", "deterministic"),
        lambda t: quick(Noisy(True).eval()),
    ),
    Row(
        "a result that is a set", "TA1207",
        lambda t: quick(Odd(set).eval()),
        ("result", "set", "tuple"),
        lambda t: quick(Odd(tuple).eval()),
    ),
    Row(
        "autocast around optimize", "TA1118",
        lambda t: under_autocast(t.with_plan),
        ("torch.autocast is on", "outside"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a model that fails for the inputs", "TA1110",
        lambda t: quick(inputs=(torch.rand(1, 4, 8, 8),)),
        ("model raises", "expected input", "4"),
        lambda t: t.with_plan(),
    ),
    # ---- optimize: the inputs ----------------------------------------------------------------
    Row(
        "sizes instead of a tensor", "TA1201",
        lambda t: torchalgo.optimize(small(), (1, 3, 8, 8)),
        ("the sizes (1, 3, 8, 8)", "expected tensors", "torch.rand(1, 3, 8, 8)"),
        lambda t: t.with_plan(),
    ),
    Row(
        "text as the inputs", "TA1201",
        lambda t: torchalgo.optimize(small(), "images"),
        ("example_inputs is str", "expected a tensor"),
        lambda t: t.with_plan(),
    ),
    Row(
        "an example input with NaN", "TA1202",
        lambda t: t.with_plan(inputs=(images() * float("nan"),)),
        ("NaN", "expected"),
        lambda t: t.with_plan(),
    ),
    Row(
        "an input on another device", "TA1203",
        lambda t: t.with_plan(inputs=(images().to("meta"),)),
        ("input 0 is on meta", "weights are on cpu", ".to("),
        lambda t: t.with_plan(),
    ),
    Row(
        "an input of another dtype", "TA1204",
        lambda t: t.with_plan(inputs=(images().double(),)),
        ("torch.float64", "torch.float32"),
        lambda t: t.with_plan(inputs=(images().double().to(torch.float32),)),
    ),
    Row(
        "too few arguments", "TA1205",
        lambda t: quick(TwoInputs().eval(), (images(),)),
        ("missing", "'y'", "expected forward(x"),
        lambda t: quick(TwoInputs().eval(), (images(), images())),
    ),
    Row(
        "too many arguments", "TA1205",
        lambda t: quick(inputs=(images(), images())),
        ("too many", "expected forward("),
        lambda t: t.with_plan(),
    ),
    Row(
        "keyword arguments as a list", "TA1206",
        lambda t: quick(TwoInputs().eval(), (images(),), example_kwargs=["y"]),
        ("example_kwargs is list", "expected a dict"),
        lambda t: quick(TwoInputs().eval(), (images(),), example_kwargs={"y": images()}),
    ),
    Row(
        "one shape instead of a list of shapes", "TA1301",
        lambda t: quick(shapes=(1, 3, 8, 8)),
        ("shapes is (1, 3, 8, 8)", "expected", "[(1, 3"),
        lambda t: quick(shapes=[(1, 3, 8, 8), (2, 3, 8, 8)]),
    ),
    Row(
        "a shape twice", "TA1302",
        lambda t: quick(shapes=[(1, 3, 8, 8), (1, 3, 8, 8)]),
        ("shapes[0] and shapes[1]", "both"),
        lambda t: quick(shapes=[(1, 3, 8, 8), (1, 3, 12, 12)]),
    ),
    # ---- optimize: other arguments -----------------------------------------------------------
    Row(
        "an unknown mode", "TA1001",
        lambda t: quick(mode="fast"),
        ("mode='fast'", "expected one of"),
        lambda t: quick(mode="tune"),
    ),
    Row(
        "a mode with a typing error", "TA1001",
        lambda t: quick(mode="tunee"),
        ("mode='tunee'", "did you mean", "tune"),
        lambda t: quick(mode="tune"),
    ),
    Row(
        "an unknown objective", "TA1001",
        lambda t: quick(objective="power"),
        ("objective='power'", "expected one of", "latency"),
        lambda t: quick(objective="latency"),
    ),
    Row(
        "a budget below zero", "TA1001",
        lambda t: quick(budget_s=-1),
        ("budget_s=-1", "expected a number of seconds above 0"),
        lambda t: quick(budget_s=5),
    ),
    Row(
        "an allowed error of zero", "TA1001",
        lambda t: quick(max_error=0),
        ("max_error=0", "expected a number between 0 and 1"),
        lambda t: quick(max_error=1e-4),
    ),
    Row(
        "a limit of memory as text", "TA1001",
        lambda t: quick(weight_limit_bytes="1GB"),
        ("weight_limit_bytes='1GB'", "expected a number of bytes"),
        lambda t: quick(weight_limit_bytes=2**30),
    ),
    Row(
        "a plan and overrides", "TA1002",
        lambda t: t.with_plan(overrides={"0": "aten.conv"}),
        ("both plan and overrides", "expected one of them"),
        lambda t: t.with_plan(),
    ),
    Row(
        "the path of a plan as the plan", "TA1004",
        lambda t: quick(plan=str(t.plan_file)),
        ("plan is str", "torchalgo.load_plan"),
        lambda t: quick(plan=torchalgo.load_plan(t.plan_file), run_untimed=False),
    ),
    Row(
        "overrides that are a list", "TA4201",
        lambda t: quick(overrides=["aten.conv"]),
        ("overrides: got list", "expected {glob of layer names"),
        lambda t: quick(overrides={"0": "aten.conv"}),
    ),
    Row(
        "overrides of a layer that is not there", "TA4202",
        lambda t: quick(overrides={"1x": "aten.conv"}),
        ("'1x' matches no layer", "0"),
        lambda t: quick(overrides={"0": "aten.conv"}),
    ),
    Row(
        "overrides with a name that is not there", "TA4004",
        lambda t: quick(overrides={"0": "aten.convv"}),
        ("aten.convv", "no such primitive", "did you mean", "aten.conv"),
        lambda t: quick(overrides={"0": "aten.conv"}),
    ),
    Row(
        "overrides that the layer refuses", "TA4203",
        lambda t: quick(overrides={"2": "cpu.winograd_f2x2_3x3"}),
        ("refuses", "Supported"),
        lambda t: quick(overrides={"2": "aten.conv"}),
    ),
    Row(
        "a plan of another model", "TA2201",
        lambda t: t.with_plan(nn.Sequential(nn.Conv2d(3, 9, 3)).eval()),
        ("made for another model",),
        lambda t: t.with_plan(),
    ),
    # ---- the optimized module ----------------------------------------------------------------
    Row(
        "a call with another dtype", "TA1204",
        lambda t: t.fast(images().double()),
        ("torch.float64", "torch.float32"),
        lambda t: t.fast(images().double().to(torch.float32)),
    ),
    Row(
        "a call without the argument", "TA1205",
        lambda t: t.fast(),
        ("missing", "expected forward("),
        lambda t: t.fast(images()),
    ),
    Row(
        "half() of an optimized module", "TA1401",
        lambda t: copy.copy(t.fast).half(),
        ("optimized module", "original"),
        lambda t: t.with_plan(),
    ),
    Row(
        "a weight that was changed", "TA1404",
        lambda t: changed_weight(t, refreshed=False),
        ("0.weight", "was changed after", "refresh()"),
        lambda t: changed_weight(t, refreshed=True),
    ),
    Row(
        "torch.jit.trace of an optimized module", "TA1402",
        lambda t: torch.jit.trace(t.fast, images()),
        ("optimized module", ".scripted"),
        lambda t: t.fast.scripted,
    ),
    Row(
        "saving into a folder", "TA2002",
        lambda t: t.fast.save(t.folder),
        ("is a folder", "expected a file such as model.pt"),
        lambda t: t.fast.save(t.folder / "model.pt"),
    ),
    Row(
        "saving into a folder that is not there", "TA2001",
        lambda t: t.fast.save(t.folder / "none" / "model.pt"),
        ("cannot write", "none"),
        lambda t: ((t.folder / "some").mkdir(), t.fast.save(t.folder / "some" / "model.pt")),
    ),
    Row(
        "saving under the suffix of another format", "TA2003",
        lambda t: t.fast.save(t.folder / "model.onnx"),
        ("model.onnx", "another format", ".pt for TorchScript", ".pt2"),
        lambda t: t.fast.save(t.folder / "model.pt2"),
    ),
    Row(
        "a report of an unknown kind", "TA2010",
        lambda t: t.fast.report(t.folder / "report.pdf"),
        ("'.pdf'", "expected one of", ".html"),
        lambda t: t.fast.report(t.folder / "report.html"),
    ),
    # ---- files -------------------------------------------------------------------------------
    Row(
        "a module that is not there", "TA2004",
        lambda t: torchalgo.load(t.folder / "other.pt"),
        ("no file", "other.pt", "check the path"),
        lambda t: torchalgo.load(t.module_file),
    ),
    Row(
        "a text file as a module", "TA2005",
        lambda t: torchalgo.load(t.write("text.pt", "a text")),
        ("text.pt", "TorchScript"),
        lambda t: torchalgo.load(t.module_file),
    ),
    Row(
        "a truncated module", "TA2005",
        lambda t: (
            (t.folder / "half.pt").write_bytes(t.module_file.read_bytes()[:5000]),
            torchalgo.load(t.folder / "half.pt"),
        ),
        ("half.pt", "truncated"),
        lambda t: torchalgo.load(t.module_file),
    ),
    Row(
        "a plan that is not there", "TA2004",
        lambda t: torchalgo.load_plan(t.folder / "other.json"),
        ("cannot read", "other.json"),
        lambda t: torchalgo.load_plan(t.plan_file),
    ),
    Row(
        "a plan that is no JSON", "TA2101",
        lambda t: torchalgo.load_plan(t.write("text.json", "a text")),
        ("text.json", "truncated"),
        lambda t: torchalgo.load_plan(t.plan_file),
    ),
    Row(
        "a check of a plan without proof", "TA2403",
        lambda t: torchalgo.check_plan(torchalgo.load_plan(t.plan_file)),
        ("no proof", "with_proof"),
        lambda t: torchalgo.check_plan(quick().plan.with_proof()),
    ),
    Row(
        "an ONNX file that is not there", "TA2004",
        lambda t: torchalgo.load_onnx(t.folder / "net.onnx"),
        ("cannot read", "net.onnx", "check the path"),
        lambda t: None,  # tests/python/test_onnx.py reads files that are there
    ),
    # ---- algorithms by hand ------------------------------------------------------------------
    Row(
        "a problem with a typing error", "TA4001",
        lambda t: torchalgo.candidates("fwd_f32_n1_c3"),
        ("'fwd_f32_n1_c3' is no problem", "expected 'c'", "example: fwd_f32_n1c64"),
        lambda t: torchalgo.candidates(PROBLEM),
    ),
    Row(
        "candidates of a number", "TA4008",
        lambda t: torchalgo.candidates(1),  # type: ignore[arg-type]
        ("target is int", "expected a module or the text"),
        lambda t: torchalgo.candidates(PROBLEM),
    ),
    Row(
        "a profile without the input", "TA4008",
        lambda t: torchalgo.profile(small()),
        ("without its input", "profile(module, torch.rand"),
        lambda t: torchalgo.profile(small(), images(), budget_s=2.0),
    ),
    Row(
        "an algorithm that is not there", "TA4004",
        lambda t: torchalgo.nn.Conv2d(3, 4, 3, forward="cpu.winograd"),
        ("cpu.winograd", "no primitive"),
        lambda t: torchalgo.nn.Conv2d(3, 4, 3, forward="cpu.winograd_f2x2_3x3")(images()),
    ),
    Row(
        "an algorithm of another direction", "TA4103",
        lambda t: torchalgo.nn.Conv2d(3, 4, 3, forward="CUDNN_CONVOLUTION_BWD_DATA_ALGO_1"),
        ("CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "for fwd", "for bwd_data"),
        lambda t: torchalgo.nn.Conv2d(3, 4, 3, forward="aten.conv")(images()),
    ),
    Row(
        "padding by an unknown word", "TA4401",
        lambda t: torchalgo.conv2d(images(), torch.rand(4, 3, 3, 3), padding="full"),
        ("padding='full'", "'same' or 'valid'"),
        lambda t: torchalgo.conv2d(images(), torch.rand(4, 3, 3, 3), padding="same"),
    ),
    Row(
        "from_torch of another module", "TA4402",
        lambda t: torchalgo.nn.Conv2d.from_torch(nn.Linear(3, 4)),
        ("got Linear", "expected exactly"),
        lambda t: torchalgo.nn.Conv2d.from_torch(nn.Conv2d(3, 4, 3))(images()),
    ),
    Row(
        "algorithms for modules that are not there", "TA4403",
        lambda t: torchalgo.set_algorithms(torchalgo.convert(small()), {"conv": "aten.conv"}),
        ("'conv' matches no",),
        lambda t: torchalgo.set_algorithms(torchalgo.convert(small()), {"0": "aten.conv"}),
    ),
    Row(
        "convert of a number", "TA1101",
        lambda t: torchalgo.convert(1),  # type: ignore[type-var]
        ("model is int", "expected torch.nn.Module"),
        lambda t: torchalgo.convert(small())(images()),
    ),
    Row(
        "disable before enable", "TA4404",
        lambda t: enabled_twice(proper=False),
        ("not enabled", "call enable() first"),
        lambda t: enabled_twice(proper=True),
    ),
    Row(
        "an algorithm that cannot run, in strict mode", "TA4307",
        lambda t: strict_call(strict=True),
        ("cpu.winograd_f2x2_3x3", "set_strict(False)"),
        lambda t: strict_call(strict=False),
    ),
    # ---- training and torch.compile ----------------------------------------------------------
    Row(
        "training in eval mode", "TA1602",
        lambda t: torchalgo.optimize_training(small(), (images(),)),
        ("eval mode", "model.train()"),
        lambda t: second_gradient(twice=False),
    ),
    Row(
        "a gradient of a gradient", "TA2702",
        lambda t: second_gradient(twice=True),
        ("gradient of a gradient", "create_graph=True"),
        lambda t: second_gradient(twice=False),
    ),
    Row(
        "an unknown option of torch.compile", "TA1001",
        lambda t: compiled(options={"budget": 1}),
        ("options['budget'] is unknown", "expected one of", "budget_s"),
        lambda t: compiled(options={"budget_s": 2.0}),
    ),
    # ---- the command line --------------------------------------------------------------------
    Row(
        "a model file that is not there", "TA7101",
        lambda t: t.command("optimize", t.folder / "none.pt", "--input", "1x3x8x8"),
        ("cannot read", "none.pt"),
        lambda t: t.command("explain", t.plan_file),
    ),
    Row(
        "a model without its input", "TA7201",
        lambda t: t.command("explain", "torchvision.models:resnet18"),
        ("needs its input", "--input"),
        lambda t: t.command("explain", t.plan_file),
    ),
    Row(
        "a factory that is not there", "TA7104",
        lambda t: t.command("check", "support.nets:other", "--input", "1x3x8x8"),
        ("support.nets", "no function", "other"),
        lambda t: t.command("check", "support.nets:net_factory", "--input", "1x3x16x16"),
    ),
    # ---- pbqp --------------------------------------------------------------------------------
    Row(
        "a PBQP with a cost that is no integer", "TA8001",
        lambda t: pbqp.solve(pbqp.Problem([[1.5, 2]])),  # type: ignore[list-item]
        ("1.5", "expected an integer"),
        lambda t: pbqp.solve(pbqp.Problem([[1, 2]])),
    ),
    Row(
        "a PBQP whose edge has no node", "TA8001",
        lambda t: pbqp.solve(pbqp.Problem([[1, 2]], [(0, 1, [[0, 1], [1, 0]])])),
        ("node that does not exist", "expected"),
        lambda t: pbqp.solve(pbqp.Problem([[1, 2], [0, 3]], [(0, 1, [[0, 1], [1, 0]])])),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_error_names_the_cause_and_its_advice_works(row: Row, things: Things) -> None:
    with pytest.raises(torchalgo.Error) as found:
        row.mistake(things)
    error, text = found.value, str(found.value)
    assert error.code == row.code, text
    assert [word for word in row.words if word not in text] == [], text
    row.advice(things)


def test_there_are_sixty_different_mistakes() -> None:
    assert len({row.what for row in ROWS}) == len(ROWS) >= 60
