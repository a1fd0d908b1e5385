# SPDX-License-Identifier: BSD-3-Clause
"""Networks of many fields, as their users write them, equal the model as it was given."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from support import other_styles_dense, other_styles_norms, other_styles_signals  # noqa: F401
from support.graph_models import freeze
from support.nets import fp64_error, run_plan
from support.other_styles import STYLES
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C

pytestmark = pytest.mark.filterwarnings("ignore")  # traced models warn about what they bake in

# How many ops with tensor results each network leaves to torch. The numbers may only fall.
EXPECTED_LEFT = {
    "SelectiveKernels": 1, "SplitAttention": 6, "Cbam": 19, "Context": 20,
    "GhostCoordinate": 7, "AttentionUNet": 4, "DeepLab": 0, "BiFpn": 10, "Yolo": 57, "Pose": 0,
    "HolisticEdges": 3, "BlurResNet": 3, "NextNet": 16, "MobileOne": 1, "Video": 31,
    "TextLine": 11, "SiameseTracker": 9, "Stereo": 65, "Edsr": 1, "AdaptiveStyle": 28,
    "TasNet": 76, "WaveNet": 4, "Demucs": 14, "KeywordSpotting": 13,
}  # fmt: skip

# These are optimized in every run of the tests, and the others where slow tests run.
QUICK = ("Context", "Demucs", "WaveNet")


@pytest.mark.parametrize("name", STYLES)
def test_random_plans_equal_the_model_also_at_other_sizes(name: str) -> None:
    style = STYLES[name]
    model, inputs = style.model(), style.inputs(style.shapes)
    imported = _C.import_graph(freeze(model, inputs, "trace")._c, inputs)
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for batch in (inputs, style.inputs(style.other)):
            with torch.no_grad():
                assert_close(module(*batch), model, batch)


@pytest.mark.parametrize("name", STYLES)
def test_no_more_ops_are_left_to_torch(name: str) -> None:
    style = STYLES[name]
    inputs = style.inputs(style.shapes)
    graph = _C.import_graph(freeze(style.model(), inputs, "trace")._c, inputs).graph
    left = [
        node
        for node in graph.nodes
        if node.problem is None and any(graph.values[value].sizes for value in node.outputs)
    ]
    kinds = Counter(node.kind for node in left)
    assert len(left) == EXPECTED_LEFT.get(name), f'"{name}": {len(left)}, left are {dict(kinds)}'


def slow_unless_quick(name: str) -> object:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [slow_unless_quick(name) for name in STYLES])
def test_the_optimized_network_equals_the_model_at_both_sizes(name: str) -> None:
    style = STYLES[name]
    model, inputs = style.model(), style.inputs(style.shapes)
    fast = run_plan(model, *inputs, budget_s=0.5)
    assert fast.runs == "plan"
    for batch in (inputs, style.inputs(style.other)):
        assert fp64_error(model, fast, *batch) <= 1e-5
