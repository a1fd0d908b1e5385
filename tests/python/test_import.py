# SPDX-License-Identifier: BSD-3-Clause
"""import_graph: names, problems and data flow of a frozen module, against the eager model."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from support.graph_models import CAPTURED, freeze, make_model
from support.imported_graphs import graph_of, import_model, notes, outputs, problems, reads
from torchalgo import _C

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def spell_convolution(conv: nn.Module, x: Tensor) -> str:
    """The forward problem of a module with symmetric padding, written down independently."""
    assert isinstance(conv, nn.Conv2d)
    n, c, h, w = x.shape
    (r, s), (sh, sw), (dh, dw) = conv.kernel_size, conv.stride, conv.dilation
    ph, pw = conv.padding
    return (
        f"fwd_f32_n{n}c{c}h{h}w{w}_k{conv.out_channels}r{r}s{s}_st{sh}x{sw}_pad{ph}x{pw}"
        f"_dil{dh}x{dw}_g{conv.groups}"
    )


def spell_convolutions(model: nn.Module, x: Tensor) -> dict[str, str]:
    """The problem of every call of a convolution, by hooks on the eager model."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):

            def note(conv: nn.Module, args: Any, _: Any, name: str = name) -> None:
                found[name] = spell_convolution(conv, args[0])

            module.register_forward_hook(note)
    with torch.no_grad():
        model(x)
    return found


@pytest.mark.parametrize("capture", ["trace", "script"])
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "googlenet",
        "densenet121",
        "mobilenet_v3_large",
        "efficientnet_b0",
        "shufflenet_v2_x1_0",
        "inception_v3",
    ],
)
def test_every_convolution_is_planned_under_its_module_path(name: str, capture: str) -> None:
    is_inception = name in ("googlenet", "inception_v3")
    options = {"init_weights": False, "aux_logits": False} if is_inception else {}
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(**options).eval()
    x = torch.rand(1, 3, 80, 80)
    graph = import_model(model, (x,), capture)
    expected = spell_convolutions(model, x)
    planned = {
        node.name: node.problem.split("+")[0]
        for node in graph.nodes
        if node.problem and node.problem.startswith("fwd_")
    }
    assert planned == expected
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)
    opaque = {node.kind for node in graph.nodes if node.problem is None}
    assert not opaque & {"aten::relu", "aten::cat", "aten::max_pool2d", "aten::batch_norm"}


def test_traced_and_scripted_models_give_the_same_plan_keys() -> None:
    traced, scripted = (graph_of("residual", capture) for capture in ("trace", "script"))
    assert problems(traced) == problems(scripted)


def test_the_residual_model_is_read_node_by_node() -> None:
    graph = graph_of("residual", "trace")
    eltwise = "f32_n2c8h9w9"
    conv = "fwd_f32_n2c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias"
    assert problems(graph) == {
        "conv1": "fwd_f32_n2c3h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias",
        "relu": f"relu_{eltwise}",
        "conv2": conv,
        "down": "fwd_f32_n2c3h9w9_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias",
        "add_0": f"add_{eltwise}",
        "relu#1": f"relu_{eltwise}",
    }
    assert reads(graph, "conv1") == ["x"]
    assert reads(graph, "down") == ["x"]
    assert reads(graph, "add_0") == ["conv2", "down"]
    assert outputs(graph) == ["relu#1"]
    assert [graph.values[value].name for value in graph.inputs] == ["x"]
    assert graph.input_layouts == ["nchw"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_calls_of_one_module_are_counted(capture: str) -> None:
    graph = graph_of("shared", capture)
    assert [node.name for node in graph.nodes] == ["conv", "relu_0", "conv#1"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_convolutions_of_a_module_list_keep_its_name(capture: str) -> None:
    graph = graph_of("listed", capture)
    convolutions = [n.name for n in graph.nodes if n.problem and n.problem.startswith("fwd_")]
    assert convolutions == ["stages.0.0", "heads.0", "stages.1.0", "heads.1"]
    assert outputs(graph) == ["heads.0", "heads.1"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_functional_convolutions_are_counted(capture: str) -> None:
    graph = graph_of("functional", capture)
    assert problems(graph) == {
        "conv2d_0": "fwd_f32_n1c4h9w9_k6r3s3_st2x2_pad0x0_dil1x1_g1",
        "hardswish_0": "hardswish_f32_n1c6h4w4",
        "conv2d_1": "fwd_f32_n1c6h4w4_k4r1s1_st1x1_pad0x0_dil1x1_g1",
    }


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_padding_modes_become_numbers(capture: str) -> None:
    graph = graph_of("padding", capture)
    found = problems(graph)
    assert found["same"] == "fwd_f32_n1c4h12w12_k4r5s5_st1x1_pad4x4_dil2x2_g1+bias"
    assert found["valid"] == "fwd_f32_n1c4h12w12_k4r3s3_st1x1_pad0x0_dil1x1_g1+bias"
    assert found["reflect"] == "fwd_f32_n1c4h12w12_k4r3s3_st1x1_pad0x0_dil1x1_g1+bias"
    assert found["reflect.pad"] is None
    one_more = "fwd_f32_n1c4h10w10_k4r2s2_st1x1_pad0x0x1x1_dil1x1_g1+bias"
    assert found["one_sided"] == one_more


def test_a_branch_is_one_opaque_node_that_reads_what_it_captures() -> None:
    graph = graph_of("branch", "script")
    assert problems(graph)["stem"] and problems(graph)["head"]
    branch = next(node for node in graph.nodes if node.kind == "prim::If")
    assert branch.problem is None
    assert branch.note == "inside a branch or loop: bright, dark"
    assert "stem" in reads(graph, branch.name)
    assert reads(graph, "head") == [branch.name]


def test_a_loop_of_fixed_count_is_unrolled_and_another_is_opaque() -> None:
    graph = graph_of("loop", "script")
    loop = next(node for node in graph.nodes if node.kind == "prim::Loop")
    assert loop.note == "inside a branch or loop: step"
    planned = [n.name for n in graph.nodes if n.problem and n.problem.startswith("fwd_")]
    assert planned == ["step", "step#1", "head"]
    assert reads(graph, "step") == [loop.name]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_outputs_are_found_in_tuples_and_dicts(capture: str) -> None:
    graph = graph_of("many_outputs", capture)
    assert outputs(graph) == ["relu_0", "high", "max_pool2d_0"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_inputs_have_the_names_of_the_arguments(capture: str) -> None:
    graph = graph_of("two_inputs", capture)
    names = [graph.values[value].name for value in graph.inputs]
    # Modules of the same names: a value name stands for one value.
    assert names == ["image:input", "mask:input"]
    assert reads(graph, "image") == ["image:input"]
    assert reads(graph, "mask") == ["mask:input"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_concat_reads_its_parts_even_if_the_list_grew(capture: str) -> None:
    graph = graph_of("concat", capture)
    assert problems(graph)["cat_0"] == "concat_f32_n2c4x20x12h8w8"
    assert reads(graph, "cat_0") == ["x", "left", "relu6_0"]


def test_a_list_that_grows_after_it_was_read_keeps_its_past() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(4, 4, 1)
            self.two = nn.Conv2d(8, 4, 1)
            self.three = nn.Conv2d(12, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            found = [x]
            found.append(self.one(x))
            found.append(self.two(torch.cat(found, 1)))
            return self.three(torch.cat(found, 1))

    graph = import_model(Dense().eval(), (torch.rand(1, 4, 8, 8),), "script")
    assert problems(graph)["cat_0"] == "concat_f32_n1c4x4h8w8"
    assert problems(graph)["cat_1"] == "concat_f32_n1c4x4x4h8w8"
    assert reads(graph, "cat_1") == ["x", "one", "two"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_a_list_may_be_joined_and_returned(capture: str) -> None:
    graph = graph_of("twice", capture)
    assert problems(graph)["cat_0"] == "concat_f32_n1c4x4x4h8w8"
    assert outputs(graph) == ["join", "add_0", "x", "mul_0"]


class PoolMixer(nn.Module):
    """The mixer of PoolFormer: an average of neighbours minus the pixel itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_a_difference_of_two_images_is_planned(capture: str) -> None:
    graph = import_model(PoolMixer().eval(), (torch.rand(1, 4, 8, 8),), capture)
    assert problems(graph)["sub_0"] == "sub_f32_n1c4h8w8"
    assert reads(graph, "sub_0") == ["avg_pool2d_0", "conv"]


@torch.jit.script
class Holder:
    def __init__(self, held: Tensor) -> None:
        self.held = held


def test_a_tensor_that_passes_through_an_object_is_followed() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(Holder(x.relu()).held)

    graph = import_model(Held().eval(), (torch.rand(1, 4, 8, 8),), "script")
    assert problems(graph)["conv"] is not None
    assert reads(graph, "conv") == ["get_attr_0"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_pieces_of_rows_come_from_an_opaque_node(capture: str) -> None:
    graph = graph_of("pieces", capture)
    unpack = next(node for node in graph.nodes if node.kind == "prim::ListUnpack")
    assert unpack.problem is None
    assert reads(graph, unpack.name) == ["conv"]
    assert reads(graph, "left") == [unpack.name]
    assert reads(graph, "right") == [f"{unpack.name}:1"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_batch_norms_that_no_convolution_takes_are_scale_shifts(capture: str) -> None:
    graph = graph_of("norms", capture)
    assert problems(graph)["bn"] == "scaleshift_f32_n1c8h8w8"
    assert problems(graph)["plain"] == "scaleshift_f32_n1c8h8w8"


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_layer_norms_over_channels_are_read_with_their_permutes(capture: str) -> None:
    graph = graph_of("layer_norms", capture)
    problems = [node.problem for node in graph.nodes]
    assert [p for p in problems if p and p.startswith("layernorm")] == [
        "layernorm_f32_n2c24h7w9_eps1e-06",
        "layernorm_f32_n2c24h7w9_eps1e-05",
        "layernorm_f32_n2c24h7w9_eps1e-05",
    ]
    kinds = [node.kind for node in graph.nodes if node.problem is None]
    assert kinds == ["aten::layer_norm", "aten::permute", "aten::contiguous"]


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_linear_layers_between_permutes_are_convolutions(capture: str) -> None:
    graph = graph_of("convnext", capture)
    found = problems(graph)
    assert [p and p.partition("_n2")[0] for p in found.values()] == [
        "fwd_f32", "layernorm_f32", "fwd_f32", "gelu_f32", "fwd_f32", "add_f32", "relu_f32",
        "fwd_f32", None, None,
    ]  # fmt: skip
    assert found["wide"] == "fwd_f32_n2c12h9w8_k48r1s1_st1x1_pad0x0_dil1x1_g1+bias"
    assert found["narrow"] == "fwd_f32_n2c48h9w8_k12r1s1_st1x1_pad0x0_dil1x1_g1"
    kinds = [node.kind for node in graph.nodes if node.problem is None]
    assert kinds == ["aten::permute", "aten::contiguous"]  # of the result, which stays last


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_a_transposed_convolution_is_the_gradient_it_is(capture: str) -> None:
    graph = graph_of("transposed", capture)
    assert problems(graph)["up"] == "bwd_data_f32_n1c4h14w14_k6r3s3_st2x2_pad1x1_dil1x1_g2+bias"
    assert problems(graph)["line"] == "bwd_data_f32_n1c3h1w30_k4r1s4_st1x2_pad0x0_dil1x1_g1+bias"


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_one_and_three_dimensions_are_read(capture: str) -> None:
    found = problems(graph_of("dimensions", capture))
    assert found["volume"] == ("fwd_f32_n2c3d5h9w12_k4t3r3s3_st1x2x1_pad1x0x1_dil1x1x1_g1+bias")
    assert found["line"] == "fwd_f32_n2c4h1w12_k6r1s5_st1x2_pad0x2_dil1x2_g1+bias"
    assert found["last"] == "fwd_f32_n2c6h1w4_k6r1s1_st1x1_pad0x0_dil1x1_g1+bias"


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_what_is_changed_in_place_is_not_planned(capture: str) -> None:
    graph = graph_of("in_place", capture)
    # y is written through a view: its producer must not lay it out anew.
    assert problems(graph)["conv2"] is None
    assert "in place" in notes(graph)["conv2"]
    assert problems(graph)["conv1"] is not None


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_in_place_ops_that_nobody_else_sees_are_planned(capture: str) -> None:
    graph = graph_of("in_place_in_lists", capture)
    assert not [text for text in notes(graph).values() if "in place" in text]
    found = problems(graph)
    assert all(found[name] is not None for name in ("stem", "body", "root", "head"))
    graph = graph_of("in_place_but_seen", capture)
    assert [name for name in ("one", "two") if problems(graph)[name] is not None] == []


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_dropout_vanishes(capture: str) -> None:
    graph = graph_of("dropouts", capture)
    assert not [node.name for node in graph.nodes if "drop" in node.name]
    assert problems(graph)["fc"] == "linear_f32_n2c8_k5+bias"


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_squeeze_and_resize_are_planned(capture: str) -> None:
    graph = graph_of("squeeze", capture)
    assert problems(graph)["mul_0"] == "mul_f32_n2c16h8w8_channelwise"
    # The tensor of full size comes first, whatever the order in the model.
    assert reads(graph, "mul_0") == ["conv", "hardsigmoid_0"]
    assert problems(graph)["up"] == "nearest_f32_n2c16h4w4_x2x2"
    assert problems(graph)["pool"] == "avgpool_f32_n2c16h8w8_p1q1"


@pytest.mark.parametrize(("name", "capture"), CAPTURED)
def test_importing_twice_gives_one_structure_hash(name: str, capture: str) -> None:
    model, inputs = make_model(name)
    frozen = freeze(model, inputs, capture)
    first, second = (_C.import_graph(frozen._c, inputs).graph for _ in range(2))
    assert first.structure_hash == second.structure_hash
    recaptured = import_model(model, inputs, capture)
    assert first.structure_hash == recaptured.structure_hash


@pytest.mark.parametrize(("name", "capture"), CAPTURED)
def test_names_are_clean_and_values_follow_their_node(name: str, capture: str) -> None:
    graph = graph_of(name, capture)
    for node in graph.nodes:
        assert re.fullmatch(r"[A-Za-z0-9_.]+(#\d+)?", node.name), node.name
        assert "SELF" not in node.name and "__module" not in node.name
        for i, value in enumerate(node.outputs):
            expected = node.name if i == 0 else f"{node.name}:{i}"
            assert graph.values[value].name == expected


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_equal_weights_do_not_mix_up_names(capture: str) -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, 4, 1)
            self.second = copy.deepcopy(self.first)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    graph = import_model(Copies().eval(), (torch.rand(1, 4, 8, 8),), capture)
    assert [node.name for node in graph.nodes] == ["first", "second"]


def test_a_weight_that_is_computed_once_keeps_the_name_of_its_layer() -> None:
    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, self.weight / self.weight.norm(), self.bias)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(Standardized(4, 4, 1), nn.ReLU())
            self.norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.body(x))

    graph = import_model(Net().eval(), (torch.rand(1, 4, 8, 8),), "trace")
    assert [node.name for node in graph.nodes] == ["body.0", "body.1", "norm"]
