# SPDX-License-Identifier: BSD-3-Clause
"""Training graphs of kept networks: what they hold, and that their plans are proven."""

from __future__ import annotations

import argparse

import pytest

import bench_planner
from torchalgo import _C

SMALL = ["alexnet", "efficientnet_b0", "densenet121"]
ARGS = argparse.Namespace(seed=1, choices=12, limit=10.0, check=True)


def inference(name: str) -> _C.Graph:
    ((_, graph),) = bench_planner.read_graphs(bench_planner.GRAPHS, name, quick=False)
    return graph


@pytest.mark.parametrize("name", SMALL)
def test_each_convolution_has_both_gradients_and_the_first_none_of_its_data(name: str) -> None:
    graph = inference(name)
    names = {node.name for node in _C.training_graph(graph).nodes}
    convolutions = [n for n in graph.nodes if n.problem and n.problem.startswith("fwd_")]
    assert all(f"{conv.name}.bwd_filter" in names for conv in convolutions)
    without_data = [c for c in convolutions if f"{c.name}.bwd_data" not in names]
    assert [conv.inputs[0] for conv in without_data] == graph.inputs


@pytest.mark.slow
@pytest.mark.parametrize("costs", ["preferred", "adversarial"])
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", SMALL)
def test_plans_of_networks_are_proven_or_nearly_so(name: str, mode: str, costs: str) -> None:
    graph = inference(name)
    row = bench_planner.measure(
        name, _C.training_graph(graph) if mode == "training" else graph, ARGS, costs
    )
    if (name, mode, costs) == ("densenet121", "training", "adversarial"):
        assert 0 < row["bound"] <= row["cost"] <= 1.005 * row["bound"]  # a search of 10 s
        return
    assert row["status"] == "optimal"
    assert row["cost"] == row["bound"] > 0
    assert row["check_seconds"] is not None  # the independent checker took the proof


Step = tuple[str, str, str, str]  # name, inputs, problem, sizes of the result


def training_of(ops: list[Step], ends: list[str]) -> _C.Graph:
    """Returns the training graph of operations. Operation i makes value i + 1; v0 is the input."""
    lines = ["torchalgo graph 1", "value\tv0\t1,8,4,4\tf32"]
    lines += [f"value\tv{i}\t{sizes}\tf32" for i, (*_, sizes) in enumerate(ops, 1)]
    for i, (name, inputs, problem, _) in enumerate(ops, 1):
        lines.append(f"node\t{name}\t{name}\t{inputs}\t{i}\t{problem}\t")
    return _C.training_graph(_C.parse_graph("\n".join([*lines, *ends, ""])))


def backward_reads(training: _C.Graph, forward: int) -> dict[str, list[str]]:
    """Returns the values that each node behind the first `forward` ones reads."""
    return {
        node.name: [training.values[v].name for v in node.inputs]
        for node in training.nodes[forward:]
    }


def test_a_difference_gives_its_second_input_a_negative() -> None:
    conv = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"
    ops = [
        ("conv", "0", conv, "1,8,4,4"),
        ("scale", "1", "scaleshift_f32_n1c8h4w4", "1,8,4,4"),
        ("sub", "2,1", "sub_f32_n1c8h4w4", "1,8,4,4"),
    ]
    training = training_of(ops, ["input\t0\tnchw", "output\t3"])
    assert backward_reads(training, len(ops)) == {
        "sub.bwd_second": ["v3.grad"],
        "scale.bwd": ["v3.grad", "v1"],
        "v1.bwd_sum1.add": ["sub.bwd_second", "scale.bwd"],
        "conv.bwd_filter": ["v0", "v1.bwd_sum1.add"],
    }


def test_every_kind_of_op_has_its_gradients() -> None:
    """One op of each kind behind a convolution; the results' gradients come from the caller."""
    conv = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"
    up = "bwd_data_f32_n1c8h8w8_k8r2s2_st2x2_pad0x0_dil1x1_g1"
    ops = [
        ("conv", "0", conv + "+bias+silu", "1,8,4,4"),
        ("scale", "1", "scaleshift_f32_n1c8h4w4", "1,8,4,4"),
        ("pool", "2", "maxpool_f32_n1c8h4w4_r2s2_st2x2_pad0x0_dil1x1", "1,8,2,2"),
        ("mean", "2", "avgpool_f32_n1c8h4w4_p1q1", "1,8,1,1"),
        ("gate", "2,4", "mul_f32_n1c8h4w4_channelwise", "1,8,4,4"),
        ("up", "5", up, "1,8,8,8"),
        ("square", "3,3", "mul_f32_n1c8h2w2", "1,8,2,2"),
        ("groups", "7", "groupnorm_f32_n1c8h2w2_g4_eps1e-05+silu", "1,8,2,2"),
    ]  # fmt: skip
    training = training_of(ops, ["input\t0\tnchw", "output\t6", "output\t8"])
    backward = backward_reads(training, len(ops))
    assert backward == {
        "groups.bwd_act": ["v8.grad", "v8"],
        "groups.bwd": ["groups.bwd_act", "v7"],
        "square.bwd": ["groups.bwd", "v3"],
        "v3.bwd_sum1.add": ["square.bwd", "square.bwd"],
        # A transposed convolution's gradient of data is a convolution of the result's gradient.
        "up.bwd_filter": ["v6.grad", "v5"],
        "up.bwd_data": ["v6.grad"],
        "gate.bwd": ["up.bwd_data", "v4"],
        "gate.bwd_second": ["up.bwd_data", "v2"],
        "mean.bwd": ["gate.bwd_second"],
        "pool.bwd": ["v3.bwd_sum1.add", "v2"],
        "v2.bwd_sum1.add": ["gate.bwd", "mean.bwd"],
        "v2.bwd_sum2.add": ["v2.bwd_sum1.add", "pool.bwd"],
        "scale.bwd": ["v2.bwd_sum2.add", "v1"],
        "conv.bwd_act": ["scale.bwd", "v1"],
        "conv.bwd_filter": ["v0", "conv.bwd_act"],
        "conv.bwd_bias": ["conv.bwd_act"],
    }
    problems = {node.name: node.problem for node in training.nodes}
    assert problems["up.bwd_data"] == up.replace("bwd_data", "fwd")
    assert problems["up.bwd_filter"] == up.replace("bwd_data", "bwd_filter")
    assert problems["conv.bwd_filter"] == conv.replace("fwd", "bwd_filter")
    assert problems["gate.bwd"] == "mul_f32_n1c8h4w4_channelwise"
    assert problems["gate.bwd_second"] == "channelsums_f32_n1c8h4w4_perimage_product"


def test_pytorch_computes_the_gradient_of_a_pixel_shuffle() -> None:
    ops = [
        ("conv", "0", "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1", "1,8,4,4"),
        ("up", "1", "pixelshuffle_f32_n1c8h4w4_x2", "1,2,8,8"),
    ]
    training = training_of(ops, ["input\t0\tnchw", "output\t2"])
    assert backward_reads(training, len(ops)) == {
        "up.bwd": ["v2.grad", "v1"],
        "conv.bwd_filter": ["v0", "up.bwd0"],
    }
    assert [node.problem for node in training.nodes if node.name == "up.bwd"] == [None]


def test_views_of_channels_have_views_as_their_gradients() -> None:
    """Slices that cover a value, two that do not, and shuffles, behind convolutions."""
    conv = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"
    ops = [
        ("conv", "0", conv, "1,8,4,4"),
        ("back", "1", "slice_f32_n1c8h4w4_k5from3", "1,5,4,4"),
        ("front", "1", "slice_f32_n1c8h4w4_k3from0", "1,3,4,4"),
        ("join", "2,3", "concat_f32_n1c5x3h4w4", "1,8,4,4"),
        ("shuffle", "4", "shuffle_f32_n1c8h4w4_g4", "1,8,4,4"),
        ("same", "5", "shuffle_f32_n1c8h4w4_g8", "1,8,4,4"),
        ("part", "6", "slice_f32_n1c8h4w4_k5from3", "1,5,4,4"),
    ]
    training = training_of(ops, ["input\t0\tnchw", "output\t7"])
    assert backward_reads(training, len(ops)) == {
        "v6.bwd_slice0": ["v7.grad"],
        "shuffle.bwd": ["v6.bwd_slice0"],  # a shuffle of groups of one channel moves none
        "join.bwd_slice0": ["shuffle.bwd"],
        "join.bwd_slice1": ["shuffle.bwd"],
        "v1.bwd_slices": ["join.bwd_slice1", "join.bwd_slice0"],
        "conv.bwd_filter": ["v0", "v1.bwd_slices"],
    }
    problems = {node.name: node.problem for node in training.nodes}
    assert problems["shuffle.bwd"] == "shuffle_f32_n1c8h4w4_g2"
    assert problems["v1.bwd_slices"] == "concat_f32_n1c3x5h4w4"
