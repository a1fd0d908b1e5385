# SPDX-License-Identifier: BSD-3-Clause
"""Makes the calls for which a model is planned, from example arguments and shapes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchalgo._base import trees
from torchalgo._C import Error
from torchalgo._capture.formats import format_of
from torchalgo._capture.freeze import as_inputs
from torchalgo._capture.shapes import Shapes
from torchalgo._ir.plan import shapes_text

ModelCall = tuple[tuple[Any, ...], Mapping[str, Any]]  # args, kwargs

# The shapes of one call: of its only tensor, or of each of its tensors.
CallShapes = Sequence[int] | Sequence[Sequence[int]]


def example_calls(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    shapes: Sequence[CallShapes] | None = None,
) -> list[ModelCall]:
    """Returns the calls for which `model` is planned, one for each plan.

    Without `shapes`, this is the one call with the example arguments. With `shapes`, it is a call
    for each of them. Its tensors repeat the values of the example's. Without example arguments, the
    tensors are random.

    Raises: torchalgo.Error if the arguments do not fit forward, if there are no shapes, if two
        calls have the same shapes, or if the shapes do not fit the example arguments.
    """
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        raise Error(
            f"TA1206 optimize: example_kwargs is {type(example_kwargs).__name__}, expected a dict"
            " of forward's keyword arguments"
        )
    if shapes is None:
        return [_example(model, example_inputs, example_kwargs)]
    wanted = _checked(shapes)
    if example_inputs is None and example_kwargs is None:
        return [(random_inputs(model, each), {}) for each in wanted]
    example = _example(model, example_inputs, example_kwargs)
    return [_resized(example, each) for each in wanted]


def _example(
    model: nn.Module, example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> ModelCall:
    if example_kwargs is not None and (example_inputs is None or example_inputs in ((), [])):
        return (), example_kwargs
    arguments = as_inputs(example_inputs)
    if isinstance(example_inputs, list) and not _takes(model, arguments, example_kwargs or {}):
        raise Error(
            f"TA1301 optimize: example_inputs is a list of {len(arguments)} arguments, which"
            " forward does not take. For several plans, give one example and the shapes, such as"
            " shapes=[(1, 3, 224, 224), (8, 3, 224, 224)]. If forward takes one list, give a tuple"
            " that holds the list"
        )
    return arguments, example_kwargs or {}


def _takes(model: nn.Module, arguments: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether forward accepts these arguments, as far as its signature tells."""
    try:
        inspect.signature(model.forward).bind(*arguments, **kwargs)
    except ValueError:  # a function without a signature
        return True
    except TypeError:
        return False
    return True


# ---- shapes --------------------------------------------------------------------------------------


def _checked(shapes: Sequence[CallShapes]) -> list[Shapes]:
    """Returns the shapes of all tensors of each call."""
    if not isinstance(shapes, (list, tuple)) or not shapes or isinstance(shapes[0], int):
        raise _no_shapes("shapes", shapes)
    found: list[Shapes] = []
    for i, given in enumerate(shapes):
        if not isinstance(given, (list, tuple)):
            raise _no_shapes(f"shapes[{i}]", given)
        # One shape is one tensor's; a call without tensors has no plan.
        each = (given,) if all(type(size) is int for size in given) else given
        for sizes in each:
            is_list = isinstance(sizes, (list, tuple))
            if not is_list or any(type(size) is not int or size < 0 for size in sizes):
                raise _no_shapes(f"shapes[{i}]", given)
        found.append(tuple(tuple(sizes) for sizes in each))
        if found.index(found[i]) < i:
            raise Error(
                f"TA1302 optimize: shapes[{found.index(found[i])}] and shapes[{i}] are both"
                f" {shapes_text(found[i])}; expected one entry for each plan"
            )
    return found


def _no_shapes(name: str, given: object) -> Error:
    return Error(
        f"TA1301 optimize: {name} is {given!r}, expected a shape for each plan, such as [(1, 3,"
        " 224, 224), (8, 3, 224, 224)]; for a model of several tensors, a list of shapes for each"
        " plan, such as [[(1, 3, 224, 224), (1, 10)]]"
    )


def _resized(example: ModelCall, shapes: Shapes) -> ModelCall:
    """Returns the example call with tensors of other shapes, which repeat its values."""
    tensors: list[torch.Tensor] = []
    tree = trees.flatten(example, "the call", tensors, [])
    if len(tensors) != len(shapes):
        raise Error(
            f"TA1301 optimize: an entry of shapes is {shapes_text(shapes)}, which has {len(shapes)}"
            f" tensors; the example inputs have {len(tensors)}: give a shape for each"
        )
    made = [resized(tensor, sizes) for tensor, sizes in zip(tensors, shapes, strict=True)]
    call: ModelCall = trees.rebuild(tree, iter(made))
    return call


def resized(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Returns a tensor of these sizes that repeats the values of `tensor`, or has a part of them.

    So indices stay in their range, and images stay images. The layout in memory stays the same.

    Raises: torchalgo.Error if it has another number of dimensions, or no values to repeat.
    """
    if tuple(tensor.shape) == tuple(sizes):
        return tensor
    is_empty = tensor.numel() == 0 and 0 not in sizes
    if tensor.dim() != len(sizes) or is_empty:
        raise Error(
            f"TA1301 optimize: shapes has {shapes_text((tuple(sizes),))} for a tensor whose example"
            f" is {shapes_text((tuple(tensor.shape),))}, expected {tensor.dim()}"
            f" dimensions{' and an example with values' if is_empty else ''}"
        )
    made = tensor.detach()
    for dim, size in enumerate(sizes):
        count = made.shape[dim]
        where = torch.arange(size, device=made.device) % max(count, 1)
        made = made.index_select(dim, where[: size if count else 0])
    layout = format_of(tensor)
    return made if layout is None else made.contiguous(memory_format=layout)


def random_inputs(model: nn.Module, shapes: Sequence[Sequence[int]]) -> tuple[torch.Tensor, ...]:
    """Returns a random tensor for each shape, in the type of the model's first float parameter.

    The tensors are on its device. The type is f32 if the model has no such parameter. The values
    are the same in each process.

    Raises: torchalgo.Error if the tensors cannot be made, for example for want of memory.
    """
    generator = torch.Generator().manual_seed(0)
    floats = (p for p in model.parameters() if p.is_floating_point() or p.is_complex())
    like = next(floats, torch.empty(0, dtype=torch.float32))
    try:
        return tuple(
            torch.rand(list(shape), generator=generator).to(like.device, like.dtype)
            for shape in shapes
        )
    except (RuntimeError, MemoryError) as problem:
        reason = (str(problem).strip().splitlines() or ["no message"])[0]
        raise Error(
            f"TA1303 optimize: cannot make inputs of {shapes_text(tuple(map(tuple, shapes)))}:"
            f" {reason}; give example_inputs of your own"
        ) from None
