# SPDX-License-Identifier: BSD-3-Clause
"""convert and set_algorithms: convolutions made ours, by name, with everything else kept."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import torchalgo
from support.losses import losses
from support.nets import Net, make_net


class Own(nn.Conv2d):
    """A user's convolution, whose forward is its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input * 2)


def test_a_converted_resnet_trains_like_the_original() -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    eager = models.resnet18(num_classes=10).train()
    ours = torchalgo.convert(copy.deepcopy(eager))
    found = torchalgo.set_algorithms(
        ours,
        {
            "layer1.*": {"forward": "cpu.direct", "backward_filter": "aten.conv"},
            "layer2.0.conv2": {"forward": "cpu.winograd_f4x4_3x3", "backward_data": "aten.conv"},
        },
    )
    assert len(found) == 5
    with torchalgo.record_runs() as ran:
        got = losses(ours, 2)
    assert {r.primitive.split(".t")[0] for r in ran} >= {
        "aten.conv",
        "cpu.direct",
        "cpu.winograd_f4x4_3x3",
    }
    assert got == pytest.approx(losses(eager, 2), rel=1e-3)


def test_the_copy_shares_parameters_and_leaves_the_model_alone(net: Net) -> None:
    ours = torchalgo.convert(net)
    assert type(net.stem[0]) is nn.Conv2d
    assert type(ours.stem[0]) is torchalgo.nn.Conv2d
    for (name, theirs), (own_name, own) in zip(
        net.state_dict(keep_vars=True).items(),
        ours.state_dict(keep_vars=True).items(),
        strict=True,
    ):
        assert name == own_name and own is theirs
    x = torch.rand(1, 3, 20, 20)
    assert torch.equal(ours(x), net(x))
    assert not any(m.training for m in ours.modules())


def test_in_place_conversion_keeps_every_module_where_it_was(net: Net) -> None:
    before = dict(net.named_modules())
    calls: list[str] = []
    net.stem[0].register_forward_hook(lambda *_: calls.append("hook"))
    assert torchalgo.convert(net, inplace=True) is net
    assert all(before[name] is module for name, module in net.named_modules())
    assert not any(type(m) is nn.Conv2d for m in net.modules())
    net(torch.rand(1, 3, 20, 20))
    assert calls == ["hook"]
    again = torchalgo.convert(net, inplace=True)
    assert again is net


def test_converting_twice_keeps_the_choices(net: Net) -> None:
    ours = torchalgo.convert(net)
    torchalgo.set_algorithms(ours, {"stem.0": "cpu.direct"})
    assert torchalgo.convert(ours).stem[0].forward_algorithm == "cpu.direct"


def test_every_kind_of_convolution_is_converted() -> None:
    names = [f"Conv{t}{n}d" for t in ("", "Transpose") for n in (1, 2, 3)]
    model = nn.ModuleList([getattr(nn, name)(2, 2, 3) for name in names])
    ours = torchalgo.convert(model)
    assert [type(m) for m in ours] == [getattr(torchalgo.nn, name) for name in names]


def test_shared_modules_stay_shared_and_plain_references_follow() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 3, 3, padding=1)
            self.b = self.a
            self.hidden = [self.a]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](self.b(self.a(x)))

    model = Model()
    ours: Any = torchalgo.convert(model)
    assert ours.a is ours.b and ours.hidden[0] is ours.a
    assert type(ours.hidden[0]) is torchalgo.nn.Conv2d
    assert model.hidden[0] is model.a and type(model.a) is nn.Conv2d
    x = torch.rand(1, 3, 8, 8)
    assert torch.equal(ours(x), model(x))
    (first, second) = torchalgo.set_algorithms(ours, {"b": "cpu.direct"}), ours.a.forward_algorithm
    assert [layer.name for layer in first] == ["b"] and second == "cpu.direct"


def test_parametrizations_and_weight_norm_go_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)),
    ).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.append(nn.utils.weight_norm(nn.Conv2d(4, 4, 1)))
    x = torch.rand(1, 3, 8, 8)
    want = model(x)
    ours = torchalgo.convert(model)
    assert all(isinstance(m, torchalgo.nn.Conv2d) for m in ours)
    assert parametrize.is_parametrized(ours[0], "weight")
    assert list(ours.state_dict()) == list(model.state_dict())
    assert torch.equal(ours(x), want)
    torchalgo.set_algorithms(ours, {"*": "aten.conv"})
    assert torch.allclose(ours(x), want, atol=1e-5)
    ours(x).sum().backward()
    assert ours[0].parametrizations.weight.original1.grad is not None
    parametrize.remove_parametrizations(ours[0], "weight")
    assert type(ours[0]) is torchalgo.nn.Conv2d
    assert torch.allclose(ours(x), want, atol=1e-5)


def test_subclasses_are_left_alone_with_a_warning() -> None:
    model = nn.Sequential(Own(3, 3, 3), nn.Conv2d(3, 3, 3))
    with pytest.warns(UserWarning, match=r"left alone: 0 \(is a test_convert\.Own\)"):
        ours = torchalgo.convert(model)
    assert type(ours[0]) is Own and type(ours[1]) is torchalgo.nn.Conv2d
    with pytest.raises(
        torchalgo.Error, match="matches only modules whose algorithms cannot be set: 0"
    ):
        torchalgo.set_algorithms(ours, {"0": "cpu.direct"})


def test_lazy_convolutions_wait_for_their_first_run() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3))
    with pytest.warns(UserWarning, match="is lazy; run the model once first"):
        torchalgo.convert(model, inplace=True)
    model(torch.rand(1, 3, 8, 8))
    assert type(torchalgo.convert(model)[0]) is torchalgo.nn.Conv2d


def test_a_model_that_cannot_be_copied_says_so() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3)
            self.stream = (i for i in range(3))

    with pytest.raises(torchalgo.Error, match="pass inplace=True"):
        torchalgo.convert(Locked())
    torchalgo.convert(Locked(), inplace=True)


def test_later_globs_win_and_missing_directions_stay(net: Net) -> None:
    found = torchalgo.set_algorithms(
        net,
        {
            "layer*": {"forward": "cpu.direct", "backward_data": 1},
            "layer1.*.conv2": {"forward": "cpu.winograd_f4x4_3x3"},
            "layer1.0.*": {"backward_filter": "FFT"},
        },
    )
    by_name = {layer.name: layer for layer in found}
    assert by_name["layer1.0.conv2"][1:] == ("cpu.winograd_f4x4_3x3", 1, 2)
    assert by_name["layer1.1.conv1"][1:] == ("cpu.direct", 1, None)
    assert "stem.0" not in by_name
    assert type(net.stem[0]) is nn.Conv2d  # not matched: as it was
    (freed,) = torchalgo.set_algorithms(net, {"layer1.0.conv2": None})
    assert freed[1:] == (None, None, None)


def test_what_matches_nothing_names_what_is_near(net: Net) -> None:
    for glob, text in [
        ("layer1.0.con1", "did you mean 'layer1.0.conv1'"),
        ("layer1", r"write 'layer1\.\*' for those inside: layer1\.0\.conv1"),
        ("zzz", r"the convolutions are: stem\.0"),
    ]:
        with pytest.raises(torchalgo.Error, match=text):
            torchalgo.set_algorithms(net, {glob: "cpu.direct"})
    with pytest.raises(torchalgo.Error, match="the model has none"):
        torchalgo.set_algorithms(nn.ReLU(), {"*": 1})


def test_a_wrong_entry_changes_nothing(net: Net) -> None:
    for choices, text in [
        (
            {"forwards": 1, "forward": 2},
            "direction 'forwards', expected forward, .* did you mean 'forward'",
        ),
        ({"backward_data": "cudnn9.conv.e2"}, "expected an algorithm for bwd_data"),
        ("cpu.drect", "did you mean 'cpu.direct'"),
    ]:
        with pytest.raises(torchalgo.Error, match=text):
            torchalgo.set_algorithms(net, {"stem.0": "cpu.direct", "layer1.*": choices})
    assert type(net.stem[0]) is nn.Conv2d


def test_a_converted_model_can_be_scripted_and_saved(tmp_path: Any) -> None:
    net = make_net()
    torchalgo.set_algorithms(net, {"layer1.*": "cpu.direct"})
    x = torch.rand(1, 3, 20, 20)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(tmp_path / "net.pt")
        loaded = torch.jit.load(tmp_path / "net.pt")
        with torchalgo.record_runs() as ran:
            assert torch.allclose(loaded(x), net(x), atol=1e-5)
    assert sum(r.count for r in ran if r.primitive.startswith("cpu.direct")) == 2 * 4
