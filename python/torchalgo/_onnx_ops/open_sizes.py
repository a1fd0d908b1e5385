# SPDX-License-Identifier: BSD-3-Clause
"""The sizes that a file leaves open: the numbers that stand for them, and which ones are equal.

Exporters often give open sizes no name, or a name of their own in each input, although the graph
adds or joins the inputs. The reader first takes all such sizes as different. If a node refuses
this, the reader tries which of them must be equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torchalgo._onnx_ops.network import Input

# An open size is its name. Without a name, it is the position of its input and its dimension.
Key = str | tuple[int, int]
Shapes = list[list[int | Key]]  # by input
Group = list[tuple[int, int]]  # inputs and dimensions whose sizes are equal

# Two choices of the open sizes. They are large, with many factors of 2, so that halving them again
# and again leaves whole numbers, and that no sizes of a model are equal to them by chance.
_PRIMES = (
    (3, 5), (7, 11), (13, 17), (19, 23), (29, 31), (37, 41), (43, 47), (53, 59), (61, 67),
    (71, 73), (79, 83), (89, 97), (101, 103), (107, 109), (113, 127), (131, 137),
)  # fmt: skip
OPEN = 1 << 12
_MOST_INPUTS = 8  # with more inputs, no two of them are tried alone


def open_shapes(inputs: Sequence[Input]) -> Shapes:
    """Returns the sizes of the inputs as the file has them. Sizes of the same name are equal."""
    return [
        [(i, dim) if size is None else size for dim, size in enumerate(each.sizes)]
        for i, each in enumerate(inputs)
    ]


def numbers_for(shapes: Shapes) -> tuple[int, dict[int | Key, tuple[int, ...]]]:
    """Returns the number of choices of the open sizes, and the numbers of each size."""
    keys = dict.fromkeys(size for sizes in shapes for size in sizes if not isinstance(size, int))
    choices = 2 if keys else 1
    numbers: dict[int | Key, tuple[int, ...]] = {
        key: tuple(OPEN * prime for prime in _PRIMES[i % len(_PRIMES)])
        for i, key in enumerate(keys)
    }
    numbers |= {n: (n,) * choices for sizes in shapes for n in sizes if isinstance(n, int)}
    return choices, numbers


def more_equal(shapes: Shapes) -> Iterator[Shapes]:
    """Yields shapes in which further open sizes are equal, those with the fewest changes first.

    Open sizes of the same dimension are made equal before an open size gets a fixed one, and both
    before all open lengths behind the batch are made equal.
    """
    inputs = range(len(shapes))
    pairs = list(itertools.combinations(inputs, 2)) if len(inputs) <= _MOST_INPUTS else []
    for with_fixed in (False, True):
        of_pairs = [_same_dimensions(shapes, pair, with_fixed) for pair in pairs]
        of_all = _same_dimensions(shapes, inputs, with_fixed)
        single = [[group] for groups in [*of_pairs, of_all] for group in groups]
        yield from _each_once(shapes, [*single, *of_pairs, of_all])
    behind = [
        (i, dim)
        for i, sizes in enumerate(shapes)
        for dim, size in enumerate(sizes)
        if dim and not isinstance(size, int)
    ]
    batch = [group for group in _same_dimensions(shapes, inputs, False) if group[0][1] == 0]
    yield from _each_once(shapes, [[*batch, behind]])


def _same_dimensions(shapes: Shapes, inputs: Sequence[int], with_fixed: bool) -> list[Group]:
    """Returns the groups of sizes of these inputs at the same dimension, if one is open."""
    groups = []
    for dim in range(max((len(shapes[i]) for i in inputs), default=0)):
        group = [(i, dim) for i in inputs if dim < len(shapes[i])]
        is_open = [not isinstance(shapes[i][dim], int) for i, _ in group]
        if not with_fixed:
            group = list(itertools.compress(group, is_open))
        if any(is_open) and len(group) > 1:
            groups.append(group)
    return groups


def _each_once(shapes: Shapes, tries: Sequence[Sequence[Group]]) -> Iterator[Shapes]:
    seen = [shapes]
    for groups in tries:
        changed = shapes
        for group in groups:
            changed = _with_equal(changed, group)
        if changed not in seen:
            seen.append(changed)
            yield changed


def _with_equal(shapes: Shapes, group: Group) -> Shapes:
    """Returns the shapes with equal sizes in the group, or as they are if it has two fixed ones."""
    sizes = list(dict.fromkeys(shapes[i][dim] for i, dim in group))
    fixed = [size for size in sizes if isinstance(size, int)]
    if len(fixed) > 1 or not sizes:
        return shapes
    first = (fixed or sizes)[0]
    return [[first if size in sizes else size for size in each] for each in shapes]


def sizes_to_check(given: Shapes, shapes: Shapes) -> list[list[int | str | None]]:
    """Returns the sizes that calls must have: fixed ones, and a word for sizes that are equal.

    Sizes to which the file gives the same name are not compared.

    Args:
        given: the sizes as the file has them.
        shapes: the sizes for which the module was made.
    """
    pairs = [pair for both in zip(shapes, given, strict=True) for pair in zip(*both, strict=True)]
    own = {size: {name for other, name in pairs if other == size} for size, _ in pairs}
    words = {size: str(i) for i, (size, names) in enumerate(own.items()) if len(names) > 1}
    return [
        [size if isinstance(size, int) else words.get(size) for size in sizes] for sizes in shapes
    ]


def remedy(inputs: Sequence[Input]) -> str:
    """Returns what to do if the nodes do not fit the open sizes; empty if no size is open."""
    shapes = open_shapes(inputs)
    for group in _same_dimensions(shapes, range(len(inputs)), False):
        if len({shapes[i][dim] for i, dim in group}) > 1:
            names = [repr(inputs[i].name[:100]) for i, _ in group]
            axes = ", ".join(f"{name}: {{{group[0][1]}: 'n'}}" for name in names[:2])
            return (
                f"the open sizes of its inputs {', '.join(names[:4])} have no common name, and"
                " equal sizes do not fit either. Export it with one name for sizes that are equal,"
                f" such as dynamic_axes={{{axes}}}, or with fixed sizes"
            )
    is_open = any(not isinstance(size, int) for sizes in shapes for size in sizes)
    return "the file leaves sizes open: export it with fixed sizes" if is_open else ""
