# SPDX-License-Identifier: BSD-3-Clause
"""A model as the planner needs it: frozen, imported, with the device it runs on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo import _C, planning
from torchalgo._C import Error
from torchalgo.freeze import ScriptModule, device_of, freeze_model, share_weights
from torchalgo.options import Options
from torchalgo.shapes import shapes_of, spell


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

    @functools.cached_property
    def reference(self) -> Any:
        """What the frozen module makes of the inputs; run once."""
        with torch.no_grad():
            return self.frozen(*self.inputs)

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
        """What relative L2 the outputs may have to the frozen module's."""
        return planning.output_bound(self.graph, options.max_rel_error)


def prepare(
    model: nn.Module,
    inputs: tuple[Any, ...],
    say: Callable[[str], None],
    frozen_before: Sequence[ScriptModule] = (),
) -> Prepared:
    """Freezes and imports the model; weights are shared with what it was frozen to before."""
    say("reading the model")
    notes: list[str] = []
    frozen = freeze_model(model, inputs, notes.append)
    share_weights(frozen, frozen_before)
    where = device_of(model, inputs)
    device = planning.native_device(where)
    imported = planning.import_for(device, frozen, inputs)
    return Prepared(model, inputs, frozen, imported, device, where, notes)


def prepare_each(
    model: nn.Module, input_sets: Sequence[tuple[Any, ...]], say: Callable[[str], None]
) -> list[Prepared]:
    """The model prepared for each set of inputs; all of them hold the same weights."""
    if len(input_sets) == 1:
        return [prepare(model, input_sets[0], say)]
    prepared: list[Prepared] = []
    for inputs in input_sets:
        try:
            prepared.append(prepare(model, inputs, say, [p.frozen for p in prepared]))
        except Error as problem:
            raise Error(f"{problem} (inputs {spell(shapes_of(inputs))})") from problem
    return prepared
