# SPDX-License-Identifier: BSD-3-Clause
"""Mutated ONNX files: load_onnx refuses them, or gives a module that runs or refuses its input.

    python tests/fuzz/fuzz_onnx.py bytes --cases 100000 --record tests/fuzz/records/onnx.jsonl
    python tests/fuzz/fuzz_onnx.py parts --cases 100000 --record tests/fuzz/records/onnx.jsonl

`bytes` changes bytes of small files, `parts` changes parts of their graphs. A finding is an
exception other than torchalgo.Error, a crash, a hang, or more memory than the limit.
"""

from __future__ import annotations

import contextlib
import functools
import random
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import isolated
import torchalgo
from campaign import FindingError, main
from mutate import mutated_bytes
from torchalgo._onnx_ops.to_fx import OPS

INTS = (
    0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 100, -2, 255, 1 << 16, 1 << 20, 1 << 31, (1 << 31) - 1,
    1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 31), 2_000_000_011,
)  # fmt: skip
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
NAMES = ("", "x", "y", "w", "s", "../w", "a b", "\0", "é", "self", "forward", "training", "a.b")
# Beyond what the process has when it starts. A file of 10 kB must not need more.
EXTRA_BYTES = 2 << 30
MOST_RUN = 1 << 22  # elements of the largest tensor of a module that is run
Load = Callable[[random.Random, Path], Any]


def _file(nodes: list[NodeProto], weights: dict[str, Any], sizes: list[Any], opset: int) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(model.SerializeToString())


def _f32(*sizes: int) -> Any:
    return np.random.default_rng(0).random(sizes, dtype=np.float32)


node, array = helper.make_node, numpy_helper.from_array


def _convolutions() -> bytes:
    """Returns a small network for images."""
    return _file(
        [
            node(
                "Conv", ["x", "c.weight", "c.bias"], ["a"], "/c/Conv",
                pads=[1, 1, 1, 1], strides=[2, 2],
            ),
            node("Relu", ["a"], ["b"]),
            node("MaxPool", ["b"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("BatchNormalization", ["p", "s", "s", "s", "s"], ["n"]),
            node("AveragePool", ["n"], ["v"], kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
            node("GlobalAveragePool", ["v"], ["m"]),
            node("Flatten", ["m"], ["f"]),
            node("Gemm", ["f", "l.weight", "l.bias"], ["y"], transB=1),
        ],
        {
            "c.weight": _f32(4, 3, 3, 3), "c.bias": _f32(4), "s": _f32(4),
            "l.weight": _f32(5, 4), "l.bias": _f32(5),
        },
        [1, 3, 16, 16], 20,
    )  # fmt: skip


def _shapes() -> bytes:
    """Returns a file that computes with open sizes."""
    return _file(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axis"], ["n1"]),
            node("Concat", ["n1", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
            node("Slice", ["t", "axis", "ends", "axes"], ["l"]),
            node("ReduceMean", ["l", "axes"], ["m"], keepdims=1),
            node("Softmax", ["m"], ["q"], axis=1),
            node("Pad", ["q", "pads", "half"], ["d"]),
            node("Split", ["d"], ["e", "f"], axis=1, num_outputs=2),
            node("Add", ["e", "f"], ["g"]),
            node("Clip", ["g", "half", ""], ["y"]),
        ],
        {
            "zero": np.int64(0), "axis": np.int64([0]), "rest": np.int64([3, -1]),
            "ends": np.int64([64]), "axes": np.int64([1]), "pads": np.int64([0, 1, 0, 0, 2, 0]),
            "half": np.float32(0.5),
        },
        ["N", 3, 8, 8], 18,
    )  # fmt: skip


def _images() -> bytes:
    """Returns a file with operations on images, and computed constants."""
    return _file(
        [
            node(
                "ConvTranspose", ["x", "w"], ["a"],
                strides=[2, 2], output_padding=[1, 1], pads=[1, 1, 1, 1],
            ),
            node("InstanceNormalization", ["a", "s", "s"], ["i"], epsilon=1e-3),
            node("Resize", ["i", "", "scales"], ["r"], mode="nearest", nearest_mode="floor",
                 coordinate_transformation_mode="asymmetric"),
            node("DepthToSpace", ["r"], ["d"], blocksize=2),
            node("SpaceToDepth", ["d"], ["p"], blocksize=2),
            node("Tile", ["p", "reps"], ["t"]),
            node("ConstantOfShape", ["four"], ["ones"], value=array(np.float32([1]))),
            node("Expand", ["ones", "four"], ["o"]),
            node("Mul", ["t", "o"], ["m"]),
            node("Range", ["zero", "one", "one"], ["k"]),
            node("Cast", ["k"], ["kf"], to=1),
            node("LRN", ["m"], ["n"], size=3),
            node("Add", ["n", "kf"], ["y"]),
        ],
        {
            "w": _f32(3, 4, 3, 3), "s": _f32(4), "scales": np.float32([1, 1, 2, 2]),
            "reps": np.int64([1, 1, 1, 1]), "four": np.int64([1, 1, 1, 1]), "zero": np.int64(0),
            "one": np.int64(1),
        },
        [1, 3, 4, 4], 21,
    )  # fmt: skip


@functools.cache
def seeds() -> list[bytes]:
    """Returns small valid files, which together have the kinds of ops that are read."""
    return [_convolutions(), _shapes(), _images()]


# ---- mutations of parts --------------------------------------------------------------------------


def _attribute(rng: random.Random, model: ModelProto) -> None:
    with_attributes = [node for node in model.graph.node if node.attribute]
    if not with_attributes:
        return
    attribute = rng.choice(rng.choice(with_attributes).attribute)
    kind = rng.randrange(7)
    if kind == 0:
        attribute.name = rng.choice(("axis", "pads", "strides", "group", "mode", "axes", "zzz"))
    elif kind == 1:
        attribute.type = rng.randrange(16)
    elif attribute.type == AttributeProto.INTS and kind < 6:
        values = list(attribute.ints)
        at = rng.randrange(len(values) + 1)
        values[at : at + rng.randrange(2)] = [rng.choice(INTS)] * rng.randrange(4)
        del attribute.ints[:]
        attribute.ints.extend(values)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"linear", b"cubic", b"align_corners", b"VALID", b"\xff"))
    else:
        attribute.i = rng.choice(INTS)


def _weight(rng: random.Random, model: ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(8)
    if kind == 0:
        tensor.data_type = rng.randrange(30)
    elif kind == 1:
        tensor.dims.append(rng.choice(INTS))
    elif kind == 2 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTS)
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif kind == 4:
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            entry = tensor.external_data.add()
            entry.key = key
            entry.value = str(rng.choice((*INTS, "model.onnx", "../x", "/etc/passwd", "", "a/b")))
    elif tensor.data_type == TensorProto.INT64:
        values = np.frombuffer(tensor.raw_data, np.int64).copy()
        if values.size:
            values[rng.randrange(values.size)] = rng.choice(INTS)
            tensor.raw_data = values.tobytes()
    else:
        data = bytearray(tensor.raw_data)
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
            tensor.raw_data = bytes(data)


def _node(rng: random.Random, model: ModelProto) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    node, kind = rng.choice(nodes), rng.randrange(8)
    values = [*(n for each in nodes for n in each.output), *NAMES]
    values += [each.name for each in model.graph.initializer]
    if kind == 0:
        node.op_type = rng.choice((*sorted(OPS), "If", "Loop", "Foo"))
    elif kind == 1 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(values)
    elif kind == 2:
        node.input.append(rng.choice(values))
    elif kind == 3 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(values)
    elif kind == 4:
        nodes.remove(node)
    elif kind == 5:
        nodes.append(node)
    elif kind == 6:
        node.name = rng.choice((*NAMES, "/a/b/Conv", "/forward/Conv"))
    else:
        entry = node.metadata_props.add()
        entry.key = rng.choice(("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"))
        entry.value = rng.choice(("['', 'a.b', 'c']", "['', '_fx_graph', 'c']", "[" * 99, "['']"))


def _frame(rng: random.Random, model: ModelProto) -> None:
    """Changes the inputs, the outputs or the opset."""
    kind = rng.randrange(6)
    dims = model.graph.input[0].type.tensor_type.shape.dim if model.graph.input else []
    if kind == 0:
        model.opset_import[0].version = rng.choice((*range(12, 30), 0, -1, 1 << 62))
    elif kind == 1 and dims:
        rng.choice(dims).dim_value = rng.choice(INTS)
    elif kind == 2 and dims:
        rng.choice(dims).dim_param = rng.choice(("N", "M", ""))
    elif kind == 3 and model.graph.input:
        model.graph.input[0].type.tensor_type.elem_type = rng.randrange(26)
    elif kind == 4 and model.graph.input:
        model.graph.input.append(model.graph.input[0])
        model.graph.input[-1].name = rng.choice(NAMES)
    elif model.graph.output:
        model.graph.output[0].name = rng.choice((*NAMES, "m", "t", "shape"))


MUTATIONS: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    _attribute, _attribute, _attribute, _weight, _weight, _node, _node, _frame,
)  # fmt: skip


def changed_parts(rng: random.Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        with contextlib.suppress(ValueError, TypeError):  # of protobuf: it does not take the value
            rng.choice(MUTATIONS)(rng, model)
    return bytes(model.SerializeToString())


# ---- one case ------------------------------------------------------------------------------------


@functools.cache
def _limit_memory() -> None:
    """Limits the memory of this process to what it has, and EXTRA_BYTES."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _is_small(module: Any) -> bool:
    sizes = [size or 2 for each in module._fx_shapes for size in each]
    return int(np.prod(sizes, dtype=np.float64)) <= MOST_RUN


def _outcome_of(load: Load, folder: Path, rng: random.Random, must_run: bool = False) -> str:
    try:
        module = load(rng, folder)
    except torchalgo.Error as error:
        return f"refused {error.code}"  # type: ignore[attr-defined]
    except BaseException as error:
        raise FindingError(f"{type(error).__name__}: {error}") from None
    if rng.random() < 0.1 and _is_small(module):
        return _run(module, must_run)
    return "loaded"


def _run(module: Any, must_run: bool) -> str:
    """Runs a module. Its ops may ask for too much memory, which torch refuses."""
    inputs = [torch.rand([size or 2 for size in sizes]) for sizes in module._fx_shapes]
    try:
        with torch.no_grad():
            module(*inputs)
    except (torchalgo.Error, RuntimeError, IndexError, ValueError, TypeError) as error:
        if must_run and "memory" not in str(error):
            raise FindingError(f"it does not run: {type(error).__name__}: {error}") from None
        return "loaded, refuses its input"
    return "loaded, ran"


def fuzzer_of(load: Load, must_run: bool = False) -> Callable[[int], list[str]]:
    """Returns the fuzzer of a function that writes a file into a folder and loads it.

    Args:
        must_run: a loaded module that fails is a finding, unless it needs too much memory.
    """

    def fuzz(seed: int) -> list[str]:
        torch.set_num_threads(1)
        _limit_memory()
        outcomes = []
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(20):
                rng = random.Random(20 * seed + i)
                try:
                    outcomes.append(_outcome_of(load, Path(folder), rng, must_run))
                except FindingError as finding:
                    raise FindingError(f"case {i}: {finding}") from None
        return outcomes

    return fuzz


def _loader(change: Callable[[random.Random, bytes], bytes]) -> Load:
    def load(rng: random.Random, folder: Path) -> Any:
        path = folder / "model.onnx"
        path.write_bytes(change(rng, rng.choice(seeds())))
        return torchalgo.load_onnx(path)

    return load


FUZZERS = {
    "bytes": fuzzer_of(_loader(mutated_bytes)),
    "parts": fuzzer_of(_loader(changed_parts)),
}


def load_modules(loads: Iterable[Load]) -> None:
    """Loads files once: torch imports many modules then, which each process would repeat."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for load in loads:
            for seed in range(20):
                _outcome_of(load, Path(folder), random.Random(seed))


if __name__ == "__main__":
    load_modules([_loader(lambda _, data: data)])
    main(__doc__, FUZZERS, isolated.results)
