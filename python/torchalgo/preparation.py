# SPDX-License-Identifier: BSD-3-Clause
"""A model as the planner needs it: frozen, imported, with the device it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo import _C, planning
from torchalgo._C import Error
from torchalgo.freeze import (
    Capture,
    ScriptModule,
    capture_model,
    check_inputs,
    check_model,
    device_of,
    first_lines,
    script_model,
    share_weights,
    tensors_in,
)
from torchalgo.ledger import COARSE_BOUND
from torchalgo.options import Options
from torchalgo.plan import PlanDim
from torchalgo.reference import Reference, copied, other_values, resized, run_twice
from torchalgo.shapes import Shapes, fits, shapes_of, spell
from torchalgo.timings import Timings

# A capture that is further from the model than this is wrong; what is nearer is rounding.
MOST_CAPTURE_ERROR = 1e-4
_COARSE = {torch.float16: 4 * COARSE_BOUND["f16"], torch.bfloat16: 4 * COARSE_BOUND["bf16"]}


@dataclass(frozen=True)
class Prepared:
    """A model and its inputs, read; nothing is measured yet."""

    model: nn.Module
    inputs: tuple[Any, ...]
    frozen: ScriptModule
    imported: _C.Imported
    device: _C.Device | None  # None: the CPU
    where: torch.device  # the same as torch calls it
    notes: list[str]  # what was left alone, and why
    reference: Reference  # what the model as it was given makes of the inputs
    capture_error: float  # relative L2 of the frozen module to that
    dims: list[list[PlanDim]]  # for which sizes the frozen module is the model

    @property
    def graph(self) -> _C.Graph:
        return self.imported.graph

    def find_candidates(self, options: Options) -> _C.Candidates:
        """What may run each node."""
        # What the user names must be there, dominated or not.
        is_free = options.plan is None and not options.overrides
        return planning.find_candidates(
            self.graph, options.workspace_limit_bytes, self.device, is_free
        )

    def output_bound(self, options: Options) -> float:
        """The relative L2 that the outputs may have to those of the model as it was given.

        Raises: torchalgo.Error if no plan can keep it, since the frozen module does not.
        """
        bound = planning.output_bound(self.graph, options.max_rel_error)
        if self.capture_error > bound:
            raise Error(
                "optimize: freezing alone, which folds batch norms into weights, changes the"
                f" outputs by relative L2 {self.capture_error:.1e}; expected at most {bound:.1e}:"
                f" pass max_rel_error={2 * self.capture_error:.0e} or more"
            )
        return bound


def prepare(
    model: nn.Module,
    inputs: tuple[Any, ...],
    say: Callable[[str], None],
    before: Sequence[Prepared] = (),
    timings: Timings | None = None,
) -> Prepared:
    """Freezes and imports the model, and compares the frozen module with it.

    Args:
        before: the same model for other inputs; weights are shared with these.
    Raises: torchalgo.Error if the model cannot be captured, or no capture is equal to it.
    """
    timings = timings or Timings()
    say("reading the model")
    notes: list[str] = []
    check_model(model)
    check_inputs(model, inputs)
    with timings.step("values"):
        reference = run_twice(model, inputs, _most_error(inputs))
    capture = capture_model(model, copied(inputs), notes.append)
    with timings.step("values"):
        capture, error = _right_capture(model, capture, reference, notes)
    share_weights(capture.frozen, [p.frozen for p in before])
    where = device_of(model, inputs)
    device = planning.native_device(where)
    imported = planning.import_for(device, capture.frozen, inputs)
    with timings.step("values"):
        dims = _dims(model, capture, reference, before)
    # A model that changes its inputs changes these copies when it is timed.
    return Prepared(
        model, copied(inputs), capture.frozen, imported, device, where, notes, reference, error,
        dims,
    )  # fmt: skip


def prepare_each(
    model: nn.Module,
    input_sets: Sequence[tuple[Any, ...]],
    say: Callable[[str], None],
    timings: Timings | None = None,
) -> list[Prepared]:
    """The model prepared for each set of inputs; all of them hold the same weights."""
    if len(input_sets) == 1:
        return [prepare(model, input_sets[0], say, timings=timings)]
    prepared: list[Prepared] = []
    for inputs in input_sets:
        try:
            prepared.append(prepare(model, inputs, say, prepared, timings))
        except Error as problem:
            raise Error(f"{problem} (inputs {spell(shapes_of(inputs))})") from problem
    return prepared


def _most_error(inputs: Sequence[Any]) -> float:
    """Above this relative L2 a capture is wrong, and not rounded."""
    coarse = [_COARSE.get(tensor.dtype, 0.0) for tensor in tensors_in(tuple(inputs))]
    return max([MOST_CAPTURE_ERROR, *coarse])


def _right_capture(
    model: nn.Module, capture: Capture, reference: Reference, notes: list[str]
) -> tuple[Capture, float]:
    """The capture, or the scripted model where the trace is not the model; and its error."""
    most = _most_error(reference.inputs)
    error = _error(capture, reference)
    if error > most and capture.is_traced and reference.error_of(capture.module) > most:
        script_error = "the scripted model differs as well"
        try:
            scripted = script_model(model)
            if (error_of_script := _error(scripted, reference)) <= most:
                notes.append(f"scripted: a trace differs from the model (relative L2 {error:.1e})")
                return scripted, error_of_script
        except Exception as problem:
            script_error = first_lines(problem)
        raise Error(
            "optimize: the outputs of the model and of its trace differ by relative L2"
            f" {error:.1e}, expected at most {most:.0e}: Python code in forward sees tensors in"
            " place of sizes while it is traced, as in a dict looked up by a size."
            f" Use int(size) there, or make torch.jit.script take the model ({script_error})"
        )
    if capture.reads_values:
        _check_other_values(model, capture, reference)
    return capture, error


def _error(capture: Capture, reference: Reference) -> float:
    try:
        return reference.error_of(capture.frozen)
    except RuntimeError:
        return float("inf")


def _check_other_values(model: nn.Module, capture: Capture, reference: Reference) -> None:
    """A trace fixes what depends on values. Raises Error if it is wrong for other values."""
    others = [Reference.of(model, inputs) for inputs in other_values(reference.inputs)]
    error = max(_error(capture, other) for other in others)
    if error > _most_error(reference.inputs):
        raise Error(
            "optimize: the model takes another path for other values of its inputs, and its trace"
            f" does not (relative L2 {error:.1e}), since torch.jit.script refuses the model: write"
            " the branch with torch.where, or so that torch.jit.script takes it"
        )


def _dims(
    model: nn.Module, capture: Capture, reference: Reference, before: Sequence[Prepared]
) -> list[list[PlanDim]]:
    """The sizes for which the capture is the model."""
    from torchalgo import free_sizes  # imports sympy

    shapes = shapes_of(reference.inputs)
    if not capture.is_traced:
        return free_sizes.free_dims(shapes)
    for other in before:
        if fits(shapes, other.dims):
            return other.dims
    dims = free_sizes.find_dims(model, reference.inputs)
    probe = free_sizes.probe_sizes(dims, shapes)
    if probe is not None and not _is_right_at(probe, model, capture, reference):
        return [[free_sizes.pinned(size) for size in sizes] for sizes in shapes]
    return dims


def _is_right_at(sizes: Shapes, model: nn.Module, capture: Capture, reference: Reference) -> bool:
    """A test of what is proven: compares at other sizes, whose values are those of the inputs."""
    inputs = [resized(x, size) for x, size in zip(reference.inputs, sizes, strict=True)]
    try:
        other = Reference.of(model, inputs)
    except Exception:  # the model takes no such sizes
        return False
    return _error(capture, other) <= _most_error(inputs)
