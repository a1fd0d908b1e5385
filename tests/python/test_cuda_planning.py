# SPDX-License-Identifier: BSD-3-Clause
"""Planning for a GPU that is only described: candidates of cuDNN, invented costs, no run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torchvision

from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.costs import environment
from torchalgo._ir.devices import named_device
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.preparation import output_bound

BYTES = {"f32": 4, "tf32": 4, "f16": 2, "bf16": 2}

# Stated peaks of an H100 SXM, dense: bytes and operations per ns.
BYTES_PER_NS = 3350.0
FLOPS_PER_NS = {"tensor_core": 989e3, "": 67e3}


@pytest.fixture(scope="module")
def h100() -> _C.Device:
    device = named_device("h100")
    problem = "fwd_f16_n1c64h8w8_k64r1s1_st1x1_pad0x0_dil1x1_g1"
    if not any(p.name.startswith("cudnn9.") for p in _C.offers_of(problem, device=device)[0]):
        pytest.skip("this torch has no cuDNN")
    return device


@pytest.fixture(scope="module")
def resnet50() -> _C.Imported:
    model = torchvision.models.resnet50(weights=None).eval().half()
    x = torch.zeros(1, 3, 224, 224, dtype=torch.float16)
    return _C.import_graph(freeze_model(model, (x,))._c, (x,))


def roofline_ns(problem: str, primitive: _C.Primitive, traits: _C.Traits) -> float:
    """The greater of compute and memory time, then each hidden copy; 2 us to launch a kernel."""
    elements = math.prod(_C.weight_sizes(problem))
    elements += sum(math.prod(sizes) for sizes in tensor_sizes(problem))
    moved = elements * BYTES[dtype_of(problem)]
    hidden = moved if traits.hidden_bytes is None else traits.hidden_bytes
    copying = 2000 + 2 * hidden / BYTES_PER_NS if hidden else 0
    peak = FLOPS_PER_NS["tensor_core" if "tensor_core" in traits.numerics else ""]
    return 2000 + max(moved / BYTES_PER_NS, _C.flop_count(problem) / peak) + copying


def dtype_of(problem: str) -> str:
    return next(part for part in problem.split("_") if part in BYTES)


def tensor_sizes(problem: str) -> Sequence[Sequence[int]]:
    inputs, result = _C.tensor_sizes(problem)
    return [*inputs, result]


def plan_by_model(
    imported: _C.Imported, device: _C.Device
) -> tuple[_C.Plan, list[Any], _C.Candidates]:
    found = _C.find_candidates(imported.graph, device=device, drop_dominated=True)
    tuning = Tuning(imported.graph, found, {}, TuneSettings(), device=device)
    costs = _C.CostTable()
    pairs = [(c.problem, c.primitive) for anchor in found.by_anchor for c in anchor]
    pairs += [(c.problem, c.primitive) for c in tuning.transforms]
    traits: dict[str, dict[tuple[str, str, str], _C.Traits]] = {}
    for problem, primitive in pairs:
        if problem not in traits:
            primitives, of_each, _ = _C.offers_of(problem, device=device)
            traits[problem] = {
                (p.name, p.src, p.dst): t for p, t in zip(primitives, of_each, strict=True)
            }
        key = (primitive.name, primitive.src, primitive.dst)
        ticks = round(1024 * roofline_ns(problem, primitive, traits[problem][key]))
        costs.set(_C.CostKey(problem, *key), ticks, "model")
    plan, wanted = _C.make_plan(imported.graph, found, tuning.transforms, costs)
    return plan, wanted, found


@pytest.mark.slow
def test_a_half_precision_resnet50_on_an_h100_stays_in_nhwc(
    h100: _C.Device, resnet50: _C.Imported
) -> None:
    plan, wanted, _ = plan_by_model(resnet50, h100)
    assert not wanted
    assert plan.status == "optimal"
    assert plan.cost == plan.lower_bound
    convolutions = [n for n in plan.nodes if n.problem.startswith("fwd_") and n.primitive.name]
    assert len(convolutions) == 53
    inner = [n for n in convolutions if n.name != "conv1"]
    assert {(n.primitive.src, n.primitive.dst) for n in inner} == {("nhwc", "nhwc")}
    assert {n.cost_source for n in convolutions} == {"model"}
    # The caller's nchw image is changed at the door, the 1 x 1 image before the flattening after
    # it; nothing is changed inside.
    assert {t.producer for t in plan.transforms} <= {"", "avgpool"}


def test_only_tensor_core_engines_win_where_they_are_an_order_faster(
    h100: _C.Device, resnet50: _C.Imported
) -> None:
    plan, _, _ = plan_by_model(resnet50, h100)
    assert all(
        n.primitive.name.startswith("cudnn9.")
        for n in plan.nodes
        if n.problem.startswith("fwd_") and n.primitive.name
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
def test_a_residual_without_relu_is_one_call_with_its_convolution(
    h100: _C.Device, name: str
) -> None:
    model = torchvision.models.get_model(name, weights=None).eval().half()
    x = torch.zeros(1, 3, 224, 224, dtype=torch.float16)
    imported = _C.import_graph(freeze_model(model, (x,))._c, (x,))
    sums = [node.name for node in imported.graph.nodes if node.kind == "aten::add"]
    assert len(sums) in (9, 10)
    plan, _, _ = plan_by_model(imported, h100)
    residual = [n for n in plan.nodes if n.problem.endswith("+bias+add")]
    assert [n.primitive.name.partition(".e")[0] for n in residual] == (
        ["cudnn9.conv_bias_add"] * len(sums)
    )
    assert all(not n.primitive.name for n in plan.nodes if n.name in sums)


def test_dominated_candidates_are_left_out_with_a_reason(
    h100: _C.Device, resnet50: _C.Imported
) -> None:
    few = _C.find_candidates(resnet50.graph, device=h100, drop_dominated=True)
    all_of_them = _C.find_candidates(resnet50.graph, device=h100)
    counts = [sum(map(len, found.by_anchor)) for found in (few, all_of_them)]
    assert counts[0] < 0.5 * counts[1]
    reasons = {r.reason for refusals in few.refusals for r in refusals}
    assert any(reason.startswith("not measured: ") for reason in reasons)


def test_no_candidate_is_nondeterministic_if_torch_wants_none(h100: _C.Device) -> None:
    problem = "bwd_data_f16_n8c64h28w28_k64r3s3_st1x1_pad1x1_dil1x1_g1"
    primitives, traits, _ = _C.offers_of(problem, device=h100)
    loose = [p.name for p, t in zip(primitives, traits, strict=True) if not t.is_deterministic]
    assert loose  # else the next lines prove nothing
    net = torch.nn.ConvTranspose2d(64, 64, 3, padding=1).half().eval()
    x = torch.zeros(8, 64, 28, 28, dtype=torch.float16)
    imported = _C.import_graph(freeze_model(net, (x,))._c, (x,))
    found = _C.find_candidates(imported.graph, device=h100, deterministic=True)
    names = {c.primitive.name for anchor in found.by_anchor for c in anchor}
    assert names
    assert not names & set(loose)


def test_float_convolutions_become_tf32_ones_and_still_absorb_what_follows(
    h100: _C.Device,
) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU()).eval()
    x = torch.zeros(1, 8, 10, 10)
    imported = _C.with_tf32_convolutions(_C.import_graph(freeze_model(net, (x,))._c, (x,)))
    assert [n.problem.split("_")[1] for n in imported.graph.nodes] == ["tf32", "f32"]
    found = _C.find_candidates(imported.graph, device=h100, drop_dominated=True)
    fused = [c for c in found.by_anchor[0] if len(c.covers) == 2]
    assert fused
    assert all(c.problem.endswith("+bias+relu") for c in fused)


def test_a_module_of_tf32_convolutions_is_rewritten_and_runs_anywhere() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU()).eval()
    x = torch.rand(1, 8, 10, 10)
    imported = _C.with_tf32_convolutions(_C.import_graph(freeze_model(net, (x,))._c, (x,)))
    found = _C.find_candidates(imported.graph)
    tuning = Tuning(imported.graph, found, {}, TuneSettings())
    scripted = torch.jit._recursive.wrap_cpp_module(
        _C.rewrite_graph(imported, tuning.settle(_C.make_plan))
    )
    with torch.no_grad():
        assert torch.allclose(scripted(x), net(x), atol=1e-5)


def test_the_environment_of_a_gpu_names_gpu_and_cudnn(h100: _C.Device) -> None:
    here = environment(h100)
    assert here["gpu"] == h100.name
    assert here["isa"] == "sm_90"
    assert here["cudnn"] == str(torch.backends.cudnn.version())
    assert "cpu" not in here


def test_outputs_of_coarse_types_have_a_bound_of_their_own(resnet50: _C.Imported) -> None:
    assert output_bound(resnet50.graph, 1e-5) == pytest.approx(1.6e-2)
    assert output_bound(resnet50.graph, 0.5) == 0.5
