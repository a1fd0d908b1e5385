# SPDX-License-Identifier: BSD-3-Clause
"""load_caffe: each type of layer beside its formula, which layers run, names, and refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("google.protobuf")

import torchalgo
from support.caffe_nets import Net, cifar10_full, lenet, resnet18, weights_file
from support.nets import arguments
from torchalgo._base.compare_outputs import output_error
from torchalgo_cli import main

SIZES = (2, 4, 7, 6)


def image(*sizes: int) -> Tensor:
    return torch.randn(sizes or SIZES, generator=torch.Generator().manual_seed(1))


def load(
    folder: Path, text: str, blobs: dict[str, Sequence[Any]] | None = None,
    inputs: dict[str, Sequence[int]] | None = None,
) -> Any:  # fmt: skip
    """Loads a network with these layers behind its inputs, which are `x` alone if left out."""
    lines = [
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{'
        + "".join(f" dim: {size}" for size in sizes) + " } } }"
        for name, sizes in (inputs or {"x": SIZES}).items()
    ]  # fmt: skip
    network, weights = folder / "net.prototxt", folder / "net.caffemodel"
    network.write_text("\n".join([*lines, text]))
    if blobs is None:
        return torchalgo.load_caffe(network)
    weights.write_bytes(weights_file(blobs))
    return torchalgo.load_caffe(network, weights)


def one(kind: str, more: str = "", bottoms: str = "x", tops: str = "y") -> str:
    reads = "".join(f' bottom: "{each}"' for each in bottoms.split())
    writes = "".join(f' top: "{each}"' for each in tops.split())
    return f'layer {{ name: "l" type: "{kind}"{reads}{writes} {more} }}'


# ---- the formulas of layers ----------------------------------------------------------------------

X, Y = image(), image() * 0.5
W, B = image(8, 2, 3, 2), image(8)
FORMULAS: dict[str, tuple[str, Sequence[Tensor], Tensor]] = {
    "AbsVal": (one("AbsVal"), (), X.abs()),
    "BNLL": (one("BNLL"), (), (1 + X.exp()).log()),
    "ELU": (one("ELU", "elu_param { alpha: 0.5 }"), (), functional.elu(X, 0.5)),
    "Sigmoid": (one("Sigmoid"), (), X.sigmoid()),
    "TanH": (one("TanH"), (), X.tanh()),
    "ReLU": (one("ReLU", "relu_param { negative_slope: 0.25 }"), (), torch.where(X > 0, X, X / 4)),
    "PReLU": (one("PReLU"), (B[:4],), torch.where(X > 0, X, X * B[:4, None, None])),
    "PReLU shared": (
        one("PReLU", "prelu_param { channel_shared: true }"), (B[0],),
        torch.where(X > 0, X, X * B[0]),
    ),
    "Power": (
        one("Power", "power_param { power: 2 scale: 3 shift: 0.5 }"), (), (0.5 + 3 * X) ** 2
    ),
    "Power that is nothing": (one("Power") + one("ReLU", bottoms="y", tops="z"), (), X.relu()),
    "Exp": (one("Exp"), (), X.exp()),
    "Exp of a base": (
        one("Exp", "exp_param { base: 2 scale: 0.5 shift: -1 }"), (), 2 ** (-1 + 0.5 * X)
    ),
    "Log": (
        one("Log", "log_param { base: 10 scale: 0.01 shift: 3 }"), (), (3 + 0.01 * X).log10()
    ),
    "Softmax": (one("Softmax"), (), X.softmax(1)),
    "Softmax of an axis": (one("Softmax", "softmax_param { axis: -1 }"), (), X.softmax(3)),
    "Dropout": (one("Dropout") + one("ReLU", bottoms="y", tops="z"), (), X.relu()),
    "Flatten": (one("Flatten"), (), X.flatten(1)),
    "Flatten of axes": (
        one("Flatten", "flatten_param { axis: 2 end_axis: -1 }"), (), X.flatten(2)
    ),
    "Flatten of first axes": (
        one("Flatten", "flatten_param { axis: 0 end_axis: 1 }"), (), X.flatten(0, 1)
    ),
    "Reshape": (
        one("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 6 } }"), (),
        X.reshape(2, 2, 14, 6),
    ),
    "Reshape of axes": (
        one("Reshape", "reshape_param { axis: 1 num_axes: 2 shape { dim: -1 } }"), (),
        X.flatten(1, 2),
    ),
    "Permute": (
        one("Permute", "permute_param { order: 0 order: 2 }"), (), X.permute(0, 2, 1, 3)
    ),
    "ArgMax": (one("ArgMax", "argmax_param { axis: 1 }"), (), X.argmax(1, True).float()),
    "Convolution": (
        one("Convolution", "convolution_param { num_output: 8 kernel_h: 3 kernel_w: 2 group: 2"
            " pad_h: 1 pad_w: 0 stride_h: 1 stride_w: 2 dilation: 2 }"),
        (W, B), torch.conv2d(X, W, B, (1, 2), (1, 0), 2, 2),
    ),
    "Convolution of pairs": (
        one("Convolution", "convolution_param { num_output: 8 kernel_size: 3 kernel_size: 2"
            " group: 2 pad: [1, 0] stride: 2 bias_term: false engine: CUDNN }"),
        (W,), torch.conv2d(X, W, None, 2, (1, 0), 1, 2),
    ),
    "Deconvolution": (
        one("Deconvolution", "convolution_param { num_output: 8 kernel_h: 3 kernel_w: 2 group: 2"
            " stride: 2 pad: 1 }"),
        (W[:4].repeat(1, 2, 1, 1), B),
        torch.conv_transpose2d(X, W[:4].repeat(1, 2, 1, 1), B, 2, 1, 0, 2),
    ),
    "InnerProduct": (
        one("InnerProduct", "inner_product_param { num_output: 3 }"), (image(3, 168), B[:3]),
        functional.linear(X.flatten(1), image(3, 168), B[:3]),
    ),
    "InnerProduct transposed": (
        one("InnerProduct", "inner_product_param { num_output: 3 transpose: true }"),
        (image(168, 3), B[:3]), X.flatten(1) @ image(168, 3) + B[:3],
    ),
    "InnerProduct of an axis": (
        one("InnerProduct", "inner_product_param { num_output: 3 axis: 2 }"),
        (image(3, 42), B[:3]), functional.linear(X.flatten(2), image(3, 42), B[:3]),
    ),
    "InnerProduct of an axis, transposed": (
        one("InnerProduct", "inner_product_param { num_output: 3 axis: -1 transpose: true"
            " bias_term: false }"),
        (image(6, 3),), X @ image(6, 3),
    ),
    "BatchNorm": (
        one("BatchNorm", "batch_norm_param { eps: 0.01 }"),
        (B[:4], B[4:].abs(), torch.tensor([4.0])),
        (X - B[:4, None, None] / 4) / (B[4:, None, None].abs() / 4 + 0.01).sqrt(),
    ),
    "BatchNorm of nothing": (
        one("BatchNorm"), (B[:4], B[4:], torch.tensor([0.0])), X / 1e-5**0.5
    ),
    "Scale": (
        one("Scale", "scale_param { bias_term: true }"), (B[:4], B[4:]),
        X * B[:4, None, None] + B[4:, None, None],
    ),
    "Scale of two axes": (
        one("Scale", "scale_param { axis: 2 num_axes: -1 }"), (image(7, 6),), X * image(7, 6)
    ),
    "Bias": (one("Bias", "bias_param { axis: 3 }"), (B[:6],), X + B[:6]),
    "Slice": (
        one("Slice", "slice_param { slice_point: 1 slice_point: 2 }", tops="a b c")
        + one("Concat", bottoms="c a b"), (), X[:, [2, 3, 0, 1]],
    ),
    "Slice into equal parts": (
        one("Slice", "slice_param { axis: 3 }", tops="a b")
        + one("Eltwise", "eltwise_param { operation: MAX }", "a b"), (),
        torch.maximum(X[..., :3], X[..., 3:]),
    ),
    "Split": (
        one("Split", tops="a b") + one("ReLU", bottoms="a", tops="a")
        + one("Eltwise", "eltwise_param { operation: PROD }", "a b"), (), X.relu() * X,
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", FORMULAS)
def test_a_layer_computes_its_formula(kind: str, tmp_path: Path) -> None:
    text, blobs, expected = FORMULAS[kind]
    found = load(tmp_path, text, {"l": list(blobs)} if blobs else None)(X)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", FORMULAS)
def test_constants_and_random_weights_do_not_have_torchs_default_type(
    kind: str, tmp_path: Path
) -> None:
    text, blobs, expected = FORMULAS[kind]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for weights in ({"l": list(blobs)} if blobs else None, None):
            assert load(tmp_path, text, weights)(X).dtype == expected.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


PAIRS: dict[str, tuple[str, tuple[Tensor, Tensor], Tensor]] = {
    "Eltwise": (
        one("Eltwise", "eltwise_param { coeff: 0.5 coeff: -1 }", "a b"), (X, Y), 0.5 * X - Y
    ),
    "Scale": (
        one("Scale", "scale_param { axis: 0 }", "a b"), (X, Y[:, :, 0, 0]), X * Y[:, :, :1, :1]
    ),
    "Bias": (one("Bias", "", "a b"), (X, Y[0, :, 0, 0]), X + Y[0, :, :1, :1]),
    "Crop": (
        one("Crop", "crop_param { offset: 1 offset: 2 }", "a b"), (X, image(2, 9, 5, 3)),
        X[:, :, 1:6, 2:5],
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", PAIRS)
def test_a_layer_of_two_bottoms_computes_its_formula(kind: str, tmp_path: Path) -> None:
    text, (a, b), expected = PAIRS[kind]
    module = load(tmp_path, text, inputs={"a": a.shape, "b": b.shape})
    torch.testing.assert_close(module(a, b), expected)


def pooled(x: Tensor, window: int, stride: int, pad: int, is_max: bool, is_ceil: bool) -> Tensor:
    """Pools as Caffe's source does: it rounds up, clips the last window, and counts the pads."""
    counts = []
    for size in x.shape[2:]:
        steps = (size + 2 * pad - window) / stride
        count = int(np.ceil(steps) if is_ceil else np.floor(steps)) + 1
        counts.append(count - (pad > 0 and (count - 1) * stride >= size + pad))
    found = torch.empty(*x.shape[:2], *counts)
    for i in range(counts[0]):
        for j in range(counts[1]):
            top, left = i * stride - pad, j * stride - pad
            bottom, right = (
                min(top + window, x.shape[2] + pad),
                min(left + window, x.shape[3] + pad),
            )
            part = x[:, :, max(top, 0) : bottom, max(left, 0) : right]
            total = part.sum((2, 3)) / ((bottom - top) * (right - left))
            found[:, :, i, j] = part.amax((2, 3)) if is_max else total
    return found


@torch.no_grad()
def test_poolings_round_up_clip_and_count_their_pads(tmp_path: Path) -> None:
    ran = 0
    for window, stride, pad in [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1), (5, 4, 2)]:
        for kind in ("MAX", "AVE"):
            for more in ("", "round_mode: FLOOR", "ceil_mode: false"):
                sizes = f"pool: {kind} kernel_size: {window} stride: {stride} pad: {pad} {more}"
                module = load(tmp_path, one("Pooling", f"pooling_param {{ {sizes} }}"))
                expected = pooled(X, window, stride, pad, kind == "MAX", not more)
                torch.testing.assert_close(module(X), expected)
                ran += 1
    assert ran == 36
    mean = load(tmp_path, one("Pooling", "pooling_param { pool: AVE global_pooling: true }"))(X)
    torch.testing.assert_close(mean, X.mean((2, 3), keepdim=True))


@torch.no_grad()
def test_norms_go_over_channels_or_over_pixels(tmp_path: Path) -> None:
    text = "local_size: 3 alpha: 0.5 beta: 0.6"
    square = X**2
    sums = functional.pad(square, (0, 0, 0, 0, 1, 1)).unfold(1, 3, 1).sum(-1)
    across = load(tmp_path, one("LRN", f"lrn_param {{ {text} k: 2 }}"))(X)
    torch.testing.assert_close(across, X / (2 + 0.5 / 3 * sums) ** 0.6)
    means = functional.avg_pool2d(square, 3, 1, 1)
    within = load(tmp_path, one("LRN", f"lrn_param {{ {text} norm_region: WITHIN_CHANNEL }}"))(X)
    torch.testing.assert_close(within, X / (1 + 0.5 * means) ** 0.6)


@torch.no_grad()
def test_a_scale_behind_a_batch_norm_is_one_operation(tmp_path: Path) -> None:
    blobs = {"n": [B[:4], B[4:].abs(), torch.ones(1)], "s": [image(4), image(4) + 1]}
    norm = 'layer { name: "n" type: "BatchNorm" bottom: "x" top: "y" }'
    scale = 'layer { name: "s" type: "Scale" bottom: "y" top: "z" scale_param { bias_term: true } }'
    module = load(tmp_path, norm + scale, blobs)
    expected = functional.batch_norm(X, B[:4], B[4:].abs(), image(4), image(4) + 1)
    torch.testing.assert_close(module(X), expected)
    assert module._fx_graph.module.code.count("batch_norm(") == 1
    both = load(tmp_path, norm + scale + one("AbsVal", bottoms="y", tops="w"), blobs)
    plain = functional.batch_norm(X, B[:4], B[4:].abs())
    for found, wanted in zip(both(X), (expected, plain.abs()), strict=True):
        torch.testing.assert_close(found, wanted)


# ---- which layers run ----------------------------------------------------------------------------


@torch.no_grad()
def test_layers_for_training_are_left_out(tmp_path: Path) -> None:
    text = (
        'layer { name: "d" type: "Data" top: "label" data_param { source: "nowhere" } }'
        + one("ReLU", "include { phase: TRAIN }", tops="x")
        + one("AbsVal", 'include { phase: TEST not_stage: "deploy" }', tops="a")
        + one("Power", 'power_param { scale: 9 } include { stage: "deploy" }', "a", "a")
        + one("TanH", "exclude { phase: TEST }", "a", "a")
        + one("Sigmoid", "", "a", "s")
        + one("SoftmaxWithLoss", "", "s label", "loss")
        + one("Accuracy", "include { phase: TEST }", "s label", "accuracy")
        + one("Power", "power_param { scale: 2 }", "a", "unused")
        + one("Silence", "", "unused", "")
    )
    torch.testing.assert_close(load(tmp_path, text)(X), X.abs().sigmoid())


@torch.no_grad()
def test_the_results_are_what_no_layer_reads_after_its_last_write(tmp_path: Path) -> None:
    text = (
        one("AbsVal", tops="a") + one("TanH", bottoms="a", tops="b")
        + one("Power", "power_param { shift: 1 }", "a", "a") + one("ReLU", tops="x")
    )  # fmt: skip
    found = load(tmp_path, text)(X)
    for each, expected in zip(found, (X.abs().tanh(), X.abs() + 1, X.relu()), strict=True):
        torch.testing.assert_close(each, expected)


@torch.no_grad()
@pytest.mark.parametrize("style", ["input_dim", "input_shape", "layer"])
def test_inputs_are_written_in_three_styles(style: str, tmp_path: Path) -> None:
    net = Net((3, 5, 4), 1, style)
    net.relu("data")
    module = torchalgo.load_caffe(net.write(tmp_path)[0])
    assert torch.equal(module(image(1, 3, 5, 4)), image(1, 3, 5, 4).relu())


@torch.no_grad()
def test_any_batch_runs_unless_a_layer_needs_that_of_the_file(tmp_path: Path) -> None:
    x = image(5, *SIZES[1:])
    torch.testing.assert_close(load(tmp_path, one("AbsVal"))(x), x.abs())
    fixed = load(tmp_path, one("Slice", "slice_param { axis: 0 }", tops="a b"))
    assert torch.equal(fixed(X)[1], X[1:])
    with pytest.raises(torchalgo.Error, match=r"TA4301 .*x has sizes \[5, 4, 7, 6\], expected 2x4"):
        fixed(x)


# ---- weights and names ---------------------------------------------------------------------------

CONV = "convolution_param { num_output: 8 kernel_size: 1 }"


def test_layers_keep_their_names(tmp_path: Path) -> None:
    module = torchalgo.load_caffe(*resnet18(8, 64).write(tmp_path))
    names = set(dict(module.named_parameters()))
    assert {"conv1.weight", "res2a_branch2a.weight", "fc1000.bias"} <= names
    assert {"res2a_branch2a.bn.running_mean", "res2a_branch2a.scale.weight"} <= names
    fast = torchalgo.optimize(
        module, image(1, 3, 64, 64), **arguments(overrides={"res3?_branch2a": "aten.conv"})
    )
    assert {"conv1", "res5b_branch2b", "fc1000"} <= {node.name for node in fast.plan.nodes}


def test_odd_and_equal_names_become_paths(tmp_path: Path) -> None:
    names = ("a/b", "a.b", "forward", "é 1", "a")
    text = "".join(
        f'layer {{ name: "{name}" type: "Convolution" bottom: "x" top: "{i}" {CONV} }}'
        for i, name in enumerate(names)
    )
    module = load(tmp_path, text)
    assert {n for n, _ in module.named_parameters() if n.endswith(".weight")} == {
        "a.b.weight", "a.b_2.weight", "layer_3.weight", "__1.weight", "a.weight",
    }  # fmt: skip


@torch.no_grad()
def test_layers_may_share_weights(tmp_path: Path) -> None:
    more = f'{CONV} param {{ name: "w" }} param {{ name: "b" }}'
    a, b = (one("Convolution", more, tops=t).replace('"l"', f'"{t}"') for t in ("y", "z"))
    for blobs in (None, {"y": [image(8, 4, 1, 1), B]}):
        module = load(tmp_path, a + b, blobs)
        found = module(X)
        assert torch.equal(*found) and len(list(module.parameters())) == 2
    torch.testing.assert_close(found[0], torch.conv2d(X, image(8, 4, 1, 1), B))


@torch.no_grad()
def test_random_weights_are_the_same_each_time_and_keep_the_scale(tmp_path: Path) -> None:
    network, _ = resnet18(4, 64).write(tmp_path)
    x = image(1, 3, 64, 64)
    network.write_text(network.read_text().replace('type: "Softmax"', 'type: "AbsVal"'))
    found = torchalgo.load_caffe(network)(x)
    assert torch.equal(found, torchalgo.load_caffe(network)(x))
    assert 0.01 < found.std() < 1000


@torch.no_grad()
def test_weights_of_the_old_format_and_in_f64_are_read(tmp_path: Path) -> None:
    from torchalgo._caffe.schema import messages

    net = cifar10_full(4, 32)
    paths = net.write(tmp_path)
    expected = torchalgo.load_caffe(*paths)(image(1, 3, 32, 32))
    weights = messages()[1].FromString(paths[1].read_bytes())
    for layer in weights.layers:
        for blob in layer.blobs:
            data = np.frombuffer(blob.data.pop(), np.float32).astype(np.float64).tobytes()
            blob.double_data[:] = [data[:8], data[8:]]  # a reader must join the parts of a field
    paths[1].write_bytes(weights.SerializeToString())
    assert torch.equal(torchalgo.load_caffe(*paths)(image(1, 3, 32, 32)), expected)


# ---- refusals ------------------------------------------------------------------------------------


def conv(more: str) -> str:
    return one("Convolution", f"convolution_param {{ {more} }}")


def pool(more: str) -> str:
    return one("Pooling", f"pooling_param {{ {more} }}")


# The layers of a network, and the code and the text of its error.
REFUSED: dict[str, tuple[str, str, str]] = {
    "a type": (one("Foo"), "TA1803", r"layer 'l' \(Foo\): .*type"),
    "a V1 type": ('layers { name: "l" type: MVN bottom: "x" top: "y" }', "TA1803", r"'l' \(MVN\)"),
    "a V0 layer": ('layers { layer { name: "l" type: "conv" } }', "TA1803", r"\(None\)"),
    "a bottom": (one("ReLU", bottoms="z"), "TA1804", r"'l' \(ReLU\): it reads 'z'"),
    "itself": (one("ReLU", bottoms="y"), "TA1804", r"'l' \(ReLU\): it reads 'y'"),
    "a circle": (one("ReLU", bottoms="b", tops="a") + one("ReLU", bottoms="a", tops="b"), "TA1804",
                 "it reads 'b', which no earlier layer makes"),
    "no bottom": (one("ReLU", bottoms=""), "TA1804", r"\(ReLU\): it has 0 bottoms"),
    "two bottoms": (one("ReLU", bottoms="x x"), "TA1804", r"\(ReLU\): it has 2 bottoms"),
    "no top": (one("ReLU", tops=""), "TA1803", r"\(ReLU\): it has 0 tops"),
    "two tops": (pool("kernel_size: 2").replace("top:", 'top: "m" top:'), "TA1803", "2 tops"),
    "a label": (one("Data", bottoms="", tops="d") + one("ReLU", bottoms="d"), "TA1803",
                r"\(ReLU\): it reads 'd' of the layer 'l' \(Data\), which is left out"),
    "a negative window": (conv("num_output: 8 kernel_size: -3"), "TA1804", "kernel_size is -3"),
    "a negative pad": (conv("num_output: 8 kernel_size: 3 pad: -1"), "TA1804", "pad is -1"),
    "a stride of 0": (pool("kernel_size: 2 stride: 0"), "TA1804", r"\(Pooling\): stride is 0"),
    "a stride of one side": (pool("kernel_size: 2 stride_h: 2"), "TA1804", "stride_w is 0"),
    "three windows": (conv("num_output: 8 kernel_size: [1, 1, 1]"), "TA1804", "has 3 numbers"),
    "no window": (conv("num_output: 8"), "TA1804", r"\(Convolution\): kernel_size has 0 numbers"),
    "no output": (conv("kernel_size: 3"), "TA1804", "num_output is 0"),
    "groups": (conv("num_output: 8 kernel_size: 3 group: 3"), "TA1804", "group 3"),
    "groups of outputs": (
        one("Deconvolution", "convolution_param { num_output: 3 kernel_size: 1 group: 2 }"),
        "TA1804", r"\(Deconvolution\): group 2",
    ),
    "a large window": (conv("num_output: 8 kernel_size: 99"), "TA1804", r"\(Convolution\): torch"),
    "a pad of a window": (pool("kernel_size: 2 pad: 2"), "TA1804", "the pad 2 is not smaller"),
    "an empty window": (pool("kernel_size: 1 stride: 4"), "TA1803", "outside of its input"),
    "stochastic pooling": (pool("pool: STOCHASTIC kernel_size: 2"), "TA1803", "stochastic"),
    "an unknown field": (pool("kernel_size: 2\n dilation: 2"), "TA1803",
                         r"line 3: pooling_param \{ dilation \}"),
    "statistics of the batch": (one("BatchNorm", "batch_norm_param { use_global_stats: false }"),
                                "TA1803", r"\(BatchNorm\): use_global_stats"),
    "an even norm": (one("LRN", "lrn_param { local_size: 4 }"), "TA1803", r"\(LRN\): size is 4"),
    "an axis": (one("Softmax", "softmax_param { axis: 4 }"), "TA1804", r"\(Softmax\): the axis 4"),
    "a slice": (one("Slice", "slice_param { slice_point: 9 }", tops="a b"), "TA1804", "size 4"),
    "unequal sizes": (pool("kernel_size: 2") + one("Eltwise", "", "x y", "z"), "TA1804", "differ"),
    "coefficients": (one("Eltwise", "eltwise_param { operation: PROD coeff: 2 coeff: 1 }", "x x"),
                     "TA1804", "2 coefficients"),
    "a reshape": (one("Reshape", "reshape_param { shape { dim: 5 dim: -1 } }"), "TA1804", "torch"),
    "an order": (one("Permute", "permute_param { order: 1 order: 1 }"), "TA1804", r"\(Permute\)"),
    "a crop": (one("Crop", "crop_param { offset: 1 }", "x x"), "TA1804", "outside"),
    "an index": (one("ArgMax"), "TA1803", r"\(ArgMax\)"),
    "an absurd filter": (conv("num_output: 2000000000 kernel_size: 3"), "TA1806", "too much"),
    "an absurd pad": (pool("kernel_size: 1000001 pad: 1000000"), "TA1806", r"\(Pooling\): "),
    "no layer": (one("Accuracy", tops="a"), "TA1804", "no input or no layer"),
    "an input": ('input: "z" input_dim: 1 ' + one("ReLU"), "TA1804", "1 inputs and 1 shapes"),
    "an input of -1": (one("Input", "input_param { shape { dim: -1 } }", bottoms=""), "TA1804",
                       r"'l' \(Input\): the input has the sizes \[-1\]"),
    "an absurd input": (one("Input", "input_param { shape { dim: 2147483648 dim: 2147483648"
                        " dim: 2147483648 } }", bottoms=""), "TA1806", r"'l' \(Input\)"),
    "text": ("hello", "TA1802", "no network of Caffe: .*2:6"),
    "an enum": (pool("pool: MEAN"), "TA1802", "no value named MEAN"),
    "brackets": ("layer { " * 2000, "TA1802", "no network of Caffe"),
    "no end": (one("ReLU")[:-2], "TA1802", "no network of Caffe"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_damaged_network_is_refused(what: str, tmp_path: Path) -> None:
    text, code, expected = REFUSED[what]
    with pytest.raises(
        torchalgo.Error, match=rf"(?s)^{code} load_caffe: .*net.prototxt.*{expected}"
    ):
        load(tmp_path, text)


GOOD = [image(8, 4, 1, 1), B]
REFUSED_WEIGHTS: dict[str, tuple[dict[str, Sequence[Any]], str]] = {
    "another layer": ({"other": GOOD}, "the file has 0 weights for it, not 2"),
    "no bias": ({"l": GOOD[:1]}, "the file has 1 weights for it, not 2"),
    "a third blob": ({"l": [*GOOD, B]}, "the file has 3 weights for it, not 2"),
    "a window": ({"l": [image(8, 4, 3, 3), B]}, r"weight has the sizes \[8, 4, 3, 3\].*not \[8, 4"),
    "a rank": ({"l": [image(32), B]}, r"its weight has the sizes \[32\]"),
    "a bias": ({"l": [GOOD[0], image(9)]}, r"its bias has the sizes \[9\]"),
}


@pytest.mark.parametrize("what", REFUSED_WEIGHTS)
def test_weights_of_another_network_are_refused(what: str, tmp_path: Path) -> None:
    blobs, expected = REFUSED_WEIGHTS[what]
    with pytest.raises(
        torchalgo.Error, match=rf"^TA1805 .*layer 'l' \(Convolution\): .*{expected}"
    ):
        load(tmp_path, one("Convolution", CONV), blobs)


def huge(blob: Any) -> None:
    blob.shape.dim[:] = [1 << 40, 1 << 40]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda blob: blob.data.__setitem__(0, blob.data[0][:-1]), "127 bytes"),
        (lambda blob: blob.data.append(b"1234"), "132 bytes"),
        (lambda blob: blob.ClearField("data"), "0 bytes"),
        (lambda blob: blob.ClearField("shape"), r"sizes \[0, 0, 0, 0\]"),
        (lambda blob: blob.shape.dim.__setitem__(0, -8), r"sizes \[-8, 4"),
        (huge, r"sizes \[1099511627776, 1099511627776\]"),
    ],
)
def test_damaged_weights_are_refused(
    change: Callable[[Any], Any], expected: str, tmp_path: Path
) -> None:
    from torchalgo._caffe.schema import messages

    load(tmp_path, one("Convolution", CONV), {"l": GOOD})
    path = tmp_path / "net.caffemodel"
    weights = messages()[1].FromString(path.read_bytes())
    change(weights.layer[0].blobs[0])
    path.write_bytes(weights.SerializeToString())
    with pytest.raises(torchalgo.Error, match=rf"^TA1805 .*'l' \(Convolution\): .*{expected}"):
        torchalgo.load_caffe(tmp_path / "net.prototxt", path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    load(tmp_path, one("Convolution", CONV), {"l": GOOD})
    network, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    data = weights.read_bytes()
    for content in (b"", b"\0" * 99, b"\x89HDF", data[:-9], network.read_bytes(), b"\n\3abc"):
        weights.write_bytes(content)
        with pytest.raises(torchalgo.Error, match=r"^TA1805 .*net.caffemodel is no caffemodel"):
            torchalgo.load_caffe(network, weights)
    weights.write_bytes(data)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 << 20)  # needs no disk
    for other in (weights, tmp_path / "large"):
        with pytest.raises(torchalgo.Error, match=r"^TA1802 .*is no network of Caffe"):
            torchalgo.load_caffe(other, weights)
    for given in ((tmp_path / "none", None), (network, tmp_path / "none"), (tmp_path, None)):
        with pytest.raises(torchalgo.Error, match=r"^TA2004 load_caffe: cannot read"):
            torchalgo.load_caffe(*given)


def test_text_in_another_encoding_is_read(tmp_path: Path) -> None:
    load(tmp_path, one("ReLU"))
    path = tmp_path / "net.prototxt"
    path.write_bytes(b"\xef\xbb\xbf# \xc4\xe3\xba\xc3\n" + path.read_bytes())
    assert torch.equal(torchalgo.load_caffe(path)(X), X.relu())


# ---- commands, and without protobuf --------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_take_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, weights = lenet(2, 28).write(tmp_path)
    shape, out = ("--input", "1x1x28x28"), str(tmp_path / "fast.pt")
    assert main(["explain", str(network), *shape, "--candidates"]) == 0
    assert "fwd_f32_n1c1h28w28_k10r5s5" in capsys.readouterr().out
    assert main(["optimize", str(network), *shape, "-o", out, "--budget", "2"]) == 0
    x, expected = image(1, 1, 28, 28), torchalgo.load_caffe(network, weights)
    assert output_error(torchalgo.load(out)(x), expected(x)) < 1e-4
    other = weights.rename(tmp_path / "other.caffemodel")
    assert main(["explain", f"{network}:{other}"]) != 0
    assert "is a model and needs its input" in capsys.readouterr().err


def test_a_command_says_how_to_name_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, weights = lenet(2, 28).write(tmp_path)
    other, shape = weights.rename(tmp_path / "other.caffemodel"), ("--input", "1x1x28x28")
    for given in (f"{network}:{other}", f"{network}:random"):
        assert main(["explain", given, *shape, "--candidates"]) == 0
    capsys.readouterr()
    assert main(["explain", str(network), *shape, "--candidates"]) != 0
    said = capsys.readouterr().err
    assert "TA7101" in said and ".prototxt:weights.caffemodel" in said and ":random" in said
    assert main(["explain", str(other), *shape, "--candidates"]) != 0
    assert f"give net.prototxt:{other}" in capsys.readouterr().err


def test_without_protobuf_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    (tmp_path / "net.prototxt").write_text(one("ReLU"))
    with pytest.raises(torchalgo.Error, match=r"TA1801 .*pip install protobuf"):
        torchalgo.load_caffe(tmp_path / "net.prototxt")


def test_importing_torchalgo_does_not_import_protobuf() -> None:
    source = "import torchalgo, sys; assert 'google.protobuf' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)
