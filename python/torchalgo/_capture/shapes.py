# SPDX-License-Identifier: BSD-3-Clause
"""The shapes of a call's tensors: their texts, and the choice of a plan by shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchalgo._C import Error
from torchalgo._capture.freeze import tensors_in
from torchalgo._ir.plan import Plan, PlanDim, planned_shapes, shapes_text
from torchalgo._ir.plan_threads import nearest_by_threads

Shapes = tuple[tuple[int, ...], ...]  # all tensors of a call, in the order of its arguments
Dims = Sequence[Sequence[PlanDim]]  # dimensions of the same tensors


def nearest(shapes: list[list[int]], planned: list[list[list[int]]]) -> int:
    """Returns the index of the `planned` shapes that are nearest to `shapes`.

    The distance of two sizes is |log(size / other)|; an empty size counts as 1. The distance of two
    calls is the sum over all dimensions of all tensors. It is infinite if the numbers of tensors or
    dimensions differ. The first of several nearest ones is returned; 0 if all are infinitely far.
    TorchScript compiles this function, so that saved modules follow the same rule.
    """
    best = 0
    least = math.inf
    for i, others in enumerate(planned):
        distance = 0.0
        if len(others) != len(shapes):
            distance = math.inf
        else:
            for j, sizes in enumerate(shapes):
                other = others[j]
                if len(sizes) != len(other):
                    distance = math.inf
                elif sizes != other:
                    for k, size in enumerate(sizes):
                        distance += abs(math.log(max(size, 1) / max(other[k], 1)))
        if distance == 0.0:
            return i
        if distance < least - 1e-9:  # a tie must not depend on rounding
            best, least = i, distance
    return best


def misfit(shapes: list[list[int]], dims: list[list[list[int]]]) -> list[int]:
    """Returns the first tensor and dimension with a wrong size; empty if all sizes are right.

    `dims` holds a variable, the least size and the greatest size per dimension, as `as_numbers`
    makes them. The returned dimension is -1 if the number of tensors or dimensions differs. All
    sizes are right if `dims` is empty.
    """
    if len(dims) == 0:
        return []  # nothing is known: all sizes are right
    if len(shapes) != len(dims):
        return [min(len(shapes), len(dims)), -1]
    values: dict[int, int] = {}
    for i, sizes in enumerate(shapes):
        if len(sizes) != len(dims[i]):
            return [i, -1]
        for k, size in enumerate(sizes):
            variable, least, most = dims[i][k][0], dims[i][k][1], dims[i][k][2]
            if size < least or (most >= 0 and size > most):
                return [i, k]
            if variable >= 0:
                if variable in values and values[variable] != size:
                    return [i, k]
                values[variable] = size
    return []


def are_equal(one: list[list[int]], other: list[list[int]]) -> bool:
    """Returns whether two lists are equal. TorchScript cannot compare lists of lists with ==."""
    if len(one) != len(other):
        return False
    for i, sizes in enumerate(one):  # noqa: SIM110  TorchScript has no all()
        if sizes != other[i]:
            return False
    return True


def choose(
    shapes: list[list[int]],
    planned: list[list[list[int]]],
    dims: list[list[list[list[int]]]],
) -> int:
    """Returns the index of the nearest `planned` shapes whose module is right for `shapes`.

    Returns -1 if no module is right. TorchScript compiles this function, so that saved modules
    follow the same rule.
    """
    fitting: list[int] = []
    near: list[list[list[int]]] = []
    for i, others in enumerate(planned):
        if are_equal(shapes, others):
            return i
        if len(misfit(shapes, dims[i])) == 0:
            fitting.append(i)
            near.append(others)
    if len(fitting) == 0:
        return -1
    return fitting[nearest(shapes, near)]


def explain(
    shapes: list[list[int]],
    planned: list[list[list[int]]],
    dims: list[list[list[list[int]]]],
) -> str:
    """Returns a text that says why `choose` returns -1, based on the nearest plan."""
    i = nearest(shapes, planned)
    where = misfit(shapes, dims[i])
    text = "inputs are " + str(shapes) + ", planned are " + str(planned[i])
    if len(where) == 0 or where[1] < 0:
        return text + ": another number of tensors or dimensions"
    tensor, dim = where[0], where[1]
    size = dims[i][tensor][dim]
    allowed = str(size[1])
    if size[1] == size[2]:
        allowed = "only " + allowed
    elif size[2] >= 0:
        allowed = allowed + " to " + str(size[2])
    else:
        allowed = allowed + " or more"
    if size[0] >= 0:
        allowed = allowed + ", with equal sizes where the model joins tensors"
    text += ": dimension " + str(dim) + " of tensor " + str(tensor) + " takes " + allowed
    return text + ". Optimize the model for these shapes as well (docs/shapes.md)"


def as_numbers(dims: Dims | None) -> list[list[list[int]]]:
    """Returns `dims` for TorchScript: a variable, the least size and the greatest size of each.

    -1 is the variable of a pinned dimension, and a missing limit. The list is empty if `dims` is
    None.
    """
    dims = dims or []
    names = list(dict.fromkeys(dim.name for tensor in dims for dim in tensor if dim.name))
    return [
        [
            [names.index(d.name) if d.name else -1, d.least, -1 if d.most is None else d.most]
            for d in tensor
        ]
        for tensor in dims
    ]


def fits(shapes: Shapes, dims: Dims) -> bool:
    """Returns whether a module with these dims is right for tensors of these shapes."""
    return not misfit([list(sizes) for sizes in shapes], as_numbers(dims))


def shapes_of(arguments: Sequence[Any]) -> Shapes:
    """Returns the shapes of all tensors among a call's arguments, also inside lists and dicts."""
    try:
        return tuple([value.shape for value in arguments])  # the usual case: all are tensors
    except AttributeError:
        return tuple([tensor.shape for tensor in tensors_in(tuple(arguments))])


def planned_dims(plan: Plan) -> Dims | None:
    """Returns the sizes for which a plan's module is right; None if they are not known."""
    dims = [given.dims for given in plan.inputs]
    return None if None in dims or not dims else [d for d in dims if d is not None]


def plan_for(plans: Sequence[Plan], inputs: tuple[Any, ...]) -> Plan:
    """Returns the plan that was made for the shapes of `inputs`.

    If there are several, returns the one that was measured with the nearest number of threads.

    Raises: torchalgo.Error if there is none.
    """
    shapes = shapes_of(inputs)
    if fitting := [plan for plan in plans if planned_shapes(plan) == shapes]:
        return nearest_by_threads(fitting)
    known = "; ".join(shapes_text(planned_shapes(plan)) for plan in plans)
    raise Error(
        f"TA1304 optimize: there is no plan for inputs of {shapes_text(shapes)}; plans exist for"
        f" {known}: call with one of these, or optimize for more shapes"
    )
