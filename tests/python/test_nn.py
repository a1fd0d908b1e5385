# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo.nn and torchalgo.conv*: drop-in for torch's, with the algorithm of each direction."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import torchalgo
from torchalgo._base.overlap import quiet_jit

SHAPES = {1: (2, 4, 11), 2: (2, 4, 9, 10), 3: (1, 4, 6, 7, 8)}


def pair(name: str, *args: Any, **kwargs: Any) -> tuple[nn.Module, nn.Module]:
    """torch's module and ours with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(nn, name)(*args, **kwargs)
    torch.manual_seed(0)
    ours = getattr(torchalgo.nn, name)(*args, **kwargs)
    return theirs, ours


def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients of input and parameters."""
    x = x.clone().requires_grad_()
    y = module(x)
    y.square().sum().backward()
    assert x.grad is not None
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    return [y.detach(), x.grad, *grads]


def assert_close(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-4), f"tensor {i}"


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False},
        {"kernel_size": 3, "dilation": 2, "padding": "same"},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 3, "padding": "valid", "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 4, "padding": "same", "padding_mode": "replicate"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_equal_torchs_forward_and_backward(
    dims: int, arguments: dict[str, Any]
) -> None:
    theirs, ours = pair(f"Conv{dims}d", 4, 6, **arguments)
    x = torch.rand(SHAPES[dims], generator=torch.Generator().manual_seed(1))
    want = run(theirs, x)
    assert_close(run(ours, x), want)
    with quiet_jit():
        assert_close(run(torch.jit.script(ours), x), want)
        assert_close(run(torch.jit.trace(ours, x), x), want)
    function = getattr(torchalgo, f"conv{dims}d")
    if arguments.get("padding_mode") is None:
        numbers = {k: v for k, v in arguments.items() if k not in ("kernel_size", "bias")}
        y = function(x, ours.weight, ours.bias, **numbers)
        assert torch.allclose(y, want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "bias": False},
        {"kernel_size": 2, "stride": 2, "groups": 2, "dilation": 2},
    ],
    ids=str,
)
def test_transposed_convolutions_equal_torchs_forward_and_backward(
    dims: int, arguments: dict[str, Any]
) -> None:
    theirs, ours = pair(f"ConvTranspose{dims}d", 4, 6, **arguments)
    x = torch.rand(SHAPES[dims], generator=torch.Generator().manual_seed(1))
    want = run(theirs, x)
    assert_close(run(ours, x), want)
    with quiet_jit():
        assert_close(run(torch.jit.script(ours), x), want)
    numbers = {k: v for k, v in arguments.items() if k not in ("kernel_size", "bias")}
    y = getattr(torchalgo, f"conv_transpose{dims}d")(x, ours.weight, ours.bias, **numbers)
    assert torch.allclose(y, want[0], rtol=1e-4, atol=1e-4)


def test_output_size_of_a_transposed_convolution_is_obeyed() -> None:
    theirs, ours = pair("ConvTranspose2d", 4, 6, 3, stride=2)
    x = torch.rand(2, 4, 5, 5)
    assert torch.allclose(ours(x, output_size=[12, 12]), theirs(x, output_size=[12, 12]), atol=1e-5)


def test_an_image_without_a_batch_is_taken() -> None:
    theirs, ours = pair("Conv2d", 4, 6, 3)
    x = torch.rand(4, 9, 9)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_channels_last_is_kept(padding: Any) -> None:
    theirs, ours = pair("Conv2d", 4, 6, 3, padding=padding)
    ours = ours.to(memory_format=torch.channels_last)
    x = torch.rand(2, 4, 9, 9).to(memory_format=torch.channels_last)
    y = ours(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(y, theirs(x), atol=1e-5)


def test_each_direction_runs_what_it_is_told() -> None:
    conv = torchalgo.nn.Conv2d(
        16, 16, 3, padding=1, bias=False, forward="cpu.direct", backward_filter="aten.conv"
    )
    x = torch.rand(1, 16, 12, 12, requires_grad=True)
    with torchalgo.record_runs() as ran:
        conv(x).sum().backward()
    primitives = {r.problem.partition("_f32")[0]: r.primitive for r in ran}
    assert primitives["fwd"].startswith("cpu.direct")
    assert primitives["bwd_filter"].startswith("aten.conv")
    assert primitives["bwd_data"] == "auto"


def test_a_choice_can_be_set_later_and_shows() -> None:
    conv = torchalgo.nn.Conv2d(4, 4, 3)
    assert "forward" not in repr(conv)
    conv.forward_algorithm = {"f16": 1, "cpu": "cpu.direct"}
    conv.backward_data_algorithm = "WINOGRAD"
    assert conv.forward_algorithm == "f16:cudnn_legacy.fwd.1;cpu.direct"
    assert "backward_data='cudnn_legacy.bwd_data.4'" in repr(conv)
    conv.forward_algorithm = None
    assert "forward=" not in repr(conv).replace("backward", "")


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("cpu.drect", "did you mean 'cpu.direct'"),
        (99, "99 is neither a primitive's name nor an algorithm of cuDNN for fwd"),
        ("WINOGRADE", "did you mean 'WINOGRAD'"),
        ("CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "is an algorithm for bwd_data"),
        ("cudnn9.conv_bwd_filter.e2", "computes bwd_filter, expected an algorithm for fwd"),
        ("cpu.dir ect", "is no primitive's name"),
        ("f17:cpu.direct", "is no compute type"),
        (True, "got True of type bool"),
        (2.5, "of type float"),
        ({"x": 1}, "neither a compute type"),
        ({"cpu": 1}, "runs only on cuda"),
        ({"cpu": "aten.conv"}, "runs on every device"),
        ({"f16": {"f32": 1}}, "holds a choice for f32"),
    ],
    ids=str,
)
def test_what_is_no_choice_is_refused_with_what_is_known(choice: Any, text: str) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.nn.Conv2d(4, 4, 3, forward=choice)
    conv = torchalgo.nn.Conv2d(4, 4, 3, forward="cpu.direct")
    with pytest.raises(torchalgo.Error, match=text):
        conv.forward_algorithm = choice
    assert conv.forward_algorithm == "cpu.direct"


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("free", "free"),
        (6, "cudnn_legacy.fwd.6"),
        ("winograd", "cudnn_legacy.fwd.6"),
        ("CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD", "cudnn_legacy.fwd.6"),
        ("6@fma", "cudnn_legacy.fwd.6@fma"),
        ("cudnn9.conv.e22.krsc{SPLIT_K=2}", "cudnn9.conv.e22.krsc{SPLIT_K=2}"),
        ({"cuda": "aten.conv", "cpu": "cpu.direct"}, "cpu.direct;aten.conv"),
        ({torch.bfloat16: 1, "cpu": "cpu.direct"}, "bf16:cudnn_legacy.fwd.1;cpu.direct"),
        (["cudnn9.conv.e22", "cpu.direct"], "cudnn9.conv.e22;cpu.direct"),
        ({"cuda": {"f16": 1, "tf32": 2}}, "f16:cudnn_legacy.fwd.1;tf32:cudnn_legacy.fwd.2"),
    ],
    ids=str,
)
def test_choices_have_one_text_that_is_a_choice_itself(choice: Any, text: str) -> None:
    conv = torchalgo.nn.Conv2d(4, 4, 3, forward=choice)
    assert conv.forward_algorithm == text
    assert torchalgo.nn.Conv2d(4, 4, 3, forward=text).forward_algorithm == text


def test_a_transposed_convolutions_numbers_are_those_of_its_problem() -> None:
    conv = torchalgo.nn.ConvTranspose2d(4, 4, 3, forward=1, backward_data=1, backward_filter=1)
    assert conv.forward_algorithm == "cudnn_legacy.bwd_data.1"
    assert conv.backward_data_algorithm == "cudnn_legacy.fwd.1"
    assert conv.backward_filter_algorithm == "cudnn_legacy.bwd_filter.1"


def test_the_state_dict_is_torchs() -> None:
    theirs, ours = pair("Conv2d", 4, 6, 3)
    torch.nn.init.zeros_(ours.weight)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.weight, theirs.weight)
    theirs.load_state_dict(ours.state_dict())


def test_copies_and_pickles_keep_the_choices() -> None:
    conv = torchalgo.nn.Conv2d(4, 6, 3, forward="cpu.direct", backward_data=1)
    stored = io.BytesIO()
    torch.save(conv, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv)), loaded):
        assert repr(other) == repr(conv)
        assert torch.equal(other.weight, conv.weight)


def test_a_saved_script_keeps_the_choices() -> None:
    conv = torchalgo.nn.Conv2d(8, 8, 3, forward="cpu.direct")
    x = torch.rand(1, 8, 9, 9)
    stored = io.BytesIO()
    with quiet_jit():
        torch.jit.save(torch.jit.script(nn.Sequential(conv, nn.ReLU())), stored)
        stored.seek(0)
        loaded = torch.jit.load(stored)
    with torch.no_grad(), torchalgo.record_runs() as ran:
        loaded(x)
    assert [r.primitive.startswith("cpu.direct") for r in ran] == [True]


def test_torch_compile_takes_it_whole() -> None:
    conv = torchalgo.nn.Conv2d(4, 6, 3, padding="same", forward="aten.conv")
    x = torch.rand(2, 4, 9, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
        assert_close(run(compiled, x), run(conv, x))


def test_from_torch_shares_parameters_hooks_and_flags() -> None:
    theirs = nn.Conv2d(4, 6, 3).eval()
    calls: list[str] = []
    theirs.register_forward_hook(lambda *_: calls.append("hook"))
    ours = torchalgo.nn.Conv2d.from_torch(theirs, forward="cpu.direct")
    ours(torch.rand(1, 4, 9, 9))
    assert calls == ["hook"]
    assert ours.weight is theirs.weight and not ours.training
    assert ours.forward_algorithm == "cpu.direct"
    with pytest.raises(torchalgo.Error, match=r"got Conv1d, expected exactly torch\.nn\.Conv2d"):
        torchalgo.nn.Conv2d.from_torch(nn.Conv1d(4, 6, 3))


def test_wrong_padding_words_are_refused() -> None:
    x, w = torch.rand(1, 4, 9, 9), torch.rand(4, 4, 3, 3)
    with pytest.raises(torchalgo.Error, match="'full', expected numbers, 'same' or 'valid'"):
        torchalgo.conv2d(x, w, padding="full")
    with pytest.raises(torchalgo.Error, match="needs stride 1"):
        torchalgo.conv2d(x, w, padding="same", stride=2)
    assert torch.allclose(torchalgo.conv2d(x, w, padding="same"), F.conv2d(x, w, padding=1))
