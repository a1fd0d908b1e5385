# SPDX-License-Identifier: BSD-3-Clause
"""Prepares a model for the planner: freezes and imports it, and compares it with the original."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.f32_precision import EXACT_CPU
from torchalgo._base.timings import Timings
from torchalgo._base.trees import copied
from torchalgo._C import Error
from torchalgo._capture.calls import TensorModel
from torchalgo._capture.example_calls import resized
from torchalgo._capture.freeze import (
    Capture,
    ScriptModule,
    capture_model,
    device_of,
    first_lines,
    freeze_trace,
    has_branches,
    has_own_ops,
    script_model,
    share_weights,
    tensors_in,
)
from torchalgo._capture.reference import (
    Reference,
    check_finite,
    check_repeats,
    most_error,
    other_values,
)
from torchalgo._capture.seen import Dims, NoCaptureError, Seen, look_at
from torchalgo._capture.settings import Options
from torchalgo._capture.shapes import Shapes, fits, shapes_of
from torchalgo._ir.bounds import COARSE_BOUND
from torchalgo._ir.overrides import COMPONENTWISE, only_named_types
from torchalgo._ir.plan import Plan, PlanDim, shapes_text
from torchalgo._ir.problems import dtype_of
from torchalgo._plan.describe import unplanned
from torchalgo._plan.find import (
    import_model,
    is_deterministic,
    native_device,
    strict_f32_note,
)

# A model whose run takes more seconds than this is compared at smaller sizes, if the sizes are
# proven to be free.
QUICK_S = 0.5
# A run is also too slow if it takes more than this part of the time budget: the comparisons run the
# model four times or more.
QUICK_SHARE = 0.05

# A larger error of the frozen module is no sum of rounding errors: some results are other ones.
MOST_ROUNDING = 1e-2


def quick_run_s(budget_s: float) -> float:
    """Returns the longest time of a run, in seconds, that is compared at the inputs' own sizes."""
    return min(QUICK_S, QUICK_SHARE * budget_s)


@dataclass(frozen=True)
class Prepared:
    """A model and its inputs, ready for planning. Nothing is measured yet."""

    model: nn.Module
    inputs: tuple[Any, ...]
    frozen: ScriptModule
    imported: _C.Imported
    device: _C.Device | None  # None: the CPU
    where: torch.device  # the same device as a torch.device
    notes: list[str]  # the parts that were left alone, and the reasons
    reference: Reference  # the inputs, and the outputs of the model as it was given
    capture_error: float  # relative L2 of the frozen module's outputs to the reference
    dims: Dims  # the sizes for which the frozen module is equal to the model
    is_traced: bool  # False: the frozen module is the scripted model

    @property
    def graph(self) -> _C.Graph:
        return self.imported.graph

    def unplanned(self) -> Plan:
        """Returns the plan without any choice: the facts about the model, for Describer."""
        return unplanned(self.graph, self.inputs, self.notes, self.device, self.dims)

    def dims_of(self, scripted: ScriptModule) -> Dims:
        """Returns the sizes for which `scripted`, a module made from `frozen`, is right.

        The importer makes constants of ranks. A remaining branch may change a rank depending on a
        size. So all sizes are pinned if there are branches.
        """
        if not has_own_ops(scripted) or not has_branches(scripted):
            return self.dims
        return [[PlanDim("", size, size) for size in x.shape] for x in tensors_in(self.inputs)]

    def find_candidates(self, options: Options) -> _C.Candidates:
        """Returns the candidates of each node.

        Candidates that are not worth measuring are dropped, unless the user has passed a plan, or
        names them in an override. Engines that are compiled when they first run are dropped unless
        the plan may have them. Candidates in coarser types than the model's are listed if max_error
        allows them, and where an override names one.
        """
        # On a CPU, an override may name a primitive that is dominated in some fusions only.
        overrides = options.overrides if isinstance(options.overrides, Mapping) else {}
        words = (name for name in overrides.values() if isinstance(name, str))
        named = [name for name in words if name != COMPONENTWISE]
        is_free = options.plan is None and (not named or self.device is not None)
        may_compile = options.runtime_compiled or options.plan is not None
        may_be_coarse = options.plan is not None or options.has_coarse_types
        found = _C.find_candidates(
            self.graph,
            options.workspace_limit_bytes,
            self.device,
            is_deterministic(self.device),
            drop_dominated=is_free,
            runtime_compiled=may_compile,
            all_knobs=options.all_knobs,
            named=named,
            coarse_types=may_be_coarse or options.names_types,
        )
        if may_be_coarse or not options.names_types:
            return found
        return only_named_types(self.graph, found, overrides)

    def output_bound(self, options: Options) -> float:
        """Returns the largest relative L2 that the outputs may have to the original model's.

        If an override names a type, and max_error allows none, this is the bound of a model in
        bf16.

        Raises: torchalgo.Error if the frozen module itself exceeds it, so that no plan can keep it;
            NoCaptureError if the model sorts, or chooses, by values that rounding changes.
        """
        bound = output_bound(self.graph, options.max_error)
        if options.names_types and not options.has_coarse_types:
            bound = max(bound, 4 * COARSE_BOUND["bf16"])
        if self.capture_error > max(bound, MOST_ROUNDING):
            raise NoCaptureError(
                "TA1113 optimize: the rounding of folded batch norms alone changes the outputs by"
                f" relative L2 {self.capture_error:.1e}, so the model sorts values, or chooses some"
                " of them: optimize a part of it that does not, such as its backbone"
            )
        if self.capture_error > bound:
            raise Error(
                "TA1113 optimize: freezing alone, which folds batch norms into weights, changes the"
                f" outputs by relative L2 {self.capture_error:.1e}; expected at most {bound:.1e}:"
                f" pass max_error={2 * self.capture_error:.0e} or more"
            )
        return bound


def output_bound(graph: _C.Graph, max_error: float) -> float:
    """Returns the largest relative L2 that the outputs may have to the model's.

    This is `max_error`. For types that round more coarsely, it is at least four times the bound
    of one convolution, since rounding errors add up.
    """
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    coarse = [COARSE_BOUND.get(dtype_of(problem), 0.0) for problem in problems]
    return max([max_error, *(4 * bound for bound in coarse)])


@EXACT_CPU.block()
def prepare(
    given: TensorModel,
    say: Callable[[str], None],
    before: Sequence[Prepared] = (),
    timings: Timings | None = None,
    quick_s: float = QUICK_S,
) -> Prepared:
    """Freezes and imports the model, and compares the frozen module with the model.

    Args:
        before: the same model prepared for other inputs; weights are shared with these.
        quick_s: a model whose run takes more seconds is compared at smaller sizes, if possible.

    Raises: torchalgo.Error if the model cannot be captured, or no capture is equal to it.
    """
    timings = timings or Timings()
    model, inputs = given.model, given.inputs
    say("reading the model")
    notes: list[str] = []
    with timings.step("values"):
        reference = given.reference or Reference.of(model, inputs)
        check_finite(reference)
        is_quick = reference.seconds <= quick_s
        if is_quick:
            check_repeats(model, reference)
    seen = given.seen
    capture = best_capture(model, inputs, notes.append, seen)
    with timings.step("values"):
        known = None if is_quick else _compare_small(model, capture, reference, seen, notes)
        if known is not None:
            error, dims = known
        else:
            capture, error = _right_capture(model, capture, reference, notes)
            dims = _dims(model, capture, reference, seen, before, is_quick)
    share_weights(capture.frozen, [p.frozen for p in before])
    where = device_of(model, inputs)
    device = native_device(where)
    imported = import_model(device, capture.frozen, inputs)
    notes += strict_f32_note(device, imported.graph)
    # The inputs are copied, because a model may change its inputs when it is timed.
    return Prepared(
        model, copied(inputs), capture.frozen, imported, device, where, notes, reference, error,
        dims, capture.is_traced,
    )  # fmt: skip


def prepare_each(
    models: Sequence[TensorModel],
    say: Callable[[str], None],
    timings: Timings | None = None,
    quick_s: float = QUICK_S,
) -> list[Prepared]:
    """Prepares one model for each of its sets of inputs. All results share the same weights.

    Raises: torchalgo.Error as `prepare` does, with the shapes of the inputs.
    """
    if len(models) == 1:
        return [prepare(models[0], say, timings=timings, quick_s=quick_s)]
    prepared: list[Prepared] = []
    for each in models:
        one = dataclasses.replace(each, model=models[0].model)
        try:
            prepared.append(prepare(one, say, prepared, timings, quick_s))
        except NoCaptureError:
            raise
        except Error as problem:
            raise Error(
                with_inner_code(f"TA1110 {problem} (inputs {shapes_text(shapes_of(each.inputs))})")
            ) from problem
    return prepared


def best_capture(
    model: nn.Module,
    inputs: tuple[Any, ...],
    note: Callable[[str], None] = lambda text: None,
    seen: Seen | None = None,
) -> Capture:
    """Captures the model, as capture_model does, so that most of its ops are planned.

    The trace of a scripted model is taken if more of its ops are planned, and if the model's Python
    code is proven to read only sizes. A script keeps the loops and branches of the Python code, and
    the planner leaves these alone.

    Args:
        seen: what a run of the model on fake tensors shows. None: it runs here.

    Raises: torchalgo.Error if it cannot be captured.
    """
    if seen is None:
        seen = look_at(model, inputs)
    script = capture_model(model, copied(inputs), note, seen)
    try:
        trace = proven_trace(script, seen)
        if trace is None:
            return script
        planned_of_trace = _planned_ops(trace, model, inputs)
    except Error:
        return script
    try:
        return trace if planned_of_trace > _planned_ops(script, model, inputs) else script
    except Error:
        return trace


def proven_trace(script: Capture, seen: Seen) -> Capture | None:
    """Returns the trace of a scripted model, or None if there is none or nothing is proven.

    Raises: torchalgo.Error if the trace cannot be frozen.
    """
    if script.trace is None or not seen.is_whole:
        return None
    return freeze_trace(script.trace)


def _planned_ops(capture: Capture, model: nn.Module, inputs: tuple[Any, ...]) -> int:
    device = native_device(device_of(model, inputs))
    nodes = import_model(device, capture.frozen, inputs).graph.nodes
    return sum(node.problem is not None for node in nodes)


def _compare_small(
    model: nn.Module,
    capture: Capture,
    reference: Reference,
    seen: Seen,
    notes: list[str],
) -> tuple[float, Dims] | None:
    """Compares the capture with the model at sizes smaller than the inputs'.

    Returns: the capture's error at these sizes, and the sizes for which it is equal to the model.
        None if no smaller sizes are proven to be free, if the model refuses them, or if the capture
        is wrong at these sizes.
    """
    for dims, small in _trials(model, capture, reference, seen, needs_smaller=True):
        check_repeats(model, small)
        error = _error(capture, small)
        if error <= most_error(small.inputs):
            sizes, own = (shapes_text(shapes_of(each.inputs)) for each in (small, reference))
            notes.append(
                f"compared with the model at inputs {sizes}, and not at {own}, where one run takes"
                f" {reference.seconds:.1f} s: their sizes are free"
            )
            return error, dims
    return None


def _trials(
    model: nn.Module, capture: Capture, reference: Reference, seen: Seen, *, needs_smaller: bool
) -> Iterator[tuple[Dims, Reference]]:
    """Yields sizes for which the capture may be right, and the model's outputs for some of them.

    The more general sizes come first. Sizes that the model refuses are left out, and if
    `needs_smaller` those that have no fewer elements than the inputs.
    """
    from torchalgo._capture import free_sizes  # imports sympy

    shapes = shapes_of(reference.inputs)
    for dims, compared in _dims_to_try(capture, reference, seen.dims):
        sizes = free_sizes.probe_sizes(compared, shapes)
        if sizes is None or (needs_smaller and _elements(sizes) >= _elements(shapes)):
            continue
        inputs = [resized(x, size) for x, size in zip(reference.inputs, sizes, strict=True)]
        try:
            other = Reference.of(model, inputs)
        except Exception:  # the model refuses them
            continue
        yield dims, other


def _dims_to_try(
    capture: Capture, reference: Reference, of_trace: Dims | None
) -> list[tuple[Dims, Dims]]:
    """Returns pairs of sizes to try, the more general pair first; empty if nothing is proven.

    The first of a pair are the sizes for which the capture may be equal to the model. The second
    are the sizes that a comparison may change.
    """
    from torchalgo._capture import free_sizes  # imports sympy

    shapes = shapes_of(reference.inputs)
    if not capture.is_traced:
        dims = free_sizes.free_dims(shapes)
        channels = [
            [free_sizes.pinned(size) if i == 1 else dim for i, (dim, size) in enumerate(both)]
            for both in (zip(*pair, strict=True) for pair in zip(dims, shapes, strict=True))
        ]
        return [(dims, channels)]
    if of_trace is None:
        return []
    batch = free_sizes.only_batch(of_trace, shapes)
    return [(of_trace, of_trace), (batch, batch)]


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(sizes) for sizes in shapes)


def _right_capture(
    model: nn.Module, capture: Capture, reference: Reference, notes: list[str]
) -> tuple[Capture, float]:
    """Returns a capture that is equal to the model, and its relative L2 error.

    This is `capture`, or the scripted model if `capture` is a trace that differs from the model.

    Raises: torchalgo.Error if the scripted model differs as well, or cannot be made.
    """
    most = most_error(reference.inputs)
    error = _error(capture, reference)
    if error > most and capture.is_traced and reference.error_of(capture.module) > most:
        script_error = "the scripted model differs as well"
        try:
            scripted = script_model(model, reference.inputs)
            if (error_of_script := _error(scripted, reference)) <= most:
                notes.append(f"scripted: a trace differs from the model (relative L2 {error:.1e})")
                return scripted, error_of_script
        except Exception as problem:
            script_error = first_lines(problem)
        raise Error(
            "TA1114 optimize: the outputs of the model and of its trace differ by relative L2"
            f" {error:.1e}, expected at most {most:.0e}. While it is traced, Python code in forward"
            " gets tensors as sizes, which for example a dict cannot look up. Use int(size) there,"
            f" or make torch.jit.script accept the model ({script_error})"
        )
    return capture, error


def _error(capture: Capture, reference: Reference) -> float:
    try:
        # TorchScript would optimize the module in its first two runs, which takes longer.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return reference.error_of(capture.frozen)
    except RuntimeError:
        return float("inf")


def _check_other_values(model: nn.Module, capture: Capture, reference: Reference) -> None:
    """Compares a trace with the model for other values of the inputs.

    A trace fixes everything that depends on values.

    Raises: NoCaptureError if the trace is wrong for other values.
    """
    others = []
    for inputs in other_values(reference.inputs):
        try:
            others.append(Reference.of(model, inputs))
        except (IndexError, RuntimeError, ValueError):  # the model refuses these values
            continue
    error = max((_error(capture, other) for other in others), default=0.0)
    if error > most_error(reference.inputs):
        raise NoCaptureError(
            "TA1108 optimize: the model takes another branch for other values of its inputs, and"
            f" its trace does not (relative L2 {error:.1e}). torch.jit.script, which could keep the"
            " branch, refuses the model"
        )


def _dims(
    model: nn.Module,
    capture: Capture,
    reference: Reference,
    seen: Seen,
    before: Sequence[Prepared],
    is_repeated: bool,
) -> Dims:
    """Returns the sizes for which the capture is equal to the model.

    All sizes are pinned if nothing else is proven.

    Args:
        seen: the sizes for which a trace is proven to be right.
        before: the same model prepared for other inputs, whose sizes are tried first.
        is_repeated: True if the model is known to give the same outputs in each run. Otherwise this
            is checked here.
    """
    from torchalgo._capture import free_sizes  # imports sympy

    shapes = shapes_of(reference.inputs)
    for other in before:
        # A script is right for sizes at which a trace is not.
        if other.is_traced == capture.is_traced and fits(shapes, other.dims):
            return other.dims
    found: Dims = [[free_sizes.pinned(size) for size in sizes] for sizes in shapes]
    if not capture.is_traced:
        found = free_sizes.free_dims(shapes)
    elif seen.dims is None and capture.reads_values:
        _check_other_values(model, capture, reference)
    trials = _trials(model, capture, reference, seen, needs_smaller=False)
    for dims, other_reference in trials if capture.is_traced else ():
        if not is_repeated:
            check_repeats(model, other_reference)
            is_repeated = True
        # The sizes are proven; this is an additional test.
        if _error(capture, other_reference) <= most_error(other_reference.inputs):
            found = dims
            break
    if not is_repeated:
        check_repeats(model, reference)
    return found
