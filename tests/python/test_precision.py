# SPDX-License-Identifier: BSD-3-Clause
"""Models with layers in coarser types: what allows them, files and other ways to run them.

Every machine has linear layers with weights of 16 bits. On CPUs that multiply in bf16,
layers in bf16 are added.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import arguments, run_plan
from torchalgo import _C, dynamo
from torchalgo._base.compare_outputs import output_error
from torchalgo._ir.overrides import names_type
from torchalgo._ir.plan import Plan
from torchalgo._ir.plan.text import coarse_type

HAS_BF16 = bool(_C.cpu_device().bf16_isa)
# Each names its type, so it allows it. The second linear layer is named without a type.
COARSE = {"head": "cpu.linear.wbf16"} | ({"middle": "cpu.bf16_conv"} if HAS_BF16 else {})
ALL = {**COARSE, "last": "cpu.linear"}
QUICK: dict[str, Any] = {"budget_s": 4.0, "cost_db": False, "run_untimed": True}


class Small(nn.Module):
    """Three convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 32, 3, padding=1)
        self.top = nn.Conv2d(32, 16, 1)
        self.head = nn.Linear(16, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.middle(torch.relu(self.stem(x))))
        x = torch.relu(self.top(x)).mean((2, 3))
        return self.last(torch.relu(self.head(x)))  # type: ignore[no-any-return]


def small() -> Small:
    torch.manual_seed(4)
    return Small().eval()


def image(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(5))


X = image(1, 3, 16, 16)


def coarse_layers(plan: Plan) -> dict[str, str]:
    """Returns the primitives of the layers in coarser types, by name."""
    return {node.name: node.primitive for node in plan.nodes if coarse_type(node)}


@pytest.fixture(scope="module")
def mixed() -> torchalgo.Optimized:
    """A module with layers in coarser types that runs its plan."""
    fast = run_plan(small(), X, overrides=ALL, max_error=1e-2, budget_s=4.0, cost_db=False)
    assert COARSE.items() <= coarse_layers(fast.plan).items()
    return fast


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# ---- doors ---------------------------------------------------------------------------------------


def test_an_override_that_names_a_type_allows_it_for_its_layer_alone() -> None:
    net = small()
    fast = run_plan(net, X, overrides=ALL, budget_s=4.0, cost_db=False)
    assert fast.runs == "plan"
    assert coarse_layers(fast.plan) == COARSE
    assert 1e-5 < output_error(fast(X), net(X)) < 1e-2
    assert fast.plan.predicted_error is not None and fast.plan.predicted_error > 1e-5
    for bound in (1e-3, 1e-2):  # nothing is looser than what max_error says
        fast = torchalgo.optimize(net, X, overrides=ALL, **arguments(max_error=bound, **QUICK))
        assert fast.plan.rel_error is not None and fast.plan.rel_error <= bound


def test_without_a_type_in_its_name_an_override_keeps_the_type() -> None:
    names = {"head": "cpu.linear", "middle": "aten.prepacked"}
    plan = torchalgo.optimize(small(), X, overrides=names, **arguments(**QUICK)).plan
    assert not coarse_layers(plan) and plan.max_error is None
    with pytest.raises(torchalgo.Error, match=r"'cpu\.linear\.wbf16' is not among"):
        plan.with_overrides({"head": "cpu.linear.wbf16"})


def test_each_coarse_candidate_has_a_type_in_its_name_or_a_twin_in_the_models_type() -> None:
    """Otherwise, an override could not tell both apart."""
    problems = (
        "fwd_f32_n1c64h28w28_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
        "fwd_f32_n1c32h28w28_k32r3s3_st2x2_pad1x1_dil1x1_g32+bias",
        "linear_f32_n1c64_k10",
    )
    coarse, own = set(), set()
    for problem in problems:
        for p in _C.offers_of(problem, coarse_types=True)[0]:
            (coarse if _C.rounds_coarsely(problem, p) else own).add(p.name)
    assert {"cpu.linear.wbf16", "cpu.linear.wf16"} <= coarse
    assert all(names_type(name) for name in coarse - own)
    assert not any(map(names_type, own))


# ---- ways to run it ------------------------------------------------------------------------------


def test_files_and_copies_give_equal_bits(mixed: torchalgo.Optimized, tmp_path: Path) -> None:
    mixed.save(tmp_path / "net.pt")
    torchalgo.load(tmp_path / "net.pt").save(tmp_path / "again.pt")
    mixed.save(tmp_path / "net.pt2")
    others: list[Any] = [
        copy.deepcopy(mixed),
        pickle.loads(pickle.dumps(mixed)),
        torchalgo.load(tmp_path / "net.pt"),
        torchalgo.load(tmp_path / "again.pt"),
        torch.jit.load(tmp_path / "net.pt"),
    ]
    exported: Any = torch.export.load(tmp_path / "net.pt2").module()  # its sizes are fixed
    assert torch.equal(exported(X), mixed(X))
    for x in (X, image(2, 3, 24, 20)):
        want = mixed(x)
        assert 1e-5 < output_error(want, small()(x)) < 1e-2
        assert all(torch.equal(other(x), want) for other in others)
    for name in ("net.pt", "again.pt", "net.pt2"):
        assert torchalgo.load_plan(tmp_path / name) == mixed.plan


def test_a_portable_file_has_the_models_own_type(
    mixed: torchalgo.Optimized, tmp_path: Path
) -> None:
    mixed.save(tmp_path / "net.pt", portable=True)
    assert output_error(torch.jit.load(tmp_path / "net.pt")(X), small()(X)) <= 1e-6


def test_weights_in_files_have_the_models_own_type(
    mixed: torchalgo.Optimized, tmp_path: Path
) -> None:
    """They are rounded when the file is loaded. So another machine may choose another type."""
    mixed.save(tmp_path / "net.pt")
    scripted = torch.jit.load(tmp_path / "net.pt")
    held = [*scripted.parameters(), *scripted.buffers()]
    weights = {name: w for name, w in small().state_dict().items() if name.endswith("weight")}
    own_file = (tmp_path / "net.pt").read_bytes()
    assert all(t.dtype != torch.bfloat16 for t in held)
    for name, weight in weights.items():
        if weight.dim() == 2:  # convolutions may have other orders
            assert weight.numpy().tobytes() in own_file, name


def test_another_process_gives_equal_bits(mixed: torchalgo.Optimized, tmp_path: Path) -> None:
    mixed.save(tmp_path / "net.pt")
    mixed.save(tmp_path / "net.pt2")
    torch.save((X, mixed(X)), tmp_path / "call.pt")
    source = (
        "import torch, torchalgo, sys; x, y = torch.load(sys.argv[3]);"
        "torch.set_grad_enabled(False); torch.set_num_threads(int(sys.argv[4]));"
        "assert torch.equal(torchalgo.load(sys.argv[1])(x), y);"
        "assert torch.equal(torch.export.load(sys.argv[2]).module()(x), y)"
    )
    files = [tmp_path / name for name in ("net.pt", "net.pt2", "call.pt")]
    threads = str(torch.get_num_threads())
    subprocess.run([sys.executable, "-c", source, *files, threads], check=True)


@pytest.mark.slow
def test_a_program_in_cpp_gives_equal_bits(
    mixed: torchalgo.Optimized, run_files: Path, tmp_path: Path
) -> None:
    mixed.save(tmp_path / "net.pt")
    torch.save(((X,), {}), tmp_path / "inputs.pt")
    files = [str(tmp_path / name) for name in ("net.pt", "inputs.pt", "results.pt")]
    (tmp_path / "jobs").write_text(" ".join(files))
    subprocess.run([run_files, tmp_path / "jobs"], check=True)
    (result,) = torch.load(tmp_path / "results.pt", weights_only=False)
    assert torch.equal(result, mixed(X))


def test_each_of_several_shapes_has_a_plan_with_the_types(tmp_path: Path) -> None:
    net, shapes = small(), [(1, 3, 16, 16), (2, 3, 24, 20)]
    options = arguments(max_error=1e-2, **{**QUICK, "budget_s": 8.0})
    tuned = torchalgo.optimize(net, shapes=shapes, overrides=ALL, **options)
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    fast = torchalgo.optimize(net, shapes=shapes, plan=plans, **arguments())
    fast.save(tmp_path / "net.pt")
    loaded = torchalgo.load(tmp_path / "net.pt")
    for sizes, plan in zip(shapes, loaded.plans.values(), strict=True):
        assert COARSE.items() <= coarse_layers(plan).items()
        assert plan.max_error == pytest.approx(1e-2, rel=1e-3)
        x = image(*sizes)
        assert 1e-5 < output_error(fast(x), net(x)) < 1e-2
        assert torch.equal(loaded(x), fast(x))


def test_a_compiled_model_takes_max_error_and_overrides(mixed: torchalgo.Optimized) -> None:
    def compiled(**options: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(small(), backend="torchalgo", options=options)

    tuned = compiled(max_error=1e-2, overrides=ALL, **QUICK)
    assert output_error(tuned(X), small()(X)) < 1e-2
    (plan,) = dynamo.report(tuned).graphs[0].plans.values()
    assert COARSE.items() <= coarse_layers(plan).items()
    assert plan.max_error == pytest.approx(1e-2, rel=1e-3)
    applied = compiled(plan=mixed.plan)
    assert torch.equal(applied(X), mixed(X))
    torch._dynamo.reset()
