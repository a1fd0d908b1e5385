# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model once with symbolic sizes, and records what its Python code does with them.

The run uses fake tensors, which have no values. It records each comparison of a size, and each
number that Python code makes from a size.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils._sympy.functions import FloorDiv

from torchalgo import _C
from torchalgo._base.kept_model import ModuleState, kept_autocast
from torchalgo._base.overlap import WhileAny
from torchalgo._capture.fake_run import Calls, FakeRun, fake_mode, is_asked_by_torch, reads_values

MOST_OPERATIONS = 400  # in one expression; larger ones take too long
MOST_WORK = 60_000  # characters of all expressions; ConvNeXt has 32,000 of them

_patch_config: Any = getattr(_config, "patch")  # noqa: B009  torch adds it at run time


class NotProvenError(Exception):
    """The error of a symbolic run that proves nothing. Its text says why.

    `run` says what the model's Python code did before; None if the run has ended.
    """

    def __init__(self, why: str, run: FakeRun | None = None) -> None:
        super().__init__(why)
        self.run = run


@dataclass(frozen=True)
class SymbolicInput:
    """The planned sizes of a tensor and the symbol of each dimension; None if it is static."""

    planned: tuple[int, ...]
    symbols: tuple[sympy.Symbol | None, ...]


class SizeRecorder(ShapeEnv):
    """A ShapeEnv that records the questions about symbolic sizes, and the code that asked.

    Attributes:
        run: what the model's Python code did in the run.
        inputs: the symbols of each tensor.
        changes: an attribute that has another value after each run of the model; empty if there is
            none.
    """

    def __init__(self) -> None:
        # Code that reads a value of a tensor proves nothing, so it must fail.
        super().__init__(specialize_zero_one=False, duck_shape=False, allow_scalar_outputs=False)
        self.run = FakeRun(fake_mode(self, allow_non_fake_inputs=True), self.pin)
        self.inputs: list[SymbolicInput] = []
        self.changes = ""
        self.work = 0
        self.asked: list[sympy.Basic] = []
        self.formulas: dict[sympy.Symbol, sympy.Basic] = {}  # of sizes of results

    def evaluate_sym_node(
        self, sym_node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> sympy.Basic:
        expression = sym_node.expr
        self.work += len(str(expression))
        if self.work > MOST_WORK:
            raise NotProvenError("its sizes are computed by long formulas")
        try:
            answer = super().evaluate_sym_node(sym_node, size_oblivious, fallback_value)
        except GuardOnDataDependentSymNode as problem:
            raise self.run.fail_read("a size that depends on values") from problem
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
        return self.run.op is not None or is_asked_by_torch(3)

    def atom(self, formula: sympy.Basic, hint: int) -> Any:
        """Returns a symbolic size with this formula, which torch treats like a size of an input."""
        for symbol, known in self.formulas.items():
            if known == formula:
                return self.create_symintnode(symbol, hint=hint)
        source = ConstantSource(f"atom{len(self.formulas)}")
        symbol = self.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        self.formulas[symbol] = formula
        return self.create_symintnode(symbol, hint=hint, source=source)


_aten: Any = torch.ops.aten
# Ops whose result has the sizes and the type of their first tensor. torch's own functions for their
# sizes take longer.
_SAME = {
    getattr(_aten, name + suffix).default
    for name in (*_C.activation_names(), "hardtanh", "softplus")
    for suffix in ("", "_")
    if hasattr(_aten, name + suffix) and hasattr(getattr(_aten, name + suffix), "default")
}
_NORM = _aten._native_batch_norm_legit_no_training.default


def same_shape(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the result of a pointwise op or of a batch norm; None for other ops."""
    if func is _NORM:
        empty = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
        return _aten.detach.default(args[0]), empty, empty
    if func not in _SAME or not args[0].is_floating_point():
        return None
    return args[0] if func._schema.is_mutable else _aten.detach.default(args[0])


class _Ops(TorchDispatchMode):
    """Passes each op to the FakeRun of a recorder.

    Ops that would ask about sizes, or compute long formulas of them, run by short formulas.
    """

    def __init__(self, recorder: SizeRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if func._schema.name == "aten::squeeze":
                self._keep_rank(args[0], *args[1:])
            result = same_shape(func, args)
            # An activation of a weight may be written to, since it is another tensor.
            if result is None or self.recorder.run.name_of(result):
                result = func(*args, **kwargs)
            is_new = all(each.alias_info is None for each in func._schema.returns)
            return tree_map_only(torch.Tensor, self._with_atoms, result) if is_new else result

        return self.recorder.run.run_op(func, args, kwargs or {}, run)

    def _with_atoms(self, result: torch.Tensor) -> torch.Tensor:
        """Returns a result in which each size with a long formula is a symbol of its own."""
        shape = tuple(result.shape)
        sizes = [self._atom(size) for size in shape]
        if all(map(operator.is_, sizes, shape)):
            return result
        return torch.empty(sizes, dtype=result.dtype, device=result.device)

    def _atom(self, size: Any) -> Any:
        is_short = isinstance(size, int) or not size.node.expr.has(FloorDiv)
        return size if is_short else self.recorder.atom(size.node.expr, int(size.node.hint))

    def _keep_rank(self, tensor: torch.Tensor, dims: Any = None) -> None:
        """Records that these sizes are not 1: squeeze removes a dimension of size 1."""
        wanted = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
        for dim in wanted:
            size: Any = tensor.shape[dim]
            if not isinstance(size, int):
                self.recorder.keep(sympy.Ne(size.node.expr, 1), True)


# ---- inputs --------------------------------------------------------------------------------------


def _fake(
    recorder: SizeRecorder, tensor: torch.Tensor, is_static: Callable[[int, int], bool]
) -> torch.Tensor:
    """Returns a fake tensor with symbolic sizes, which is the next input of a recorder.

    A batch of 1 becomes 2 in the symbolic run, since torch treats a size of 1 differently. Sizes of
    0 and other sizes of 1 are static, since they seldom vary.
    """
    planned, index = tuple(tensor.shape), len(recorder.inputs)
    statics = [
        is_static(index, dim) or n == 0 or (n == 1 and dim > 0) for dim, n in enumerate(planned)
    ]
    sizes = [2 if n == 1 and not s else n for n, s in zip(planned, statics, strict=True)]
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    example = torch.empty_permuted(sizes, order, dtype=tensor.dtype, device=tensor.device)
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC if s else DimDynamic.DYNAMIC for s in statics]
    )
    fake: torch.Tensor = recorder.run.mode.from_tensor(
        example, symbolic_context=context, source=ConstantSource(f"input{index}")
    )
    symbols = [None if isinstance(n, int) else _symbol(n) for n in fake.shape]
    recorder.inputs.append(SymbolicInput(planned, tuple(symbols)))
    return fake


def _symbol(size: Any) -> sympy.Symbol | None:
    expression = size.node.expr
    return expression if isinstance(expression, sympy.Symbol) else None


# ---- settings of torch ---------------------------------------------------------------------------

# Methods whose results are constants in a trace. A symbolic run keeps formulas instead.
_READS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.SymFloat, ("__floor__", "__ceil__", "__trunc__", "__round__", "__int__", "__float__")),
    (torch.SymInt, ("__repr__", "__str__", "__format__", "__round__", "__float__")),
    (torch.SymBool, ("__repr__", "__str__", "__format__")),
)


def _change_settings() -> Callable[[], None]:
    """Changes settings of the process for symbolic runs. Returns what restores them."""
    with contextlib.ExitStack() as made:
        made.enter_context(_patch_config(backed_size_oblivious=True))
        made.enter_context(_reads_are_recorded())
        return made.pop_all().close


_settings = WhileAny(_change_settings)


@contextlib.contextmanager
def _reads_are_recorded() -> Iterator[None]:
    """Makes the recorder of a symbolic number see that Python code rounds or prints it.

    Numbers without a recorder of ours are read as before.
    """
    own: list[tuple[type, str, Any]] = []
    for kind, names in _READS:
        for name in names:
            method = getattr(kind, name, None)
            if method is not None:
                own.append((kind, name, kind.__dict__.get(name)))
                setattr(kind, name, _recording(method))
    try:
        yield
    finally:
        for kind, name, before in own:
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _recording(method: Any) -> Any:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        recorder: Any = getattr(self.node, "shape_env", None)
        is_ours = isinstance(recorder, SizeRecorder) and recorder.run.op is None
        if is_ours and not is_asked_by_torch(2):
            recorder.pin(self)
            recorder.pin(result)
        return result

    return read


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's logs of a failed symbolic run of this thread.

    Such a failure only means that nothing is proven.
    """
    here = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != here

    names = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(is_of_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_others)


# ---- the run -------------------------------------------------------------------------------------


def run_with_symbols(
    model: nn.Module,
    tensors: Sequence[torch.Tensor],
    is_static: Callable[[int, int], bool],
    arguments: Callable[[Sequence[torch.Tensor]], tuple[Any, Any]],
) -> SizeRecorder:
    """Runs a copy of `model` once at symbolic sizes. The copy and its weights are fake.

    Args:
        is_static: takes the index of a tensor and of its dimension. It is True if the size gets no
            symbol.
        arguments: returns the positional arguments and those by name that hold these tensors.

    Raises: NotProvenError if the run fails, if it reads a value of an input, or if it writes to a
        weight. The `run` of the error says which.
    """
    recorder = SizeRecorder()
    run = recorder.run
    fakes = [_fake(recorder, tensor, is_static) for tensor in tensors]
    recorder.asked.clear()
    try:
        with _quiet(), _settings.block(), kept_autocast(), torch.no_grad():
            copied = run.copied(model)
            args, kwargs = arguments(fakes)
            state = ModuleState(copied)
            with enable_python_dispatcher(), run.mode, _Ops(recorder), Calls(run.call):
                copied(*args, **kwargs)
                run.writes = run.writes or state.replaced_weight()
                if state.changed():  # by a cache, or by each run
                    state = ModuleState(copied)
                    copied(*args, **kwargs)
                    recorder.changes = state.changed()
    except Exception as problem:
        raise _not_proven(run, problem) from problem
    finally:
        run.end()
    if run.reads or run.writes:  # the model caught the error
        raise _not_proven(run, NotProvenError("a caught error"))
    return recorder


def _not_proven(run: FakeRun, problem: Exception) -> NotProvenError:
    lines = str(problem).splitlines() or [type(problem).__name__]
    run.reads = run.reads or ("the memory of a tensor" if reads_values(problem) else "")
    return NotProvenError(lines[0][:200], run)
