# SPDX-License-Identifier: BSD-3-Clause
"""Random attributes of windows, pads, slices and resizes, compared with ONNX Runtime.

onnx's own reference fails for grouped transposed convolutions and rounds poolings otherwise.
"""

# ruff: noqa: E402
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import helper

import torchalgo
from support.onnx_files import load, model_of, weight

node = helper.make_node
Case = tuple[Any, list[int], list[Any]]  # the node, the input's sizes, the weights


def expected(model: Any, x: np.ndarray) -> np.ndarray | None:
    """Returns the result of ONNX Runtime; None if it refuses the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        runtime = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return np.asarray(runtime.run(None, {"x": x})[0])
    except Exception:
        return None


def window(rng: random.Random, n: int, is_pool: bool) -> dict[str, Any]:
    """Returns random attributes of a window of n dimensions."""
    found: dict[str, Any] = {}
    if rng.random() < 0.7:
        found["strides"] = [rng.randint(1, 3) for _ in range(n)]
    if rng.random() < 0.4 and not is_pool:
        found["dilations"] = [rng.randint(1, 2) for _ in range(n)]
    kind = rng.random()
    if kind < 0.5:
        found["pads"] = [rng.randint(0, 1 if is_pool else 2) for _ in range(2 * n)]
    elif kind < 0.8:
        found["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return found


def conv(rng: random.Random) -> Case:
    n, groups = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    sizes = [rng.randint(1, 2), 2 * groups, *(rng.randint(6, 9) for _ in range(n))]
    filters = [rng.randint(1, 3) for _ in range(n)]
    found = window(rng, n, False)
    if found.get("auto_pad", "").startswith("SAME"):  # ONNX Runtime has other sizes then
        found.pop("dilations", None)
    weights = [
        weight("w", np.random.rand(2 * groups, 2, *filters)),
        weight("b", np.random.rand(2 * groups)),
    ]
    return node("Conv", ["x", "w", "b"], ["y"], group=groups, **found), sizes, weights


def conv_transpose(rng: random.Random) -> Case:
    n, groups = rng.choice((1, 2, 2)), rng.choice((1, 2))
    sizes = [1, 2 * groups, *(rng.randint(3, 6) for _ in range(n))]
    filters = [rng.randint(2, 4) for _ in range(n)]
    strides = [rng.randint(1, 3) for _ in range(n)]
    found: dict[str, Any] = {"strides": strides}
    if rng.random() < 0.3:
        found["output_padding"] = [rng.randint(0, s - 1) for s in strides]
    if rng.random() < 0.6:
        found["pads"] = [rng.randint(0, 1) for _ in range(2 * n)]
    elif rng.random() < 0.5:
        found["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    weights = [weight("w", np.random.rand(2 * groups, 3, *filters))]
    return node("ConvTranspose", ["x", "w"], ["y"], group=groups, **found), sizes, weights


def pool(rng: random.Random) -> Case:
    n = rng.choice((1, 2, 2, 3))
    sizes = [1, 2, *(rng.randint(5, 9) for _ in range(n))]
    found = window(rng, n, True)
    found["kernel_shape"] = [rng.randint(2, 3) for _ in range(n)]
    if rng.random() < 0.3 and "auto_pad" not in found:
        found["ceil_mode"] = 1
    op = rng.choice(("MaxPool", "AveragePool", "LpPool"))
    if op == "AveragePool":
        found["count_include_pad"] = rng.randint(0, 1)
    if op == "MaxPool" and rng.random() < 0.3 and "auto_pad" not in found:
        found["dilations"] = [rng.randint(1, 2) for _ in range(n)]
    return node(op, ["x"], ["y"], **found), sizes, []


def pad(rng: random.Random) -> Case:
    n = rng.choice((1, 2))
    mode = rng.choice(("constant", "reflect", "edge"))
    low = -1 if mode == "constant" else 0
    pads = [0, 0, *(rng.randint(low, 2) for _ in range(n))] * 2
    weights = [weight("pads", np.int64(pads)), weight("v", np.float32(0.25))]
    return node("Pad", ["x", "pads", "v"], ["y"], mode=mode), [1, 2, *[5] * n], weights


def cut(rng: random.Random) -> Case:
    axes = rng.sample([-2, -1, 1], rng.randint(1, 3))
    bounds = [[rng.choice((-99, -4, -1, 0, 1, 3, 99)) for _ in axes] for _ in range(2)]
    steps = [rng.choice((1, 1, 2, -1, -2)) for _ in axes]
    given = {"s": bounds[0], "e": bounds[1], "a": axes, "t": steps}
    weights = [weight(name, np.int64(value)) for name, value in given.items()]
    return node("Slice", ["x", "s", "e", "a", "t"], ["y"]), [2, 3, 5, 6], weights


def resize(rng: random.Random) -> Case:
    n, mode = rng.choice((1, 2, 2)), rng.choice(("nearest", "nearest", "linear", "cubic"))
    sizes = [1, 2, *(rng.randint(3, 6) for _ in range(n))]
    found = {
        "mode": mode,
        "coordinate_transformation_mode": rng.choice(
            ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        ),
    }
    if mode == "nearest":
        found["nearest_mode"] = rng.choice(
            ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        )
    if rng.random() < 0.5:
        results = weight("r", np.int64([1, 2, *(rng.randint(2, 11) for _ in range(n))]))
        return node("Resize", ["x", "", "", "r"], ["y"], **found), sizes, [results]
    scales = [1, 1, *(rng.choice((0.5, 2.0, 3.0, 1.5, 1.0)) for _ in range(n))]
    return node("Resize", ["x", "", "r"], ["y"], **found), sizes, [weight("r", np.float32(scales))]


KINDS = {f.__name__: f for f in (conv, conv_transpose, pool, pad, cut, resize)}


@pytest.mark.parametrize("kind", KINDS)
def test_random_attributes_give_the_results_of_onnx_runtime(kind: str, tmp_path: Path) -> None:
    compared = refused = 0
    for seed in range(150):
        rng = random.Random(seed)
        np.random.seed(seed)
        case, sizes, weights = KINDS[kind](rng)
        opset = rng.choice((13, 16, 18, 19, 21)) if kind != "pad" else rng.choice((13, 18))
        if kind == "pool" and case.op_type == "LpPool":
            opset = max(opset, 18)
        model = model_of([case], {"x": sizes}, weights, opset=opset)
        model.ir_version = 8
        x = np.random.rand(*sizes).astype(np.float32) - 0.3
        wanted = expected(model, x)
        try:
            module = load(model, tmp_path)
        except torchalgo.Error:
            refused += 1
            continue
        if wanted is None:
            continue
        compared += 1
        with torch.no_grad():
            found = module(torch.from_numpy(x)).numpy()
        assert found.shape == wanted.shape, (seed, case)
        assert np.allclose(found, wanted, rtol=1e-4, atol=2e-5), (seed, case)
    print(kind, compared, refused)
    assert compared >= 60
