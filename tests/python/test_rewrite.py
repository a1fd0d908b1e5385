# SPDX-License-Identifier: BSD-3-Clause
"""rewrite_graph: the rewritten module computes what the model computes, whatever the plan."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.graph_models import CAPTURED, freeze, make_model
from support.random_plans import any_plan, assert_close, op_counts, rewrite
from torchalgo import _C

# Control flow, a dictionary, a tensor that is changed in place and seen.
NEEDS_INTERPRETER = ("branch", "loop", "many_outputs", "in_place_but_seen")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "capture"), CAPTURED)
def test_any_plan_computes_what_the_model_computes(name: str, capture: str, seed: int) -> None:
    model, inputs = make_model(name)
    imported = _C.import_graph(freeze(model, inputs, capture)._c, inputs)
    plan = any_plan(imported.graph, seed)
    module = rewrite(imported, plan)
    spelled = [f"{n.name}: {n.primitive} {n.absorbed_by}" for n in plan.nodes]
    with torch.no_grad():
        try:
            assert_close(module(*inputs), model, inputs)
            runner = _C.GraphRunner.make(module._c, [])
            assert (runner is None) == (name in NEEDS_INTERPRETER)
            if runner is not None:
                assert_close(runner.run(*inputs), model, inputs)
        except AssertionError as error:
            raise AssertionError(f"{error}; plan {spelled}") from error


@pytest.mark.parametrize("prefix", ["cpu.", "aten."])
@pytest.mark.parametrize(("name", "capture"), CAPTURED)
def test_each_call_of_the_plan_is_one_op(name: str, capture: str, prefix: str) -> None:
    model, inputs = make_model(name)
    imported = _C.import_graph(freeze(model, inputs, capture)._c, inputs)
    plan = any_plan(imported.graph, 0, prefix=prefix)
    counts = op_counts(rewrite(imported, plan))
    chosen = [n for n in plan.nodes if not n.absorbed_by]
    convolutions = [  # a chain with a second input runs as other ops do
        n
        for n in chosen
        if n.problem.startswith(("fwd_", "bwd_data_", "chain_")) and "_mul" not in n.problem
    ]
    own = {node.name for node in imported.graph.nodes if node.problem}
    absorbing = {n.absorbed_by for n in plan.nodes if n.absorbed_by}
    kept = [
        n
        for n in chosen
        if n not in convolutions
        and n.name not in absorbing
        and not n.problem.startswith("slice_")
        and n.primitive.name.startswith("aten.")
        and n.primitive.src == n.primitive.dst == "nchw"
    ]
    assert {n.name for n in plan.nodes} == own

    def count(*ops: str) -> int:
        return sum(counts[f"torchalgo::{op}"] for op in ops)

    assert count("run_conv", "run_conv_out") == len(convolutions)
    others = len(chosen) - len(convolutions) - len(kept)
    assert count("run_op", "run_op_out", "join", "slice") == others
    assert count("transform", "transform_out", "relabel") == len(plan.transforms)


def test_ops_run_as_the_graph_says() -> None:
    model, inputs = make_model("residual")
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    module = rewrite(imported, any_plan(imported.graph, 1, prefix="cpu."))
    counts = op_counts(module)
    with torch.no_grad(), torch.profiler.profile(acc_events=True) as profile:
        module(*inputs)
    ran = {e.key: e.count for e in profile.key_averages() if e.key.startswith("torchalgo::")}
    assert ran == counts
    assert ran["torchalgo::run_conv"] == 3


def test_the_residual_is_added_by_the_convolution() -> None:
    model, inputs = make_model("residual")
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    fused = [
        f"{n.name} {n.problem}"
        for seed in range(4)
        for n in any_plan(imported.graph, seed, prefix="cpu.").nodes
        if "+add" in n.problem
    ]
    assert fused, "no seed made a plan that absorbs the addition"


def test_a_saved_module_runs_the_same() -> None:
    model, inputs = make_model("concat")
    imported = _C.import_graph(freeze(model, inputs, "script")._c, inputs)
    module = rewrite(imported, any_plan(imported.graph, 2, prefix="cpu."))
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    with torch.no_grad():
        assert torch.equal(loaded(*inputs), module(*inputs))
    assert op_counts(loaded) == op_counts(module)


def test_other_input_sizes_run() -> None:
    model, inputs = make_model("squeeze")
    imported = _C.import_graph(freeze(model, inputs, "script")._c, inputs)
    module = rewrite(imported, any_plan(imported.graph, 3, prefix="cpu."))
    other = (torch.rand(1, 4, 12, 10),)
    with torch.no_grad():
        assert_close(module(*other), model, other)


def test_a_channels_last_input_is_taken_as_it_is() -> None:
    model, inputs = make_model("residual")
    inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    assert imported.graph.input_layouts == ["nhwc"]
    for seed in range(3):
        module = rewrite(imported, any_plan(imported.graph, seed))
        with torch.no_grad():
            assert_close(module(*inputs), model, inputs)
            assert module(*inputs).is_contiguous()


def test_rewriting_changes_neither_the_import_nor_the_model() -> None:
    model, inputs = make_model("residual")
    frozen = freeze(model, inputs, "trace")
    graph: Any = frozen.graph
    before = str(graph)
    imported = _C.import_graph(frozen._c, inputs)
    first = rewrite(imported, any_plan(imported.graph, 0, prefix="cpu."))
    second = rewrite(imported, any_plan(imported.graph, 5))
    assert str(graph) == before
    with torch.no_grad():
        assert_close(first(*inputs), model, inputs)
        assert_close(second(*inputs), model, inputs)
        assert_close(frozen(*inputs), model, inputs)


def test_weights_are_shared_with_the_frozen_module() -> None:
    model, inputs = make_model("shared")
    frozen = freeze(model, inputs, "trace")
    imported = _C.import_graph(frozen._c, inputs)
    module = rewrite(imported, any_plan(imported.graph, 0))
    buffers = [io.BytesIO(), io.BytesIO()]
    torch.jit.save(frozen, buffers[0])
    torch.jit.save(module, buffers[1])
    weights = model.conv.weight.numel() * 4
    assert len(buffers[1].getvalue()) - len(buffers[0].getvalue()) < weights + 16384


def test_tensors_inside_arguments_are_reached() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(
            self, pair: tuple[Tensor, list[Tensor]], named: dict[str, Tensor], extra: Tensor | None
        ) -> dict[str, Tensor]:
            first, rest = pair
            y = self.conv(first) + self.conv(rest[0])
            if extra is not None:
                y = y + extra
            return {"sum": y, "named": self.conv(named["key"]).relu()}

    model = Nested().eval()
    x, y, z = torch.rand(3, 1, 4, 8, 8)
    frozen = torch.jit.freeze(torch.jit.script(model))
    for extra in (None, y):
        inputs = ((x, [y]), {"key": z}, extra)
        imported = _C.import_graph(frozen._c, inputs)
        for seed in range(3):
            module = rewrite(imported, any_plan(imported.graph, seed))
            with torch.no_grad():
                got, expected = module(*inputs), model(*inputs)
            assert got.keys() == expected.keys()
            for key in got:
                assert torch.allclose(got[key], expected[key], atol=1e-5), key


def plan_for(name: str) -> tuple[_C.Imported, _C.Plan]:
    model, inputs = make_model(name)
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    return imported, any_plan(imported.graph, 0)


def test_a_plan_of_another_model_is_refused_with_the_first_difference() -> None:
    _, foreign = plan_for("shared")
    imported, _ = plan_for("residual")
    with pytest.raises(_C.Error, match="node 0 is conv in the plan, conv1 in the model"):
        _C.rewrite_graph(imported, foreign)


def test_a_plan_for_other_shapes_is_refused_with_the_first_difference() -> None:
    _, plan = plan_for("shared")
    model, _ = make_model("shared")
    larger = (torch.rand(1, 4, 10, 10),)
    imported = _C.import_graph(freeze(model, larger, "trace")._c, larger)
    with pytest.raises(_C.Error, match=r"conv is fwd_f32_n1c4h8w8.* in the plan, fwd_f32_n1c4h10"):
        _C.rewrite_graph(imported, plan)


def test_a_plan_whose_transform_is_missing_is_refused() -> None:
    model, inputs = make_model("shared")
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    for seed in range(20):
        plan = any_plan(imported.graph, seed)
        if plan.transforms:
            plan.transforms = []
            with pytest.raises(_C.Error, match=r"no entry of the plan makes"):
                _C.rewrite_graph(imported, plan)
            return
    pytest.fail("no seed made a plan with a transform")


@pytest.mark.parametrize("seed", range(4))
def test_a_part_of_a_chunk_never_takes_the_planned_channels_of_another_input(seed: int) -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a, b = x.chunk(2, 1)
            return torch.relu(a) * torch.sigmoid(b)

    inputs = (torch.rand(1, 32, 6, 5),)
    imported = _C.import_graph(freeze(Gate().eval(), inputs, "trace")._c, inputs)
    module = rewrite(imported, any_plan(imported.graph, seed))
    other_size = torch.rand(2, 32, 9, 7) - 0.5
    torch.testing.assert_close(module(other_size), Gate()(other_size))
    with pytest.raises(RuntimeError, match="expected an input of rank 4 with 32 channels"):
        module(torch.rand(1, 48, 6, 5))
