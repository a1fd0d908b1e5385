# SPDX-License-Identifier: BSD-3-Clause
"""Numbers that describe a candidate for a cost model: sizes, work, tile tails, layouts, fusions.

Each number follows from the problem, the primitive and the peaks. The size of packed weights is
used only for our own algorithms. On AVX2 oneDNN pads its weights differently for other numbers of
threads, so that the same costs would give other predictions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torchalgo import _C
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Key
from torchalgo._ir.plan import LAYOUTS
from torchalgo._ir.problems import dtype_of, weight_count

ACTIVATION_FEATURES = ("relu", "hardswish", "hardsigmoid", "silu", "sigmoid")
# Activations that are treated as one of these, which takes about as long.
_ALIKE = {
    "relu6": "relu", "clamp": "relu", "leaky_relu": "relu",
    "mish": "silu", "tanh": "silu", "elu": "silu",
}  # fmt: skip
_ACTIVATION = re.compile(
    rf"(?:^|\+)({'|'.join((*_ALIKE, *ACTIVATION_FEATURES))})[-\d.ex]*(?=[_+]|$)"
)
TYPES = ("f64", "f32", "tf32", "f16", "bf16")
DIRECTIONS = ("bwd_data", "bwd_filter")  # fwd has none of them

_PAIRS = {"st": 1, "pad": 0, "dil": 1}  # the sizes of a pair, and their default


@dataclass(frozen=True)
class Features:
    """The description of a candidate for a cost model.

    `category` is the kind of the operation and the name of the primitive. `numbers` are in the
    order in which features_of makes them. `floor_ticks` is the lower bound, at least 1. The model
    predicts costs as multiples of it.
    """

    category: str
    activation: str  # fused, or computed alone; empty if there is none
    numbers: tuple[float, ...]
    floor_ticks: int


def activation_of(problem: str) -> str:
    """Returns the activation in a problem's text; empty if there is none."""
    names = {_ALIKE.get(name, name) for name in _ACTIVATION.findall(problem)}
    return next((a for a in ACTIVATION_FEATURES if a in names), "")


def without_activation(problem: str) -> str:
    """Returns the problem without its fused activation. A chain is returned unchanged."""
    if problem.startswith("chain_"):
        return problem
    head, *post_ops = problem.split("+")
    return "+".join([head, *(p for p in post_ops if not activation_of(p))])


def activation_alone(problem: str) -> str | None:
    """Returns the problem of the activation that is fused to a 4-D `problem`.

    Returns None if there is none, or if `problem` is a chain.
    """
    if problem.startswith("chain_"):
        return None
    act = next((p for p in problem.split("+")[1:] if activation_of(p)), None)
    sizes = _C.tensor_sizes(problem)[1]
    if act is None or len(sizes) != 4:
        return None
    n, c, h, w = sizes
    return f"{act}_{dtype_of(problem)}_n{n}c{c}h{h}w{w}"


def features_of(key: Key, peaks: Peaks) -> Features:
    """Returns the features of a candidate.

    Raises torchalgo.Error if `key.problem` is no problem.
    """
    primitive = _C.Primitive(key.primitive, key.src, key.dst)
    head = key.problem.partition("+")[0]
    category = f"{'act' if activation_of(head) else head.split('_')[0]}:{key.primitive}"
    floor = max(1, peaks.bound_ticks(key.problem, primitive))
    numbers = {**_work(key, primitive, floor), **_shape(key), **_words(key)}
    return Features(category, activation_of(key.problem), tuple(numbers.values()), floor)


def _work(key: Key, primitive: _C.Primitive, floor: int) -> dict[str, float]:
    inputs, result = _C.tensor_sizes(key.problem)
    weights = weight_count(key.problem)
    flops, size = _C.least_work(key.problem, primitive)
    definition = _C.flop_count(key.problem)
    is_own = weights and key.primitive.startswith("cpu.")
    packed = _C.packed_bytes(key.problem, primitive) if is_own else 0
    return {
        "floor": _log(floor),
        "own_flops": _log(1 + flops),
        "flops": _log(1 + definition),
        "bytes": _log(size),
        "intensity": _log((1 + definition) / max(size, 1)),
        "src_elements": _log(sum(map(math.prod, inputs))),
        "dst_elements": _log(math.prod(result)),
        "weights": _log(1 + weights),
        "packed_bytes": _log(1 + packed),
        "inputs": len(inputs),
        "narrowest_input": _log(min((i[1] for i in inputs if len(i) > 1), default=1)),
    }


def _shape(key: Key) -> dict[str, float]:
    head = key.problem.partition("+")[0]
    inputs, result = _C.tensor_sizes(key.problem)
    n, c, h, w = _four(inputs[0])
    _, k, p, q = _four(result)
    filters = re.search(r"r(\d+)s(\d+)", head)
    r, s = map(int, filters.groups()) if filters else (1, 1)
    has_groups = re.search(r"_g(\d+)", head)
    groups = int(has_groups[1]) if has_groups else 1
    shape = {
        "n": _log(n), "c": _log(c), "hw": _log(h * w), "h": _log(h), "w": w,
        "k": _log(k), "pq": _log(p * q), "q": q, "r": _log(r), "s": _log(s), "rs": _log(r * s),
        "groups": _log(groups), "c_of_group": _log(c / groups), "k_of_group": _log(k / groups),
        "is_depthwise": float(groups == c > 1), "gemm_depth": _log(c / groups * r * s),
        # Used share of the results that whole tiles would compute.
        "c_fill": _fill(c, 16), "k_fill": _fill(k, 16), "q_fill": _fill(q, 14),
        "tile_fill": _fill(p, 4) * _fill(q, 4), "pixel_tail": p * q % 16, "k_tail": k % 64,
    }  # fmt: skip
    for tag, default in _PAIRS.items():
        pair = re.search(rf"_{tag}(\d+)x(\d+)", head)
        shape[tag] = float(pair[1]) if pair else default
    return shape


def _words(key: Key) -> dict[str, float]:
    post_ops = key.problem.split("+")[1:]
    activation = activation_of(key.problem)
    words = re.split(r"[_+]", key.problem)
    return {
        "bias": float("bias" in post_ops),
        "add": float("add" in post_ops),
        "channelwise": float("channelwise" in words),
        **{act: float(act == activation) for act in ACTIVATION_FEATURES},
        **{f"src_{layout}": float(key.src == layout) for layout in LAYOUTS},
        **{f"dst_{layout}": float(key.dst == layout) for layout in LAYOUTS},
        **{direction: float(key.problem.startswith(direction)) for direction in DIRECTIONS},
        "dtype": TYPES.index(dtype_of(key.problem)),
    }


def _log(number: float) -> float:
    return math.log2(max(number, 1e-3))


def _fill(size: int, tile: int) -> float:
    return size / (math.ceil(size / tile) * tile)


def _four(sizes: list[int]) -> list[int]:
    """Returns n, c, h, w, with 1 for missing sizes. Of more sizes, h and w are the last two."""
    padded = [*sizes, 1, 1, 1, 1]
    return padded[:4] if len(sizes) <= 4 else [*sizes[:2], *sizes[-2:]]
