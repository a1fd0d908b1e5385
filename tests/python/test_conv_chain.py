# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions that one call runs together: the inverted residual of a MobileNet."""

from __future__ import annotations

import io
import json
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import fp64_error, run_plan
from torchalgo import _C
from torchalgo._cli.demo import randomize_batch_norms
from torchalgo.verify.check_claims import appended

OVERRIDES = {"expand": "cpu.conv_chain"}


class InvertedResidual(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.expand = nn.Conv2d(24, 144, 1)
        self.depthwise = nn.Conv2d(144, 144, 3, stride, 1, groups=144)
        self.project = nn.Conv2d(144, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu6(self.expand(x))
        y = nn.functional.hardswish(self.depthwise(y))
        y = self.project(y)
        return x + y if self.stride == 1 else y


@pytest.fixture(params=[1, 2])
def block(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return InvertedResidual(request.param).eval()


X = (1, 24, 20, 22)


def longest_chain(plan: torchalgo.Plan) -> str:
    return max((n.problem for n in plan.nodes if n.primitive == "cpu.conv_chain"), key=len)


def test_an_override_runs_the_block_in_one_call(block: nn.Module, tmp_path: Path) -> None:
    x = torch.rand(X)
    fast = run_plan(block, x, overrides=OVERRIDES)
    assert fp64_error(block, fast, x) <= 1e-5
    plan = fast.plan
    assert longest_chain(plan).startswith("chain_f32_n1c24h20w22_k144r1s1_")
    assert [n for n in plan.nodes if n.absorbed_by == "expand"]
    assert "3 convolutions" in str(plan)
    plan.save(tmp_path / "net.plan.json")
    again = torchalgo.optimize(
        block,
        x,
        plan=torchalgo.load_plan(tmp_path / "net.plan.json"),
        settings=torchalgo.Settings(progress=False),
    )
    assert torch.equal(again(x), fast(x))


def test_a_saved_block_keeps_its_weights_and_takes_other_sizes(block: nn.Module) -> None:
    fast = torchalgo.optimize(
        block, torch.rand(X), overrides=OVERRIDES, settings=torchalgo.Settings(progress=False)
    )
    file = io.BytesIO()
    torch.jit.save(fast.scripted, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for sizes in (X, (2, 24, 9, 31)):
        x = torch.rand(sizes)
        with torch.no_grad():
            assert torch.equal(loaded(x), fast(x))
            assert torch.allclose(loaded(x), block(x), rtol=1e-4, atol=1e-5)


def test_the_independent_checker_knows_chains(block: nn.Module) -> None:
    fast = torchalgo.optimize(block, torch.rand(X), settings=torchalgo.Settings(progress=False))
    proof = json.loads(fast.plan.with_proof().to_json())
    assert any(problem.startswith("chain_") for problem in proof["proof"]["costs"])
    torchalgo.check_plan(proof)


class SqueezeExcite(nn.Module):
    """The end of an inverted residual with factors per channel; and a batch norm before a 1x1
    convolution, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(40, 10, 1)
        self.factors = nn.Conv2d(10, 40, 1)
        self.project = nn.Conv2d(40, 24, 1)
        self.norm = nn.BatchNorm2d(24)
        self.grow = nn.Conv2d(24, 48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        y = torch.sigmoid(self.factors(y))
        y = self.project(x * y) + x[:, :24]
        return self.grow(nn.functional.relu(self.norm(y)))


@pytest.mark.parametrize("sizes", [(1, 40, 20, 22), (3, 40, 7, 5)])
def test_factors_per_channel_are_made_in_one_call(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = SqueezeExcite().eval()
    x = torch.rand(sizes)
    fast = torchalgo.optimize(
        model,
        x,
        overrides={"mean*": "cpu.squeeze_excite"},
        settings=torchalgo.Settings(progress=False),
    )
    (chain,) = [n for n in fast.plan.nodes if n.primitive == "cpu.squeeze_excite"]
    assert chain.problem.count("_k") == 2 and chain.problem.endswith("+sigmoid")
    assert fp64_error(model, fast, x) <= 1e-5
    torchalgo.check_plan(fast.plan.with_proof())
    other = torch.rand(2, 40, 9, 11)
    assert fp64_error(model, fast, other) <= 1e-5


@pytest.mark.parametrize("sizes", [(1, 40, 20, 22), (3, 40, 7, 5)])
def test_a_scale_runs_in_the_call_of_the_convolution_behind_it(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = SqueezeExcite().eval()
    randomize_batch_norms(model)
    x = torch.rand(sizes)
    fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(progress=False))
    heads = {n.name for n in fast.plan.nodes if re.search("mul|scaleshift", n.problem)}
    overrides = dict.fromkeys(heads, "cpu.scaled_conv1x1")
    fast = torchalgo.optimize(
        model, x, overrides=overrides, settings=torchalgo.Settings(progress=False)
    )
    chains = [n.problem for n in fast.plan.nodes if n.primitive == "cpu.scaled_conv1x1"]
    assert sorted(c.split("_")[3].partition("+")[0] for c in chains) == ["mul", "scaleshift"]
    assert fp64_error(model, fast, x) <= 1e-5
    torchalgo.check_plan(fast.plan.with_proof())
    other = torch.rand(2, 40, 9, 11)
    assert fp64_error(model, fast, other) <= 1e-5


def test_what_others_read_is_not_inside_a_chain() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand = nn.Conv2d(8, 48, 1)
            self.depthwise = nn.Conv2d(48, 48, 3, 1, 1, groups=48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.expand(x)
            return self.depthwise(y) * y.mean((2, 3), keepdim=True)

    model = Read().eval()
    with pytest.raises(torchalgo.Error, match="expand"):
        torchalgo.optimize(
            model,
            torch.rand(1, 8, 9, 9),
            overrides=OVERRIDES,
            settings=torchalgo.Settings(progress=False),
        )


@pytest.mark.parametrize(
    ("before", "conv", "chain"),
    [
        ("fwd_f32_n1c8h9w9_k48{one}+bias", "fwd_f32_n1c48h9w9_k48{three}48", "chain"),
        ("fwd_f32_n1c48h9w9_k48{three}48+relu", "fwd_f32_n1c48h9w9_k8{one}", "chain"),
        ("fwd_f32_n1c8h9w9_k48{one}", "fwd_f32_n1c48h9w9_k8{one}", "not offered"),
        ("fwd_f32_n1c48h9w9_k48{three}48", "fwd_f32_n1c48h9w9_k48{three}48", "not offered"),
        ("fwd_f32_n1c8h9w9_k48{one}+add", "fwd_f32_n1c48h9w9_k48{three}48", "not offered"),
        ("fwd_f32_n1c8h9w9_k48{one}", "fwd_f32_n1c48h9w9_k96{three}48", "not offered"),
        ("fwd_f32_n1c8h9w9_k1{one}", "fwd_f32_n1c1h9w9_k1{three}1", "not offered"),
        ("fwd_tf32_n1c8h9w9_k48{one}", "fwd_f32_n1c48h9w9_k48{three}48", "no problem"),
        ("relu_f32_n1c48h9w9", "fwd_f32_n1c48h9w9_k48{three}48", "no problem"),
        ("scaleshift_f32_n1c48h9w9", "fwd_f32_n1c48h9w9_k8{one}", "chain"),
        ("scaleshift_f32_n1c48h9w9+relu", "fwd_f32_n1c48h9w9_k8{one}+bias", "chain"),
        ("mul_f32_n1c48h9w9_channelwise", "fwd_f32_n1c48h9w9_k8{one}", "chain"),
        ("mul_f32_n1c48h9w9", "fwd_f32_n1c48h9w9_k8{one}", "no problem"),
        ("scaleshift_f32_n1c48h9w9", "fwd_f32_n1c48h9w9_k48{three}48", "not offered"),
        ("avgpool_f32_n1c48h9w9_p1q1", "fwd_f32_n1c48h1w1_k8{one}", "chain"),
        ("avgpool_f32_n1c48h9w9_p2q1", "fwd_f32_n1c48h2w1_k8{one}", "no problem"),
        ("chain_f32_n1c48h9w9_avgpool_k8{one}", "fwd_f32_n1c8h1w1_k8{one}+bias", "chain"),
        ("chain_f32_n1c48h9w9_avgpool_k8{one}_k8{one}", "fwd_f32_n1c8h1w1_k8{one}", "not offered"),
        ("chain_f32_n1c48h9w9_mul_k8{one}", "fwd_f32_n1c8h9w9_k8{three}8", "not offered"),
    ],
)
def test_the_checker_spells_chains_as_the_planner_does(before: str, conv: str, chain: str) -> None:
    words = {"one": "r1s1_st1x1_pad0x0_dil1x1_g1", "three": "r3s3_st1x1_pad1x1_dil1x1_g"}
    before, conv = before.format(**words), conv.format(**words)
    spelled = appended(before, conv)
    assert bool(spelled) == (chain != "no problem")
    if spelled and (chain == "chain" or is_problem(spelled)):  # it is what both compute
        assert _C.parse_problem(spelled) == spelled
        assert len(_C.layers_of(spelled)) == len(_C.layers_of(before)) + 1


def is_problem(text: str) -> bool:
    try:
        _C.parse_problem(text)
    except torchalgo.Error:
        return False
    return True


def test_a_chain_has_three_convolutions_at_most() -> None:
    layers: list[tuple[str, nn.Module]] = [
        ("expand", nn.Conv2d(8, 24, 1)),
        ("d1", nn.Conv2d(24, 24, 3, padding=1, groups=24)),
        ("p1", nn.Conv2d(24, 24, 1)),
        ("d2", nn.Conv2d(24, 24, 3, padding=1, groups=24)),
    ]
    model = nn.Sequential(OrderedDict(layers)).eval()
    x = torch.rand(1, 8, 12, 12)
    fast = torchalgo.optimize(
        model, x, overrides=OVERRIDES, settings=torchalgo.Settings(progress=False)
    )
    assert len(_C.layers_of(longest_chain(fast.plan))) <= 3
    assert fp64_error(model, fast, x) <= 1e-5
