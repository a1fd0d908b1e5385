# SPDX-License-Identifier: BSD-3-Clause
"""Proves for which input sizes a capture computes the same as the model: docs/decisions/0015.

A capture records one run. It is right for other sizes if the model's Python code takes the same
path there. This module runs the model once with symbolic sizes and fake tensors. It records each
comparison of a size, and each number that Python code makes from a size. A dimension is free in the
range in which interval arithmetic proves that all of them stay the same. Every other dimension is
pinned.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchalgo._capture.window_shapes import WINDOWED, same_shape
from torchalgo._ir.plan import PlanDim

MOST_OPERATIONS = 400  # in one expression; larger ones take too long
MOST_WORK = 60_000  # characters of all expressions; ConvNeXt has 32,000 of them
MOST_SIZE = 1 << 31
MOST_PROBE = 256  # largest size at which a capture is tested

_patch_config: Any = getattr(_config, "patch")  # noqa: B009  torch adds it at run time

Sizes = tuple[tuple[int, ...], ...]


class NotProvenError(Exception):
    """The error of a symbolic run that proves nothing. Its text says why."""


class _Environment(ShapeEnv):
    """A ShapeEnv that records the questions about symbolic sizes, and the code that asked."""

    def __init__(self) -> None:
        super().__init__(specialize_zero_one=False, duck_shape=False)
        self.op: Any = None  # the op that runs now
        self.work = 0
        self.asked: list[sympy.Basic] = []
        self.formulas: dict[sympy.Symbol, sympy.Basic] = {}  # sizes of windowed results

    def evaluate_sym_node(
        self, sym_node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> sympy.Basic:
        expression = sym_node.expr
        self.work += len(str(expression))
        if self.work > MOST_WORK:
            raise NotProvenError("its sizes are computed by long formulas")
        answer = super().evaluate_sym_node(sym_node, size_oblivious, fallback_value)
        if expression.free_symbols and not self._is_harmless(answer):
            self.keep(expression, answer)
        return answer

    def keep(self, expression: sympy.Basic, answer: Any) -> None:
        """Records that Python code relies on this value of the expression."""
        if expression.count_ops() > MOST_OPERATIONS:
            raise NotProvenError("its sizes are computed by long formulas")
        if answer is True or answer is sympy.true:
            self.asked.append(expression)
        elif answer is False or answer is sympy.false:
            self.asked.append(sympy.Not(expression))
        else:
            self.asked.append(sympy.Eq(expression, answer, evaluate=False))

    def pin(self, number: Any) -> None:
        """Records that Python code has read the value of this symbolic number."""
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            for symbol in number.node.expr.free_symbols:
                self.keep(symbol, self.backed_var_to_val[symbol])

    def _is_harmless(self, answer: Any) -> bool:
        """Returns whether torch asked for its own use, for example to choose a memory format."""
        if not isinstance(answer, (bool, sympy.logic.boolalg.BooleanAtom)):
            return False  # Python code made a number from a size
        return self.op is not None or _is_asked_by_torch()

    def atom(self, formula: sympy.Basic | int, hint: int) -> Any:
        """Returns a symbolic size with this formula, which torch treats like a size of an input."""
        if isinstance(formula, (int, sympy.Integer)):
            return int(formula)
        for symbol, known in self.formulas.items():
            if known == formula:
                return self.create_symintnode(symbol, hint=hint)
        source = ConstantSource(f"windowed{len(self.formulas)}")
        symbol = self.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        self.formulas[symbol] = formula
        return self.create_symintnode(symbol, hint=hint, source=source)


_TORCH = str(Path(torch.__file__).parent) + "/"
# Files of torch that compute an op, and files that only pass a question to the environment.
_OPS = ("_decomp/", "_refs/", "_prims", "_meta_registrations", "_subclasses/")
_CARRIERS = ("__init__.py", "fx/experimental/", "utils/", "_ops.py", "_compile.py", "_dynamo/")


def _is_asked_by_torch() -> bool:
    """Returns whether an op asks, and not the Python code around ops.

    C++ code names the file that asks.
    """
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TORCH):
            name = name[len(_TORCH) :]
            if name.startswith(_OPS):
                return True
            is_carrier = name.startswith(_CARRIERS)
            if frame.f_code.co_name == "guard_bool" and frame.f_locals.get("file"):
                return True
            if not is_carrier:
                return False
        elif name != __file__:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _Ops(TorchDispatchMode):
    """A dispatch mode that knows the running op, and computes shapes with short formulas."""

    def __init__(self, environment: _Environment) -> None:
        super().__init__()
        self.environment = environment

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        environment = self.environment
        before, environment.op = environment.op, func
        try:
            if func._schema.name == "aten::squeeze":
                self._keep_rank(args[0], *args[1:])
            shape = WINDOWED.get(func)
            result = None if shape is None else shape(environment, *args, **kwargs)
            if result is None:
                result = same_shape(func, args)
            return func(*args, **kwargs) if result is None else result
        finally:
            environment.op = before

    def _keep_rank(self, tensor: torch.Tensor, dims: Any = None) -> None:
        """Records that these sizes are not 1: squeeze removes a dimension of size 1."""
        wanted = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
        for dim in wanted:
            size: Any = tensor.shape[dim]
            if not isinstance(size, int):
                self.environment.keep(sympy.Ne(size.node.expr, 1), True)


@dataclass(frozen=True)
class _Input:
    """The planned sizes of a tensor and the symbol of each dimension; None if it is static."""

    planned: tuple[int, ...]
    symbols: tuple[sympy.Symbol | None, ...]


def _fake(
    mode: FakeTensorMode, tensor: torch.Tensor, index: int, is_static: Callable[[int, int], bool]
) -> tuple[torch.Tensor, _Input]:
    """Returns a fake tensor with symbolic sizes, and its symbols.

    A batch of 1 becomes 2 in the symbolic run, since torch treats a size of 1 differently. Sizes of
    0 and other sizes of 1 are static, since they seldom vary.
    """
    planned = tuple(tensor.shape)
    statics = [
        is_static(index, dim) or n == 0 or (n == 1 and dim > 0) for dim, n in enumerate(planned)
    ]
    sizes = [2 if n == 1 and not s else n for n, s in zip(planned, statics, strict=True)]
    example = torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC if s else DimDynamic.DYNAMIC for s in statics]
    )
    fake = mode.from_tensor(
        example, symbolic_context=context, source=ConstantSource(f"input{index}")
    )
    symbols = [None if isinstance(n, int) else _symbol(n) for n in fake.shape]
    return fake, _Input(planned, tuple(symbols))


def _symbol(size: Any) -> sympy.Symbol | None:
    expression = size.node.expr
    return expression if isinstance(expression, sympy.Symbol) else None


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes of all modules after the block. Fake tensors must not stay there."""
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        for table in (module.__dict__, *_containers(module.__dict__)):
            saved.append((table, dict(table)))
    try:
        yield
    finally:
        for table, before in saved:
            table.clear()
            table.update(before)


def _containers(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in table.values() if type(value) is dict]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's log of a failed symbolic run.

    Such a failure only means that nothing is proven.
    """
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


# Methods whose results are constants in a trace. A symbolic run keeps formulas instead.
_READS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.SymFloat, ("__floor__", "__ceil__", "__trunc__", "__round__", "__int__", "__float__")),
    (torch.SymInt, ("__repr__", "__str__", "__format__", "__round__", "__float__")),
    (torch.SymBool, ("__repr__", "__str__", "__format__")),
    (torch.Tensor, ("stride", "storage_offset", "nbytes")),
)


@contextlib.contextmanager
def _reads_are_recorded(environment: _Environment) -> Iterator[None]:
    """Records inside the block which sizes Python code reads as numbers.

    Rounding or printing a size and asking for a stride are such reads.
    """
    own: list[tuple[type, str, Any]] = []
    for kind, names in _READS:
        for name in names:
            method = getattr(kind, name, None)
            if method is None:
                continue
            own.append((kind, name, kind.__dict__.get(name)))
            setattr(kind, name, _recording(environment, method))
    try:
        yield
    finally:
        for kind, name, before in own:
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _recording(environment: _Environment, method: Any) -> Any:
    if not callable(method):
        return property(_recording(environment, method.__get__))

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if environment.op is None and not _is_asked_by_torch():
            for number in (self, *(result if isinstance(result, tuple) else (result,))):
                environment.pin(number)
        return result

    return read


def _run(
    model: nn.Module, tensors: Sequence[torch.Tensor], is_static: Callable[[int, int], bool]
) -> tuple[_Environment, list[_Input]]:
    environment = _Environment()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    made = [_fake(mode, tensor, i, is_static) for i, tensor in enumerate(tensors)]
    environment.asked.clear()
    with (
        _quiet(),
        _unchanged(model),
        _patch_config(backed_size_oblivious=True),
        torch.no_grad(),
        _reads_are_recorded(environment),
        enable_python_dispatcher(),
        mode,
        _Ops(environment),
    ):
        try:
            model(*[fake for fake, _ in made])
        except NotProvenError:
            raise
        except Exception as problem:
            lines = str(problem).splitlines() or [type(problem).__name__]
            raise NotProvenError(lines[0][:200]) from problem
    return environment, [given for _, given in made]


def find_dims(model: nn.Module, inputs: Sequence[Any]) -> list[list[PlanDim]] | None:
    """Returns the range of each dimension in which a capture of `model` at `inputs` is right.

    Args:
        model: runs Python code, in eval mode. It is unchanged afterwards.
        inputs: the model's arguments. Nothing is proven if one is not a dense tensor.
    Returns: the ranges by tensor and dimension, or None if nothing is proven. A result also proves
        that no Python code reads the value of a tensor, since fake tensors have no values.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    is_simple = len(tensors) == len(inputs) and not any(t.is_sparse for t in tensors)
    attempts: list[Callable[[int, int], bool]] = [lambda i, dim: False, lambda i, dim: dim > 0]
    if is_simple:
        for is_static in attempts:
            try:
                return _proven(model, tensors, is_static)
            except NotProvenError:
                continue
    return None


def pinned(size: int) -> PlanDim:
    return PlanDim("", size, size)


def _proven(
    model: nn.Module, tensors: Sequence[torch.Tensor], is_static: Callable[[int, int], bool]
) -> list[list[PlanDim]]:
    environment, given = _run(model, tensors, is_static)
    ranges = _ranges(environment, given)
    # These dimensions ran as 2 and are pinned to 1. The run took another path, so it is repeated.
    changed = {
        (i, dim)
        for i, tensor in enumerate(given)
        for dim, symbol in enumerate(tensor.symbols)
        if symbol is not None and tensor.planned[dim] == 1 and _is_pinned(symbol, ranges)
    }
    if changed:
        environment, given = _run(
            model, tensors, lambda i, dim: is_static(i, dim) or (i, dim) in changed
        )
        ranges = _ranges(environment, given)
    return [_dims_of(tensor, environment, ranges, given) for tensor in given]


Ranges = dict[sympy.Symbol, ValueRanges[Any]]


def _is_pinned(symbol: sympy.Symbol, ranges: Ranges) -> bool:
    return symbol not in ranges or ranges[symbol].is_singleton()


def _dims_of(
    tensor: _Input, environment: _Environment, ranges: Ranges, given: Sequence[_Input]
) -> list[PlanDim]:
    names = {
        environment.replace(symbol): f"{i}.{dim}"
        for i, other in reversed(list(enumerate(given)))
        for dim, symbol in reversed(list(enumerate(other.symbols)))
        if symbol is not None
    }
    dims = []
    for size, symbol in zip(tensor.planned, tensor.symbols, strict=True):
        root = None if symbol is None else environment.replace(symbol)
        if root is None or root not in ranges or ranges[root].is_singleton():
            dims.append(pinned(size))
            continue
        most = ranges[root].upper
        dims.append(
            PlanDim(names[root], int(ranges[root].lower), None if most == int_oo else int(most))
        )
    return dims


def _ranges(environment: _Environment, given: Sequence[_Input]) -> Ranges:
    """Returns the sizes for which all conditions are proven, for each free symbol of the inputs."""
    planned: dict[sympy.Symbol, int] = {}
    loose: set[sympy.Symbol] = set()  # symbols that stand for different planned sizes
    for tensor in given:
        for size, symbol in zip(tensor.planned, tensor.symbols, strict=True):
            root = None if symbol is None else environment.replace(symbol)
            if root is None:
                continue
            if not isinstance(root, sympy.Symbol) or planned.setdefault(root, size) != size:
                loose |= root.free_symbols
    ranges: Ranges = {s: ValueRanges(1, int_oo) for s in planned if s not in loose}
    for condition in _conditions(environment):
        _restrict(condition, ranges, planned)
    return ranges


def _conditions(environment: _Environment) -> list[sympy.Basic]:
    """Returns the recorded questions as conditions on the sizes of the inputs."""
    conditions = dict.fromkeys(environment.asked)
    found = []
    for condition in conditions:
        for _ in range(len(environment.formulas) + 1):
            condition = environment.replace(condition)
            deeper = {s: environment.formulas[s] for s in condition.free_symbols
                      if s in environment.formulas}  # fmt: skip
            if not deeper:
                break
            condition = condition.xreplace(deeper)
            if condition.count_ops() > MOST_OPERATIONS:
                raise NotProvenError("its sizes are computed by long formulas")
        found.append(condition)
    return found


def _restrict(condition: sympy.Basic, ranges: Ranges, planned: Mapping[sympy.Symbol, int]) -> None:
    """Narrows `ranges` until interval arithmetic proves `condition` in all of them.

    Pins the symbols of a condition that cannot be proven.
    """
    if condition in (sympy.true, True) or _is_proven(condition, ranges):
        return
    symbols = [s for s in condition.free_symbols if s in planned]
    free = [s for s in symbols if s in ranges]

    def within(low: int, high: int) -> Ranges:
        """Returns the ranges, limited to sizes from `low` to `high` and to the planned sizes."""
        narrowed = dict(ranges)
        for s in free:
            lower = max(ranges[s].lower, min(planned[s], low))
            upper = min(ranges[s].upper, int_oo if high >= MOST_SIZE else max(planned[s], high))
            narrowed[s] = ValueRanges(lower, upper)
        return narrowed

    top = max((planned[s] for s in free), default=1)
    high = _largest(lambda high: _is_proven(condition, within(top, high)), top)
    if free and high is not None:
        low = top - (_largest(lambda n: _is_proven(condition, within(top - n, high)), 0, top) or 0)
        ranges.update(within(low, high))
        return
    for s in free:
        del ranges[s]


def _largest(holds: Callable[[int], bool], least: int, most: int = MOST_SIZE) -> int | None:
    """Returns the largest number from `least` to `most` for which `holds` is true.

    `holds` must be monotone. Returns None if `holds(least)` is false.
    """
    if holds(most):
        return most
    if not holds(least):
        return None
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if holds(middle) else (least, middle)
    return least


def _is_proven(condition: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether `condition` is proven for all sizes in `ranges`."""
    try:
        bounds = bound_sympy(condition, ranges)
    except Exception:  # an expression that interval arithmetic does not know
        return False
    return bool(bounds.is_singleton()) and bounds.lower in (sympy.true, True)


def probe_sizes(dims: Sequence[Sequence[PlanDim]], planned: Sizes) -> Sizes | None:
    """Returns sizes for a test, in which each free dimension has another size.

    Returns None if all dimensions are pinned.
    """
    chosen: dict[str, int] = {}
    result = []
    for tensor, sizes in zip(dims, planned, strict=True):
        sizes_now = []
        for dim, size in zip(tensor, sizes, strict=True):
            if dim.name and dim.name not in chosen:
                smaller = max(dim.least, min(size // 2 + 1, MOST_PROBE))
                larger = size + 1 if dim.most is None else min(size + 1, dim.most)
                chosen[dim.name] = smaller if smaller < size else larger
            sizes_now.append(chosen[dim.name] if dim.name else size)
        result.append(tuple(sizes_now))
    return None if tuple(result) == tuple(map(tuple, planned)) else tuple(result)


def only_batch(dims: Sequence[Sequence[PlanDim]], planned: Sizes) -> list[list[PlanDim]]:
    """Pins all dimensions except the first one of each tensor."""
    return [
        [dim if i == 0 else pinned(size) for i, (dim, size) in enumerate(zip(*both, strict=True))]
        for both in zip(dims, planned, strict=True)
    ]


def free_dims(sizes: Sequence[Sequence[int]]) -> list[list[PlanDim]]:
    """Returns dims that are all free, for a model without Python code.

    TorchScript reads the sizes of each call itself.
    """
    return [
        [PlanDim(f"{i}.{dim}", 0, None) for dim in range(len(tensor))]
        for i, tensor in enumerate(sizes)
    ]
