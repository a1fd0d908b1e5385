# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of a plan says what runs, in which order, and which tensors exist meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torchalgo
from support.graph_models import freeze
from support.random_plans import any_plan, priced_plan, rewrite
from support.view_nets import Inception
from torchalgo import _C
from torchalgo._plan.schedule import PYTORCH, schedule_of


def imported_net(x: torch.Tensor) -> _C.Imported:
    return _C.import_graph(freeze(Inception().eval(), (x,), "trace")._c, (x,))


def labels_of(module: torch.jit.ScriptModule, x: torch.Tensor) -> list[str]:
    """Returns what a call ran of torchalgo, in order: primitive, layouts and layer."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as run:
        module(x)
    events = sorted(run.events(), key=lambda event: event.time_range.start)
    return [event.name for event in events if "->" in event.name]


@pytest.mark.parametrize("seed", range(4))
def test_a_call_runs_the_steps_in_their_order(seed: int) -> None:
    x = torch.rand(1, 32, 9, 9)
    imported = imported_net(x)
    plan = any_plan(imported.graph, seed)
    steps = _C.lower(imported.graph, plan).steps
    planned = [f"{step.primitive} {step.layer}" for step in steps if step.problem is not None]
    ran = labels_of(rewrite(imported, plan), x)
    assert ran
    rest = iter(planned)
    assert all(label in rest for label in ran)  # in this order
    # The model's own op computes what ATen would compute in plain memory.
    assert all("aten." in label for label in set(planned) - set(ran))


def test_each_tensor_is_made_before_it_is_read_and_lives_until_then() -> None:
    x = torch.rand(1, 32, 9, 9)
    imported = imported_net(x)
    for seed in range(8):
        schedule = _C.lower(imported.graph, any_plan(imported.graph, seed))
        for number, step in enumerate(schedule.steps):
            for slot in [*step.src, *([] if step.residual is None else [step.residual])]:
                assert schedule.slots[slot].writer < number <= schedule.slots[slot].last_use
            for slot in step.dst:
                assert schedule.slots[slot].writer == number
        for slot in schedule.outputs:
            assert schedule.slots[slot].last_use == len(schedule.steps)
            assert schedule.slots[slot].layout == "nchw"


def test_parts_of_a_concatenation_share_its_memory() -> None:
    x = torch.rand(1, 32, 9, 9)
    imported = imported_net(x)
    graph = imported.graph
    blocked = priced_plan(
        graph, lambda key: 1 if {key.src, key.dst} == {"nChw16c"} or "trans" in key.problem else 99
    )
    native = _C.lower(graph, blocked)
    assert native.buffers == [[1, 9, 9, 9, 16]]
    parts = sorted(slot.part for slot in native.slots if slot.part is not None)
    assert parts == [(0, 0), (0, 32), (0, 80), (0, 112)]
    assert [step.buffer for step in native.steps if step.buffer is not None] == [0]


def test_live_bytes_are_those_of_the_tensors_that_are_still_read(
    fast: torchalgo.Optimized,
) -> None:
    schedule = fast.schedule()
    order = [*schedule.inputs, *(tensor for step in schedule.steps for tensor in step.makes)]
    for number, step in enumerate(schedule.steps):
        later = {tensor for each in schedule.steps[number:] for tensor in each.reads}
        made = {tensor for each in schedule.steps[: number + 1] for tensor in each.makes}
        live = {t for t in order if t in made or t in schedule.inputs}
        live = {t for t in live if t in later or t in schedule.outputs or t in step.makes}
        size = {t.memory: max(u.bytes for u in live if u.memory == t.memory) for t in live}
        if not any(t.memory.startswith("buffer") for t in live):
            assert step.live_bytes == sum(size.values())
        assert step.live_bytes >= sum({t.memory: t.bytes for t in step.makes}.values())
    head, columns, *rows = str(schedule).splitlines()
    assert head.startswith(f"{len(schedule.steps)} steps, ")
    assert columns.split() == ["step", "layer", "runs", "reads", "makes", "KiB", "live", "KiB"]
    assert len(rows) == len(schedule.steps)


def test_a_loaded_file_has_the_same_schedule(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    schedule = fast.schedule()
    assert {step.runs for step in schedule.steps} - {PYTORCH}
    fast.save(tmp_path / "net.pt")
    assert torchalgo.load(tmp_path / "net.pt").schedule() == schedule


def test_a_plan_for_another_graph_is_refused(fast: torchalgo.Optimized) -> None:
    other = imported_net(torch.rand(1, 32, 9, 9)).graph
    with pytest.raises(torchalgo.Error, match="TA2201 plan: "):
        schedule_of(fast.plan, other)


def test_a_plan_without_its_changes_of_layout_is_refused() -> None:
    graph = imported_net(torch.rand(1, 32, 9, 9)).graph
    plan = next(p for p in (any_plan(graph, seed) for seed in range(20)) if p.transforms)
    _C.lower(graph, plan)
    plan.transforms = []
    with pytest.raises(torchalgo.Error, match="which no entry of the plan makes"):
        _C.lower(graph, plan)
