# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, fp64_error, make_net, run_plan
from torchalgo._C import matches_name
from torchalgo._ir.problems import direction_of


def primitives(optimized: torchalgo.Optimized) -> dict[str, str]:
    return {n.name: n.primitive for n in optimized.plan.nodes if n.problem.startswith("fwd_")}


def test_a_name_matches_itself_its_variants_and_its_knobs() -> None:
    assert matches_name("cpu.direct", "cpu.direct")
    assert matches_name("cpu.direct.t14", "cpu.direct")
    assert matches_name("cpu.direct{X=1}", "cpu.direct")
    assert matches_name("cudnn_legacy.fwd.6@fma", "cudnn_legacy.fwd.6")
    assert not matches_name("cudnn_legacy.fwd.6", "cudnn_legacy.fwd.6@fma")
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
    chosen = primitives(
        torchalgo.optimize(net, x, overrides=overrides, settings=torchalgo.Settings(progress=False))
    )
    for name in ("layer1.0.conv1", "layer1.1.conv1"):
        assert chosen[name] == "cpu.im2col_gemm"
    for name in ("layer1.0.conv2", "layer1.1.conv2"):
        assert chosen[name] == "aten.conv"


def test_a_name_without_variant_allows_its_variants(net: Net, x: torch.Tensor) -> None:
    overrides = {"layer1.*.conv2": "cpu.winograd_f2x2_3x3"}
    chosen = primitives(
        torchalgo.optimize(net, x, overrides=overrides, settings=torchalgo.Settings(progress=False))
    )
    assert matches_name(chosen["layer1.0.conv2"], "cpu.winograd_f2x2_3x3")


def test_an_override_of_what_pytorch_runs_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d(2), nn.Conv2d(4, 4, 1)).eval()
    with pytest.raises(torchalgo.Error, match="matches no planned layer: PyTorch runs 1, which"):
        torchalgo.optimize(
            model, torch.rand(1, 3, 9, 9), overrides={"1": "aten.pool"}, budget_s=2.0
        )


def test_an_override_that_matches_nothing_lists_the_convolutions(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"'layer9.\*' matches no layer.*layer1.0.conv1"):
        torchalgo.optimize(
            net, x, overrides={"layer9.*": "aten.conv"}, settings=torchalgo.Settings(progress=False)
        )


def test_a_primitive_that_refuses_says_why_and_what_is_supported(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(
        torchalgo.Error, match=r"stem.0 \(fwd_f32.*refuses: .+ Supported: .*aten.conv"
    ):
        torchalgo.optimize(
            net,
            x,
            overrides={"stem.0": "cpu.winograd_f4x4_3x3"},
            settings=torchalgo.Settings(progress=False),
        )


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
        torchalgo.optimize(
            model,
            torch.rand(1, 3, 40, 40),
            overrides=overrides,
            settings=torchalgo.Settings(progress=False),
        )
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cpu.direct", "refuses: works in nChw16c, which a tensor of rank 3 cannot have"),
        ("cudnn9.conv", "does not run on this kind of device"),
    ],
)
def test_an_override_of_an_algorithm_that_cannot_run_here_says_why(name: str, reason: str) -> None:
    model = nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.ReLU()).eval()
    with pytest.raises(torchalgo.Error, match=f"'{name}' {reason}.* Supported: .*aten.conv"):
        torchalgo.optimize(
            model,
            torch.rand(1, 16, 20),
            overrides={"*": name},
            settings=torchalgo.Settings(progress=False),
        )


def test_a_misspelled_option_or_flag_gets_a_suggestion(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"objective='latncy', .*did you mean 'latency'"):
        torchalgo.optimize(net, x, objective="latncy", settings=torchalgo.Settings(progress=False))
    with pytest.raises(torchalgo.Error, match=r"mode='predct', .*did you mean 'predict'"):
        torchalgo.optimize(net, x, settings=torchalgo.Settings(mode="predct", progress=False))
    with pytest.raises(torchalgo.Error, match="did you mean 'h100'"):
        torchalgo.candidates(net, x, device="h10")
    for name in ("conv_fwd_alg", "conv_forward_algo"):
        with pytest.raises(AttributeError, match="did you mean 'conv_fwd_algo'"):
            setattr(torchalgo.backends.cudnn, name, 1)


def test_an_override_that_is_no_pair_of_names_is_an_error(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"expected {glob of layer names"):
        torchalgo.optimize(
            net, x, overrides={"stem.0": 3}, settings=torchalgo.Settings(progress=False)
        )  # type: ignore[dict-item]


def test_a_plan_in_memory_is_solved_again_with_overrides(net: Net, x: torch.Tensor) -> None:
    tuned = torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=False))
    plan = tuned.plan.with_overrides({"layer1.*": "aten.conv"})
    chosen = {n.name: n.primitive for n in plan.nodes}
    assert {chosen[f"layer1.{i}.conv{j}"] for i in (0, 1) for j in (1, 2)} == {"aten.conv"}
    assert plan.cost_ticks >= tuned.plan.cost_ticks
    fast = torchalgo.optimize(net, x, plan=plan, settings=torchalgo.Settings(progress=False))
    assert fp64_error(net, fast, x) <= 1e-5
    with pytest.raises(torchalgo.Error, match="matches no layer"):
        plan.with_overrides({"layer9": "aten.conv"})


# ---- every primitive that candidates lists -------------------------------------------------------

DIRECTIONS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_filter": "backward_filter"}
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(32, 16, 3, padding=1), (1, 32, 12, 12)),
    "1x1": (lambda: nn.Conv2d(32, 32, 1), (1, 32, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 9, 9)),
    "grouped": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=8, bias=False), (1, 32, 9, 9)),
    "5x5": (lambda: nn.Conv2d(16, 16, 5, padding=2), (1, 16, 12, 12)),
    "stem": (lambda: nn.Conv2d(3, 16, 7, padding=3, stride=2), (1, 3, 20, 20)),
    "1x7": (lambda: nn.Conv2d(16, 16, (1, 7), padding=(0, 3)), (1, 16, 9, 16)),
    "large": (lambda: nn.Conv2d(4, 4, 9, padding=4), (2, 4, 40, 40)),
    "1d": (lambda: nn.Conv1d(8, 8, 3, padding=1), (1, 8, 20)),
    "3d": (lambda: nn.Conv3d(4, 8, 3, padding=1), (1, 4, 5, 7, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 8, 3, padding=1), (1, 8, 9, 9)),
}


def train(model: nn.Module, x: torch.Tensor) -> set[tuple[str, str]]:
    """Runs a model forward and backward; returns each direction's problem word and primitive."""
    with torchalgo.record_runs() as record:
        model(x.clone().requires_grad_()).sum().backward()
    return {(direction_of(run.problem), run.primitive) for run in record.runs}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_each_candidate_runs_where_its_name_is_given(kind: str) -> None:
    make, sizes = CONVOLUTIONS[kind]
    x = torch.randn(sizes)
    count = 0
    for argument in DIRECTIONS.values():
        conv = make()
        word = next(w for w, a in DIRECTIONS.items() if a == argument)
        for layer in torchalgo.candidates(conv, x, directions=word):
            own = direction_of(layer.problem)
            for name in {o.primitive for o in layer.offered}:
                model = nn.Sequential(make())
                torchalgo.set_algorithms(model, {"*": {argument: name}})
                assert (own, name) in train(model, x), "set_algorithms"
                plain = nn.Sequential(make())
                with torchalgo.enable(), torchalgo.algorithms(**{DIRECTIONS[own]: name}):
                    assert (own, name) in train(plain, x), "algorithms"
                with torchalgo.enable({layer.problem: name}):
                    assert (own, name) in train(plain, x), "enable"
                count += 1
    assert count >= 4


class Kinds(nn.Sequential):
    """One layer of each kind, each followed by what can be fused to it."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 7, padding=3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Conv2d(32, 32, 1),
            nn.Hardswish(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.Conv2d(32, 32, 3, padding=1, groups=8),
            nn.Conv2d(32, 16, 5, padding=2),
            nn.Conv2d(16, 16, (1, 7), padding=(0, 3)),
            nn.MaxPool2d(2),
        )


@pytest.mark.slow
def test_each_candidate_runs_when_optimize_is_told_to_and_from_a_file(tmp_path: Path) -> None:
    net, x = Kinds().eval(), torch.randn(1, 3, 24, 24)
    offered = {
        layer.name: sorted({o.primitive for o in layer.offered})
        for layer in torchalgo.candidates(net, x)
    }
    for i in range(max(map(len, offered.values()))):
        wanted = {layer: names[i] for layer, names in offered.items() if i < len(names)}
        fast = run_plan(net, x, overrides=wanted)
        chosen = {node.name: node.primitive for node in fast.plan.nodes}
        assert all(matches_name(chosen[layer], name) for layer, name in wanted.items()), wanted
        fast.save(tmp_path / "net.pt")
        loaded = torchalgo.load(tmp_path / "net.pt")
        torchalgo.reset_fallbacks()
        loaded(x)
        assert torchalgo.fallbacks() == {}
        text = str(loaded._results[0].scripted.graph)
        for layer, name in wanted.items():
            if not name.startswith("aten."):
                assert f'"{chosen[layer]}"' in text, (layer, name)
