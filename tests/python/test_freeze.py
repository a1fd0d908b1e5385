# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import gc
import resource
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net
from torchalgo import _C
from torchalgo._capture.freeze import as_inputs, freeze_model


class Branching(nn.Module):
    """A branch on values: a trace would fix it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return self.a(x)
        return self.b(x)


class Unscriptable(Branching):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flags = {**{"positive": bool(x.sum() > 0)}}  # noqa: PIE800  no dict unpacking in TorchScript
        return self.a(x) if flags["positive"] else self.b(x)


class Hopeless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        text = str(type(x)).encode()
        if x.missing:  # type: ignore[attr-defined]
            return x
        return x + len({*text})


def test_the_frozen_module_computes_the_same_and_leaves_the_model_alone(
    net: Net, x: torch.Tensor
) -> None:
    before = {name: t.clone() for name, t in net.state_dict().items()}
    want = net(x).detach()
    frozen = freeze_model(net, (x,))
    assert torch.allclose(frozen(x), want, atol=1e-5)
    assert not list(frozen.parameters())
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    assert "batch_norm" not in str(frozen.graph)


def test_a_branch_on_values_is_kept_by_scripting() -> None:
    torch.manual_seed(0)
    model, x = Branching().eval(), torch.rand(1, 3, 5, 5)
    frozen = freeze_model(model, (x,))
    assert torch.allclose(frozen(-x), model(-x))
    assert torch.allclose(frozen(x), model(x))


def test_a_branch_that_only_the_trace_can_take_is_noted() -> None:
    notes: list[str] = []
    model, x = Unscriptable().eval(), torch.rand(1, 3, 5, 5)
    frozen = freeze_model(model, (x,), notes.append)
    assert torch.allclose(frozen(x), model(x))
    assert len(notes) == 1
    assert "fixed as the example inputs had it" in notes[0]


def test_a_model_that_can_be_neither_traced_nor_scripted_gives_both_reasons() -> None:
    with pytest.raises(torchalgo.Error, match=r"torch.jit.trace: .*missing.*torch.jit.script: \w+"):
        freeze_model(Hopeless().eval(), (torch.rand(2),))


def test_script_modules_are_taken_as_they_are_frozen_or_not(net: Net, x: torch.Tensor) -> None:
    scripted = torch.jit.script(net)
    once = torch.jit.freeze(scripted)
    text = str(once.graph)
    for model in (scripted, once, torch.jit.trace(net, x)):
        assert torch.allclose(freeze_model(model, (x,))(x), net(x), atol=1e-5)
    assert str(once.graph) == text


def test_no_deprecation_warning_reaches_the_user_and_the_users_own_do(x: torch.Tensor) -> None:
    class Warns(nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            warnings.warn("mind the padding", UserWarning, stacklevel=2)
            return super().forward(input)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        freeze_model(Warns(3, 4, 3).eval(), (x,))
    assert {str(w.message) for w in caught} == {"mind the padding"}


def test_train_mode_anywhere_is_an_error_that_names_the_submodule(
    net: Net, x: torch.Tensor
) -> None:
    net.layer1[0].bn1.train()
    with pytest.raises(torchalgo.Error, match=r"'layer1.0.bn1' is in train mode: call model.eval"):
        freeze_model(net, (x,))
    with pytest.raises(torchalgo.Error, match="the model is in train mode"):
        freeze_model(net.train(), (x,))
    with pytest.raises(torchalgo.Error, match="train mode"):
        freeze_model(torch.jit.script(net), (x,))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_an_error_that_names_it(
    net: Net, x: torch.Tensor, bad: float
) -> None:
    with torch.no_grad():
        net.layer2[0].conv1.weight[0, 0, 0, 0] = bad
    with pytest.raises(
        torchalgo.Error, match=r"'layer2.0.conv1.weight' has NaN or infinite values \(1 of"
    ):
        freeze_model(net, (x,))


def test_nan_in_the_constants_of_a_frozen_module_is_an_error(net: Net, x: torch.Tensor) -> None:
    with torch.no_grad():
        net.stem[0].weight[0, 0, 0, 0] = float("nan")
    frozen = torch.jit.freeze(torch.jit.script(net))
    with pytest.raises(torchalgo.Error, match="holds NaN"):
        freeze_model(frozen, (x,))


def test_an_input_of_another_dtype_or_device_than_the_weights_is_an_error(
    net: Net, x: torch.Tensor
) -> None:
    with pytest.raises(
        torchalgo.Error, match=r"input 0 is torch.float64 and the weights are torch.float32"
    ):
        freeze_model(net, (x.double(),))
    with pytest.raises(torchalgo.Error, match="input 0 is on meta and the weights are on cpu"):
        freeze_model(net, (x.to("meta"),))


def test_a_model_on_another_device_is_an_error(x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"'weight' is on meta.*call model.cpu"):
        freeze_model(nn.Conv2d(3, 4, 3, device="meta").eval(), (x,))


def test_what_is_no_module_is_an_error(x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"expected torch.nn.Module"):
        freeze_model(lambda t: t, (x,))  # type: ignore[arg-type]


def test_inputs_are_a_tensor_or_a_sequence(x: torch.Tensor) -> None:
    assert as_inputs(x) == (x,)
    assert as_inputs([x]) == (x,)
    assert as_inputs(((x, x),)) == ((x, x),)
    for bad in ((), "1x3x4x4", 3, {"x": x}):
        with pytest.raises(torchalgo.Error, match="example_inputs is"):
            as_inputs(bad)


def resident_bytes() -> int:
    """Returns how much memory this process occupies now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_the_weights_of_a_frozen_module_are_freed_with_it() -> None:
    """PyTorch alone keeps the weights of every frozen module, here 38 MB each time."""
    model = nn.Sequential(nn.Conv2d(1024, 1024, 3), nn.BatchNorm2d(1024)).eval()
    weight_bytes = 4 * 1024 * 1024 * 9
    x = torch.rand(1, 1024, 3, 3)

    def use() -> torch.Tensor:
        frozen = freeze_model(model, (x,))
        _C.import_graph(frozen._c, (x,))
        result: torch.Tensor = frozen(x)
        return result

    first = use()
    gc.collect()
    before = resident_bytes()
    for _ in range(6):
        assert torch.equal(use(), first)
    gc.collect()
    assert resident_bytes() - before < 4 * weight_bytes  # 6 if each call kept them
