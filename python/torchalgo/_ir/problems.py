# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions as problems: their texts, their gradients, and the convolutions of a module."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32
from torchalgo._base.running_layers import Layers, in_eval_mode
from torchalgo._C import Error
from torchalgo._ir.choices import DTYPES, TORCH_DTYPES, Direction, near

DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd_data", "bwd_filter")
# The words for them in arguments, beside the spellings of problems.
DIRECTION_WORDS = dict(
    zip(("forward", "backward_data", "backward_filter"), DIRECTIONS, strict=True)
)
OWN_KIND = "torchalgo::"  # begins the kinds of torchalgo's own ops, which have no choice
DirectionWord = Literal[Direction, "forward", "backward_data", "backward_filter"]
Directions = DirectionWord | Literal["all"] | Sequence[DirectionWord]


def bare_convolution(problem: str, what: str) -> str:
    """Returns the canonical text of a convolution without its epilogue.

    Raises: torchalgo.Error if `problem` is anything else.
    """
    if not isinstance(problem, str):
        raise Error(
            f"TA4001 {what}: {problem!r} is no problem; expected one such as"
            " 'fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1'"
        )
    spelled = str(_C.parse_problem(problem)).partition("+")[0]
    if not is_convolution(spelled):
        raise Error(f"TA4002 {what}: {problem!r} is no convolution, expected one")
    return spelled


def is_convolution(problem: str) -> bool:
    """Returns whether `problem` is one convolution. A chain of convolutions is not."""
    return problem.startswith(("fwd_", "bwd_data_", "bwd_filter_"))


def is_weight_gradient(problem: str) -> bool:
    """Returns whether a problem computes the gradient of a convolution's weights."""
    return problem.startswith("bwd_filter_")


def has_convolution(problem: str) -> bool:
    """Returns whether `problem` is a convolution or a chain of them."""
    return problem.startswith(("fwd_", "bwd_data_", "bwd_filter_", "chain_"))


@functools.lru_cache(maxsize=1 << 14)
def weight_count(problem: str) -> int:
    """Returns the number of elements of the weights of all layers of `problem`, without biases."""
    sizes = map(_C.weight_sizes, _C.layers_of(problem))
    return sum(math.prod(each) for each in sizes if each)


def is_other_operation(name: str, reason: str) -> bool:
    """Returns whether the algorithm `name`, which refuses a convolution, computes other operations.

    `reason` is its refusal. Such an algorithm refuses a change of layout for the same reason.
    """
    return name.startswith("layout.") or _refusals_of_a_transform().get(name) == reason


@functools.cache
def _refusals_of_a_transform() -> dict[str, str]:
    refusals = _C.offers_of("transform_f32_n1c16h8w8_nchw_nhwc")[2]
    return {refusal.primitive: refusal.reason for refusal in refusals}


def direction_of(problem: str) -> Direction:
    """Returns the direction of a convolution."""
    return next(d for d in reversed(DIRECTIONS) if problem.startswith(f"{d}_"))


def dtype_of(problem: str) -> str:
    """Returns the compute type in a problem's text: "f32" for "fwd_f32_n1..."."""
    return next((part for part in problem.split("_") if part in DTYPES), "f32")


def with_direction(problem: str, direction: Direction) -> str:
    """Returns the problem with the same sizes in another direction, without its epilogue.

    Returns `problem` unchanged if it already has this direction.
    """
    own = direction_of(problem)
    return problem if own == direction else direction + problem.partition("+")[0][len(own) :]


def with_dtype(problem: str, dtype: str) -> str:
    """Returns the same problem in another compute type."""
    start = f"{direction_of(problem)}_"
    _, _, sizes = problem.removeprefix(start).partition("_")
    return f"{start}{dtype}_{sizes}"


def gradient_of(problem: str, direction: Direction) -> str:
    """Returns the problem that a layer computes in `direction` if its forward is `problem`.

    The gradient of a transposed convolution's input is an ordinary convolution.
    """
    if direction_of(problem) == "bwd_data":
        turned: dict[Direction, Direction] = {"fwd": "bwd_data", "bwd_data": "fwd"}
        direction = turned.get(direction, direction)
    return with_direction(problem, direction)


def check_directions(directions: str | Sequence[str] | None, what: str) -> tuple[Direction, ...]:
    """Returns the directions for a word, several words, or "all"; () for None.

    A word is "forward", "backward_data" or "backward_filter", or the direction's spelling in a
    problem: "fwd", "bwd_data" or "bwd_filter".

    Raises: torchalgo.Error if a word is unknown.
    """
    if directions is None:
        return ()
    words = [directions] if isinstance(directions, str) else list(directions)
    if words == ["all"]:
        return DIRECTIONS
    for word in words:
        if word not in (*DIRECTION_WORDS, *DIRECTIONS):
            raise Error(
                f"TA4006 {what}: direction {word!r}, expected {', '.join(DIRECTION_WORDS)} or"
                f" all{near(str(word), list(DIRECTION_WORDS))}"
            )
    spelled = {DIRECTION_WORDS.get(word, word) for word in words}
    return tuple(d for d in DIRECTIONS if d in spelled)


def check_dtype(dtype: str | torch.dtype | None, what: str) -> str | None:
    """Returns the name of a compute type; None for None.

    Raises: torchalgo.Error if the type is unknown.
    """
    word = TORCH_DTYPES.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if dtype is not None and word not in DTYPES:
        raise Error(f"TA4007 {what}: dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    return word


def spell_convolution(
    direction: Direction,
    dtype: str,
    src: Sequence[int],
    weights: Sequence[int],
    geometry: Sequence[Sequence[int]],
    groups: int,
) -> str:
    """Returns the text of a 1-D to 3-D convolution.

    Args:
        src: the forward convolution's [n, c, (d,) (h,) w].
        weights: its [k, c / groups, (t,) (r,) s].
        geometry: its stride, padding and dilation, each per dimension.
    """
    image, filters = list(src[2:]), list(weights[2:])
    stride, padding, dilation = map(list, geometry)
    if len(image) == 1:
        image, filters = [1, *image], [1, *filters]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    sizes = "".join(f"{a}{b}" for a, b in zip("dhw"[-len(image) :], image, strict=True))
    window = "".join(f"{a}{b}" for a, b in zip("trs"[-len(image) :], filters, strict=True))
    lists = ["x".join(map(str, numbers)) for numbers in (stride, padding, dilation)]
    return (
        f"{direction}_{dtype}_n{src[0]}c{src[1]}{sizes}_k{weights[0]}{window}"
        f"_st{lists[0]}_pad{lists[1]}_dil{lists[2]}_g{groups}"
    )


# ---- of a module ---------------------------------------------------------------------------------


class LayerProblem(NamedTuple):
    """The problem of a layer's forward. `name` is the path of its module."""

    name: str
    problem: str


def problems_of(module: nn.Module, inputs: tuple[Any, ...], device_kind: str) -> list[LayerProblem]:
    """Returns the convolutions that `module` runs, in order: 1-D to 3-D, functional calls included.

    Runs the module once, in eval mode and without gradients. Restores the training flags
    afterwards.

    Args:
        inputs: forward's positional arguments.
        device_kind: "cpu" or "cuda", where it will run. On "cuda" float32 is TF32 if torch allows
            it.
    Raises: torchalgo.Error if the module fails, or runs no convolution.
    """
    found: list[LayerProblem] = []
    with Layers(module) as layers, in_eval_mode(module), torch.no_grad():
        mode = _Listener(found, layers, device_kind)
        try:
            with mode:
                module(*inputs)
        except Error:
            raise
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise Error(f"TA1110 the module fails on these inputs: {lines[-1]}") from problem
    if not found:
        raise Error("TA4002 the module ran no convolution on these inputs, expected one or more")
    return found


class _Listener(TorchDispatchMode):
    """A dispatch mode that records each call of a convolution."""

    def __init__(self, found: list[LayerProblem], layers: Layers, device_kind: str) -> None:
        super().__init__()
        self._found, self._layers, self._device_kind = found, layers, device_kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace, _, op = func._schema.name.partition("::")
        if namespace in ("aten", "torchalgo") and op in _CONVOLUTIONS:
            names = [argument.name for argument in func._schema.arguments]
            values = dict(zip(names, args, strict=False)) | kwargs
            problem = _problem_of_call(op, values, self._device_kind)
            self._found.append(LayerProblem(self._layers.current, problem))
        return func(*args, **kwargs)


_CONVOLUTIONS = {
    "convolution",
    "convolution_overrideable",
    *(f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3)),
}


def _problem_of_call(op: str, call: dict[str, Any], device_kind: str) -> str:
    src, weights = call["input"], call["weight"]
    dims = weights.dim() - 2
    sizes = list(src.shape) if src.dim() == dims + 2 else [1, *src.shape]
    geometry = [
        numbers * dims if len(numbers) == 1 else numbers
        for numbers in (
            list(call.get(name, [default]))
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
    ]
    dtype = compute_type(src.dtype, device_kind)
    groups = int(call.get("groups", 1))
    if not (call.get("transposed", False) or "transpose" in op):
        return spell_convolution("fwd", dtype, sizes, list(weights.shape), geometry, groups)
    stride, padding, dilation = geometry
    extra = list(call.get("output_padding", [0]))
    extra = extra * dims if len(extra) == 1 else extra
    image = [
        (size - 1) * stride[i]
        - 2 * padding[i]
        + dilation[i] * (weights.shape[2 + i] - 1)
        + extra[i]
        + 1
        for i, size in enumerate(sizes[2:])
    ]
    result = [sizes[0], weights.shape[1] * groups, *image]
    return spell_convolution("bwd_data", dtype, result, list(weights.shape), geometry, groups)


def compute_type(dtype: torch.dtype, device_kind: str) -> str:
    """Returns the compute type of tensors of `dtype` on a kind of device, by torch's flags.

    Raises: torchalgo.Error if convolutions have no such type.
    """
    if dtype not in TORCH_DTYPES:
        raise Error(
            f"TA4007 a convolution of {dtype} tensors cannot be written as a problem, expected one"
            f" of {', '.join(DTYPES)}"
        )
    word = TORCH_DTYPES[dtype]
    return "tf32" if word == "f32" and device_kind == "cuda" and convolutions_use_tf32() else word
