# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model once with symbolic sizes, and records what its Python code does with them.

The run uses fake tensors, which have no values. It records each comparison of a size, and each
number that Python code makes from a size.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
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

from torchalgo._base.kept_autocast import kept_autocast
from torchalgo._capture.window_shapes import WINDOWED, same_shape

MOST_OPERATIONS = 400  # in one expression; larger ones take too long
MOST_WORK = 60_000  # characters of all expressions; ConvNeXt has 32,000 of them

_patch_config: Any = getattr(_config, "patch")  # noqa: B009  torch adds it at run time


class NotProvenError(Exception):
    """The error of a symbolic run that proves nothing. Its text says why."""


class SizeRecorder(ShapeEnv):
    """A ShapeEnv that records the questions about symbolic sizes, and the code that asked."""

    def __init__(self) -> None:
        # Code that reads a value of a tensor proves nothing, so it must fail.
        super().__init__(specialize_zero_one=False, duck_shape=False, allow_scalar_outputs=False)
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
# Files of torch that compute an op, and files that only pass a question to the recorder.
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

    def __init__(self, recorder: SizeRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        before, recorder.op = recorder.op, func
        try:
            if func._schema.name == "aten::squeeze":
                self._keep_rank(args[0], *args[1:])
            shape = WINDOWED.get(func)
            result = None if shape is None else shape(recorder, *args, **kwargs)
            if result is None:
                result = same_shape(func, args)
            return func(*args, **kwargs) if result is None else result
        finally:
            recorder.op = before

    def _keep_rank(self, tensor: torch.Tensor, dims: Any = None) -> None:
        """Records that these sizes are not 1: squeeze removes a dimension of size 1."""
        wanted = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
        for dim in wanted:
            size: Any = tensor.shape[dim]
            if not isinstance(size, int):
                self.recorder.keep(sympy.Ne(size.node.expr, 1), True)


@dataclass(frozen=True)
class SymbolicInput:
    """The planned sizes of a tensor and the symbol of each dimension; None if it is static."""

    planned: tuple[int, ...]
    symbols: tuple[sympy.Symbol | None, ...]


def _fake(
    mode: FakeTensorMode, tensor: torch.Tensor, index: int, is_static: Callable[[int, int], bool]
) -> tuple[torch.Tensor, SymbolicInput]:
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
    return fake, SymbolicInput(planned, tuple(symbols))


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
        for table, before in saved:  # another thread may read a table meanwhile
            for key in [key for key in table if key not in before]:
                del table[key]
            for key, value in before.items():
                if key not in table or table[key] is not value:
                    table[key] = value


def _containers(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in table.values() if type(value) is dict]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's logs of a failed symbolic run.

    Such a failure only means that nothing is proven.
    """
    names = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
    before = [(logger := logging.getLogger(name), logger.level) for name in names]
    for logger, _ in before:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


# Methods whose results are constants in a trace. A symbolic run keeps formulas instead.
_READS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.SymFloat, ("__floor__", "__ceil__", "__trunc__", "__round__", "__int__", "__float__")),
    (torch.SymInt, ("__repr__", "__str__", "__format__", "__round__", "__float__")),
    (torch.SymBool, ("__repr__", "__str__", "__format__")),
    (torch.Tensor, ("stride", "storage_offset", "nbytes")),
)


@contextlib.contextmanager
def _reads_are_recorded(recorder: SizeRecorder) -> Iterator[None]:
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
            setattr(kind, name, _recording(recorder, method))
    try:
        yield
    finally:
        for kind, name, before in own:
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _recording(recorder: SizeRecorder, method: Any) -> Any:
    if not callable(method):
        return property(_recording(recorder, method.__get__))

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if recorder.op is None and not _is_asked_by_torch():
            for number in (self, *(result if isinstance(result, tuple) else (result,))):
                recorder.pin(number)
        return result

    return read


def run_with_symbols(
    model: nn.Module, tensors: Sequence[torch.Tensor], is_static: Callable[[int, int], bool]
) -> tuple[SizeRecorder, list[SymbolicInput]]:
    """Runs `model` once at symbolic sizes. Returns the records and the symbols of each tensor.

    `is_static` takes the index of a tensor and of its dimension. It is True if the size gets no
    symbol.

    Raises: NotProvenError if the run fails.
    """
    recorder = SizeRecorder()
    mode = FakeTensorMode(shape_env=recorder, allow_non_fake_inputs=True)
    made = [_fake(mode, tensor, i, is_static) for i, tensor in enumerate(tensors)]
    recorder.asked.clear()
    with (
        _quiet(),
        _unchanged(model),
        _patch_config(backed_size_oblivious=True),
        kept_autocast(),
        torch.no_grad(),
        _reads_are_recorded(recorder),
        enable_python_dispatcher(),
        mode,
        _Ops(recorder),
    ):
        try:
            model(*[fake for fake, _ in made])
        except NotProvenError:
            raise
        except Exception as problem:
            lines = str(problem).splitlines() or [type(problem).__name__]
            raise NotProvenError(lines[0][:200]) from problem
    return recorder, [given for _, given in made]
