# SPDX-License-Identifier: BSD-3-Clause
"""Tests of .pt2 files: what they hold, what opens them, and what they return."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import torchalgo
from support.nets import arguments, make_net
from torchalgo._run.exported import plan_object


def optimized(model: nn.Module, *inputs: Any, **options: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(model.eval(), inputs, **arguments(run_untimed=True, **options))


def exported(fast: torchalgo.Optimized, path: Path) -> nn.Module:
    """Saves a module and loads it with PyTorch."""
    fast.save(path)
    module: nn.Module = torch.export.load(path).module()
    return module


@torch.no_grad()
def test_torch_export_opens_it_and_the_results_are_equal(tmp_path: Path) -> None:
    net, x = make_net(), torch.rand(1, 3, 24, 24)
    fast = optimized(net, x)
    assert fast.runs == "plan"
    module = exported(fast, tmp_path / "net.pt2")
    for _ in range(2):
        y = torch.rand_like(x)
        assert torch.equal(module(y), fast(y))
    assert torchalgo.load_plan(tmp_path / "net.pt2") == fast.plan
    program = torch.export.load(tmp_path / "net.pt2")
    calls = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert calls.count("torchalgo.run_plan.default") == 1
    assert not program.state_dict  # the object has the weights


@torch.no_grad()
def test_a_process_without_the_model_opens_it(tmp_path: Path) -> None:
    x = torch.rand(1, 3, 24, 24)
    fast = optimized(make_net(), x)
    fast.save(tmp_path / "net.pt2")
    torch.save((x, fast(x)), tmp_path / "call.pt")
    source = (
        "import torch, torchalgo, sys; x, y = torch.load(sys.argv[2]);"
        "module = torch.export.load(sys.argv[1]).module(); torch.set_grad_enabled(False);"
        "assert torch.equal(module(x), y)"
    )
    subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "net.pt2"), str(tmp_path / "call.pt")],
        check=True,
    )


@torch.no_grad()
def test_the_file_is_as_large_as_the_frozen_model(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 512, 3))
    fast = optimized(net, torch.rand(1, 3, 64, 64))
    fast.save(tmp_path / "net.pt2")
    fast.save(tmp_path / "net.pt", portable=True)
    sizes = [(tmp_path / name).stat().st_size for name in ("net.pt2", "net.pt")]
    assert sizes[0] <= 1.02 * sizes[1]


class Several(nn.Module):
    """Takes a list and an option, and returns a dict of results in other containers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, images: list[Tensor], *, scale: float = 1.0) -> dict[str, Any]:
        a, b = self.conv(images[0]), self.conv(images[1]) * scale
        return {"sum": a + b, "parts": (a, [b])}


@torch.no_grad()
def test_calls_have_the_form_of_the_model(tmp_path: Path) -> None:
    model = Several().eval()
    images = [torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)]
    fast = torchalgo.optimize(
        model, (images,), example_kwargs={"scale": 0.5}, **arguments(run_untimed=True)
    )
    module = exported(fast, tmp_path / "several.pt2")
    given, expected = module(images, scale=0.5), fast(images, scale=0.5)
    assert list(given) == ["sum", "parts"]
    assert torch.equal(given["sum"], expected["sum"])
    assert torch.equal(given["parts"][1][0], expected["parts"][1][0])


class Shared(nn.Module):
    """Returns an input, a weight, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = self.conv(x)
        return x, self.conv.bias, y, y[:, :4]


@torch.no_grad()
def test_results_are_never_memory_of_the_plan(tmp_path: Path) -> None:
    x = torch.rand(1, 3, 12, 12)
    model = Shared().eval()
    fast = optimized(model, x)
    module = exported(fast, tmp_path / "shared.pt2")
    results = module(x)
    for result, expected in zip(results, model(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    kept = x.clone()
    for result in results:
        result.fill_(7.0)
    assert torch.equal(x, kept)
    torch.testing.assert_close(module(x)[1], model.conv.bias.detach())


@torch.no_grad()
def test_a_baseline_is_saved_too(tmp_path: Path) -> None:
    fast = optimized(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), torch.rand(2, 4))
    assert fast.runs == "baseline"
    x = torch.rand(2, 4)
    assert torch.equal(exported(fast, tmp_path / "linear.pt2")(x), fast(x))


class Pairs(nn.Module):
    """Unpacks a tuple whose place in a list is not known when the graph is made."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        pairs = [(self.conv(x), x)]
        a, b = pairs[x.dim() - 4]
        return a + b.mean()


@torch.no_grad()
def test_an_op_with_any_number_of_results_needs_the_interpreter() -> None:
    x = torch.rand(1, 3, 12, 12)
    model = torch.jit.script(Pairs().eval())
    fast = optimized(model, x)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.conv(x)
        return self.conv(-x)


@torch.no_grad()
def test_what_cannot_be_one_op_says_so(tmp_path: Path) -> None:
    fast = optimized(torch.jit.script(Branches().eval()), torch.rand(1, 3, 12, 12))
    with pytest.raises(torchalgo.Error, match=r"TA2003 save.*\.pt file"):
        fast.save(tmp_path / "branches.pt2")
    assert not (tmp_path / "branches.pt2").exists()
    with pytest.raises(torchalgo.Error, match="TA1001 save: portable=True"):
        fast.save(tmp_path / "branches.pt2", portable=True)


class InPlace(nn.Module):
    """Splits a tensor, writes one part in place, and returns a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        a, b = self.conv(x + y).chunk(2, dim=1)
        return [a.add_(1.0).flatten(1), torch.cat([b, y], 1), b.mean((2, 3)) * float(x.shape[3])]


IMAGE = torch.rand(1, 3, 24, 24)


@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (make_net(), (IMAGE,), {}),
        (Several(), ([IMAGE, IMAGE + 1],), {"scale": 0.5}),
        (Shared(), (IMAGE,), {}),
        (InPlace(), (IMAGE, IMAGE - 1), {}),
        (nn.Sequential(nn.Linear(24, 5), nn.ReLU()), (IMAGE,), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@torch.no_grad()
def test_load_opens_it_as_a_pt_file(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tmp_path: Path
) -> None:
    fast = torchalgo.optimize(
        model.eval(), args, example_kwargs=kwargs, **arguments(run_untimed=True)
    )
    fast.save(tmp_path / "a.pt2")
    expected, _ = tree_flatten(fast(*args, **kwargs))
    again = torchalgo.load(tmp_path / "a.pt2")
    again.save(tmp_path / "b.pt")
    again.save(tmp_path / "b.pt2")
    third = [torchalgo.load(tmp_path / name) for name in ("b.pt", "b.pt2")]
    for module in [again, *third, copy.deepcopy(again), pickle.loads(pickle.dumps(again))]:
        assert (module.plan, module.runs) == (fast.plan, fast.runs)
        assert module.weight_bytes == fast.weight_bytes
        assert inspect.signature(module.forward) == inspect.signature(again.forward)
        results, _ = tree_flatten(module(*args, **kwargs))
        assert all(map(torch.equal, results, expected)) and len(results) == len(expected)
    if fast.runs == "plan":
        assert str(again.schedule()) == str(fast.schedule())
        assert again._first_runner is not None or model.__class__ is Several


@torch.no_grad()
def test_load_opens_all_plans_of_a_pt2_file(tmp_path: Path) -> None:
    shapes = [torch.rand(1, 3, 24, 24), torch.rand(2, 3, 32, 32)]
    fast = torchalgo.optimize(
        make_net().eval(), shapes[0], shapes=[x.shape for x in shapes],
        **arguments(run_untimed=True),
    )  # fmt: skip
    fast.save(tmp_path / "net.pt2")
    again = torchalgo.load(tmp_path / "net.pt2")
    assert again.plans == fast.plans
    for x in shapes:
        assert torch.equal(again(x), fast(x))
    assert torch.equal(again(x=shapes[1]), fast(shapes[1]))


@torch.no_grad()
def test_optimize_refuses_an_optimized_program(tmp_path: Path) -> None:
    optimized(make_net(), IMAGE).save(tmp_path / "net.pt2")
    with pytest.raises(torchalgo.Error, match=r"TA1102 optimize: .* already optimized"):
        torchalgo.optimize(torch.export.load(tmp_path / "net.pt2"))


@torch.no_grad()
def test_load_refuses_other_files_of_torch_export(tmp_path: Path) -> None:
    net, x = make_net().eval(), torch.rand(1, 3, 24, 24)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "foreign.pt2")
    with pytest.raises(torchalgo.Error, match=r"TA2006 load: .*foreign\.pt2 holds no"):
        torchalgo.load(tmp_path / "foreign.pt2")
    fast = optimized(net, x)
    fast.save(tmp_path / "net.pt2")
    expected = fast(x)
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for name in parts:
        with zipfile.ZipFile(tmp_path / "less.pt2", "w") as archive:
            for other, data in parts.items():
                if other != name:
                    archive.writestr(other, data)
        with contextlib.suppress(torchalgo.Error):  # some parts are not needed
            assert torch.equal(torchalgo.load(tmp_path / "less.pt2")(x), expected)


@pytest.mark.filterwarnings("ignore:torchalgo. there is no plan for inputs")
@torch.no_grad()
def test_several_plans_are_one_object() -> None:
    net = make_net().eval()
    shapes = [torch.rand(1, 3, 24, 24), torch.rand(2, 3, 32, 32)]
    fast = torchalgo.optimize(
        net, shapes[0], shapes=[x.shape for x in shapes], **arguments(run_untimed=True)
    )
    plan = plan_object(fast._results)
    for x in (*shapes, torch.rand(1, 3, 25, 24)):
        (y,) = torch.ops.torchalgo.run_plan([x], plan)
        assert torch.equal(y, fast(x))
        (meta,) = torch.ops.torchalgo.run_plan([x.to("meta")], plan)
        assert meta.shape == y.shape and meta.dtype == y.dtype
    with pytest.raises(RuntimeError, match="TA4303"):
        torch.ops.torchalgo.run_plan([x, x], plan)


@torch.no_grad()
def test_autocast_does_not_reach_into_a_plan(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 10 * 10, 5))
    x = torch.rand(1, 3, 12, 12)
    fast = optimized(net, x)
    module = exported(fast, tmp_path / "net.pt2")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = module(x)
    assert torch.equal(result, fast(x))


@torch.no_grad()
def test_strides_on_the_meta_device_are_those_of_the_cpu() -> None:
    x = torch.rand(1, 3, 24, 24)
    plan = plan_object(optimized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish()), x)._results)
    for given in (
        x,
        x.to(memory_format=torch.channels_last),
        torch.rand(1, 24, 3, 24).transpose(1, 2),
    ):
        (real,) = torch.ops.torchalgo.run_plan([given], plan)
        (meta,) = torch.ops.torchalgo.run_plan([given.to("meta")], plan)
        assert real.stride() == meta.stride() and real.shape == meta.shape
