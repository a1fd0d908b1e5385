# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchalgo
from nets import Net, fp64_error, make_net, run_plan
from torchalgo.overrides import matches_name


def primitives(optimized: torchalgo.Optimized) -> dict[str, str]:
    return {n.name: n.primitive for n in optimized.plan.nodes if n.problem.startswith("fwd_")}


def test_a_name_matches_itself_its_variants_and_its_knobs() -> None:
    assert matches_name("cpu.direct", "cpu.direct")
    assert matches_name("cpu.direct.t14", "cpu.direct")
    assert matches_name("cpu.direct{X=1}", "cpu.direct")
    assert not matches_name("cpu.direct2", "cpu.direct")
    assert not matches_name("cpu.direct", "cpu.direct.t14")


def test_an_overridden_layer_runs_the_named_primitive(
    net: Net, x: torch.Tensor, count_ops: Callable[[nn.Module, torch.Tensor], dict[str, int]]
) -> None:
    fast = run_plan(net, x, overrides={"*": "cpu.im2col_gemm"})
    assert set(primitives(fast).values()) == {"cpu.im2col_gemm"}
    assert sum(count_ops(fast, x).values()) >= len(primitives(fast))
    assert fp64_error(net, fast, x) <= 1e-5


def test_a_star_crosses_dots_and_later_entries_win(net: Net, x: torch.Tensor) -> None:
    overrides = {"layer1*": "cpu.im2col_gemm", "layer1.*.conv2": "aten.conv"}
    chosen = primitives(torchalgo.optimize(net, x, overrides=overrides, progress=False))
    for name in ("layer1.0.conv1", "layer1.1.conv1"):
        assert chosen[name] == "cpu.im2col_gemm"
    for name in ("layer1.0.conv2", "layer1.1.conv2"):
        assert chosen[name] == "aten.conv"


def test_a_name_without_variant_allows_its_variants(net: Net, x: torch.Tensor) -> None:
    overrides = {"layer1.*.conv2": "cpu.winograd_f2x2_3x3"}
    chosen = primitives(torchalgo.optimize(net, x, overrides=overrides, progress=False))
    assert matches_name(chosen["layer1.0.conv2"], "cpu.winograd_f2x2_3x3")


def test_an_override_that_matches_nothing_lists_the_convolutions(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"'layer9.\*' matches no layer.*layer1.0.conv1"):
        torchalgo.optimize(net, x, overrides={"layer9.*": "aten.conv"}, progress=False)


def test_a_primitive_that_refuses_says_why_and_what_is_supported(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(
        torchalgo.Error, match=r"stem.0 \(fwd_f32.*refuses: .+ Supported: .*aten.conv"
    ):
        torchalgo.optimize(net, x, overrides={"stem.0": "cpu.winograd_f4x4_3x3"}, progress=False)


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ({"stem.0": "cpu.magic"}, r"there is no such primitive. Supported: .*aten.conv"),
        ({"stem.0": "cpu.winogard_f4x4_3x3"}, r"did you mean .*'cpu.winograd_f4x4_3x3'"),
        ({"*": "direct"}, r"did you mean .*'cpu.direct'"),
        ({"layer1.0.conv3": "aten.conv"}, r"matches no layer; did you mean 'layer1.0.conv"),
        ({"layer1.0": "aten.conv"}, r"write 'layer1.0.\*' for those inside: layer1.0.conv1, "),
        ({"zzz": "aten.conv"}, r"matches no layer; the convolutions are: 0, 1, .* and \d+ more"),
    ],
)
def test_a_misspelled_override_gets_a_suggestion_of_at_most_300_characters(
    overrides: dict[str, str], hint: str
) -> None:
    model: nn.Module = make_net()
    if "zzz" in overrides:
        model = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(90))).eval()
    with pytest.raises(torchalgo.Error, match=hint) as error:
        torchalgo.optimize(model, torch.rand(1, 3, 40, 40), overrides=overrides, progress=False)
    assert len(str(error.value)) <= 300


def test_a_misspelled_option_or_flag_gets_a_suggestion(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"objective='latncy', .*did you mean 'latency'"):
        torchalgo.optimize(net, x, objective="latncy", progress=False)
    with pytest.raises(torchalgo.Error, match=r"mode='predct', .*did you mean 'predict'"):
        torchalgo.optimize(net, x, mode="predct", progress=False)
    with pytest.raises(torchalgo.Error, match="did you mean 'h100'"):
        torchalgo.candidates(net, x, device="h10")
    for name in ("conv_fwd_alg", "conv_forward_algo"):
        with pytest.raises(AttributeError, match="did you mean 'conv_fwd_algo'"):
            setattr(torchalgo.backends.cudnn, name, 1)


def test_an_override_that_is_no_pair_of_names_is_an_error(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"expected {glob of layer names"):
        torchalgo.optimize(net, x, overrides={"stem.0": 3}, progress=False)  # type: ignore[dict-item]


def test_a_plan_in_memory_is_solved_again_with_overrides(net: Net, x: torch.Tensor) -> None:
    tuned = torchalgo.optimize(net, x, progress=False)
    plan = tuned.plan.with_overrides({"layer1.*": "aten.conv"})
    chosen = {n.name: n.primitive for n in plan.nodes}
    assert {chosen[f"layer1.{i}.conv{j}"] for i in (0, 1) for j in (1, 2)} == {"aten.conv"}
    assert plan.cost_ticks >= tuned.plan.cost_ticks
    fast = torchalgo.optimize(net, x, plan=plan, progress=False)
    assert fp64_error(net, fast, x) <= 1e-5
    with pytest.raises(torchalgo.Error, match="matches no layer"):
        plan.with_overrides({"layer9": "aten.conv"})
