# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile(model, backend="torchalgo") and optimize(torch.export.export(...))."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import random
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchalgo
from support.nets import Net, make_net
from torchalgo import _C, dynamo
from torchalgo._capture.freeze import freeze_model
from torchalgo._capture.fx_model import exported_model, path_of
from torchalgo._dynamo.compiled_graph import CompiledGraph
from torchalgo._dynamo.effects import why_not_planned
from torchalgo._dynamo.options import read_options
from torchalgo._dynamo.read_graph import GraphInputs

QUICK = {"budget_s": 4.0, "cost_db": False}
Compiled = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """No test runs the graphs of another."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    gc.collect()


def compiled_net(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="torchalgo", options={**QUICK, **options})


def expect_equal(compiled: Compiled, model: nn.Module, *inputs: torch.Tensor) -> None:
    """Compares with the model on copies in double precision."""
    want = copy.deepcopy(model).double()(*(x.double() for x in inputs))
    error = (compiled(*inputs).double() - want).norm() / want.norm()
    assert error <= 1e-5


def the_report(compiled: nn.Module) -> dynamo.GraphReport:
    graphs = dynamo.report(compiled).graphs
    assert len(graphs) == 1
    return graphs[0]


# ---- plans ---------------------------------------------------------------------------------------


def test_a_compiled_model_runs_the_plan_that_optimize_would_apply(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    compiled = torch.compile(net, backend="torchalgo", options={"plan": fast.plan})
    assert torch.equal(compiled(x), fast(x))
    plan = the_report(compiled).plans["1x3x40x40"]
    assert plan.structure_hash == fast.plan.structure_hash
    assert [node.name for node in plan.nodes] == [node.name for node in fast.plan.nodes]
    assert the_report(compiled).original_runs == {}


class Nested(nn.Module):
    """Layers in lists, dicts and functions, an activation that is used twice, and two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)])
        self.heads = nn.ModuleDict({"left": nn.Conv2d(4, 8, 1), "right": nn.Conv2d(4, 8, 1)})
        self.act = nn.ReLU()
        self.scale = nn.Parameter(torch.rand(1, 4, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.act(block(x))
        x = nn.functional.max_pool2d(x * self.scale, 2)
        return torch.cat([head(x) for head in self.heads.values()], 1)


class NamedInput(nn.Conv2d):
    """The argument has the name of a function of Python, which a graph's node cannot have."""

    def __init__(self) -> None:
        super().__init__(4, 8, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


@pytest.mark.parametrize("make", [make_net, Nested, NamedInput])
def test_each_door_gives_the_same_names_and_structure_hash(make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    x = torch.rand(2, 3 if make is make_net else 4, 24, 24)
    seen: list[_C.Graph] = []

    def look(graph_module: Any, examples: Any) -> Any:
        from torchalgo._dynamo.compiled_graph import CompiledGraph
        from torchalgo._dynamo.options import read_options
        from torchalgo._dynamo.read_graph import is_weight, read_inputs

        inputs = read_inputs(graph_module, examples)
        weights = [each for each in examples if is_weight(each)]
        graph = CompiledGraph(graph_module, inputs, weights, read_options(None, None))
        seen.append(graph_of(graph.model_of(weights), x))
        return graph_module.forward

    torch.compile(model, backend=look)(x)
    seen.append(graph_of(exported_model(torch.export.export(model, (x,))), x))
    want = graph_of(model, x)
    for graph in seen:
        assert [n.name for n in graph.nodes] == [n.name for n in want.nodes]
        assert graph.structure_hash == want.structure_hash


def graph_of(model: nn.Module, x: torch.Tensor) -> _C.Graph:
    return _C.import_graph(freeze_model(model, (x,))._c, (x,)).graph


def test_paths_of_dynamo_become_dotted_names() -> None:
    assert path_of("L['self']._modules['a']._modules['0']._parameters['weight']") == (
        "self",
        "a.0.weight",
    )
    assert path_of("L['self'].layer1.0") == ("self", "layer1.0")
    assert path_of("G['net'].blocks[3]['left']") == ("net", "blocks.3.left")
    assert path_of("layer1.0.conv1") == ("", "layer1.0.conv1")


def test_torch_finds_the_backend_without_an_import_of_torchalgo() -> None:
    code = "import torch; print('torchalgo' in torch._dynamo.list_backends())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_changes_of_weights_are_seen(x: torch.Tensor) -> None:
    """Two models share one graph. Each call equals eager after any change."""
    pick = random.Random(3)
    models = [make_net(), make_net()]
    for parameter in models[1].parameters():
        parameter.mul_(1.1)
    compiled = [compiled_net(model) for model in models]
    states = [copy.deepcopy(model.state_dict()) for model in models]
    changes = [
        lambda model, state: [p.add_(0.01 * torch.randn_like(p)) for p in model.parameters()],
        lambda model, state: model.load_state_dict(state),
        lambda model, state: model.load_state_dict(state, assign=True),
        lambda model, state: model.layer1[0].conv1.weight.copy_(
            0.1 * torch.randn_like(model.layer1[0].conv1.weight)
        ),
        lambda model, state: setattr(
            model.fc.weight, "data", 0.1 * torch.randn_like(model.fc.weight)
        ),
        lambda model, state: model.stem[1].running_var.mul_(1.2),
        lambda model, state: None,
    ]
    for _ in range(12):
        i = pick.randrange(2)
        pick.choice(changes)(models[i], copy.deepcopy(states[i]))
        expect_equal(compiled[i], models[i], x)
    assert not dynamo.report().original_runs


def test_a_step_of_an_optimizer_is_seen(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net)
    expect_equal(compiled, net, x)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.enable_grad():
        net(x).sum().backward()
    optimizer.step()
    expect_equal(compiled, net, x)
    assert the_report(compiled).repacked == 1


def test_writes_through_data_are_seen_or_need_refresh(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net)
    compiled(x)
    for parameter in net.parameters():
        parameter.data.mul_(1.5)
    expect_equal(compiled, net, x)
    net.layer1[0].conv1.weight.data[0, 0].mul_(3)  # its middle element stays
    dynamo.refresh(compiled)
    expect_equal(compiled, net, x)


def test_a_failed_packing_is_tried_again(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net)
    expect_equal(compiled, net, x)
    weight = net.layer1[0].conv2.weight
    before = weight.detach().clone()
    weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="PyTorch runs this graph"):
        assert compiled(x).isnan().all()
    assert compiled(x).isnan().all()
    weight.copy_(2 * before)
    expect_equal(compiled, net, x)


class Small(nn.Module):
    """A convolution, and whatever `then` does with its result."""

    def __init__(self, then: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("state", torch.zeros(4))
        self.then = then

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self, x, self.conv(x))


def expect_left_to_pytorch(model: nn.Module, why: str) -> None:
    """Calls the compiled model four times. Each result must be that of a copy in PyTorch."""
    own = copy.deepcopy(model)
    compiled = compiled_net(model)
    for i in range(4):
        x = torch.rand(1, 3, 8, 8) + i
        torch.manual_seed(i)
        with pytest.warns(UserWarning, match=why) if i == 0 else contextlib.nullcontext():
            found = compiled(x)
        torch.manual_seed(i)
        torch.testing.assert_close(found, own(x))
        assert type(found) is torch.Tensor
        assert torch.equal(model.state, own.state)
    assert not torch.is_autocast_enabled("cpu")


def test_writes_to_views_of_buffers_are_seen() -> None:
    def shift(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y + m.state[:2].sum()
        m.state[1:] += x.mean()
        return y

    def shift_list(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([m.state[:1]], [x.mean().reshape(1)])
        return y * m.state.sum()

    for change in (shift, shift_list):
        expect_left_to_pytorch(Small(change).eval(), "it writes to state")


def test_a_view_of_a_buffer_is_not_returned_by_a_plan() -> None:
    model, x = Small(lambda m, x, y: (y, m.state[:2])), torch.rand(1, 3, 8, 8)
    assert "returns state or a view" in why_not_planned(model.eval(), [x])
    for made in (lambda state: state[:2] + 1, torch.relu):
        model = Small(lambda m, x, y, made=made: (y, made(m.state)))
        assert why_not_planned(model.eval(), [x]) == ""


def test_the_value_of_a_tensor_is_no_constant() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return self.conv(x) * n.item()

    model, x = Scaled().eval(), torch.rand(1, 3, 8, 8)
    compiled: Any = torch.compile(model, backend="torchalgo", options=QUICK, fullgraph=True)
    with pytest.warns(UserWarning, match="reads the value of a tensor"):
        compiled(x, torch.tensor(2))
    torch.testing.assert_close(compiled(x, torch.tensor(3)), model(x, torch.tensor(3)))
    program = torch.export.export(model, (x, torch.tensor(2)))
    with pytest.raises(torchalgo.Error, match=r"TA1115.* reads the value"):
        torchalgo.optimize(program, (x, torch.tensor(2)), budget_s=2)


def test_autocast_around_and_inside_compiled_code() -> None:
    def inside(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.dropout(m.conv(x), 0.5, True)
        return y.float()

    expect_left_to_pytorch(Small(inside).train(), "random numbers")
    model = Small(lambda m, x, y: y).eval()
    compiled, x = compiled_net(model), torch.rand(1, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(UserWarning, match="torch.autocast is on"):
            found = compiled(x)
        torch.testing.assert_close(found, model(x))
        assert type(found) is torch.Tensor and found.dtype is torch.bfloat16


def test_inputs_of_another_type_get_a_plan_of_their_own() -> None:
    model = Small(lambda m, x, y: y).eval()
    compiled = compiled_net(lambda x: model(x.float() / 255))
    for x in (torch.randint(0, 255, (1, 3, 16, 16), dtype=torch.uint8), torch.rand(1, 3, 16, 16)):
        torch.testing.assert_close(compiled(x), model(x.float() / 255))
    assert not dynamo.report().original_runs


def test_gradients_that_compiled_code_enables() -> None:
    model = Small(lambda m, x, y: y).eval()

    @torch.compile(backend="torchalgo", options=QUICK)
    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return model(x)

    with pytest.warns(UserWarning, match="gradients are enabled"):
        found = call(torch.rand(1, 3, 8, 8))
    with torch.enable_grad():
        found.sum().backward()
    assert model.conv.weight.grad is not None


def test_weights_that_are_new_in_each_call_are_planned_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchalgo._dynamo.compiled_graph.FREE_SETS", 2)

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, w)

    shape = (1, 3, 8, 8)
    inputs = GraphInputs((1,), ("w",), (0,), ("x",), (shape,))
    weights, x = [torch.rand(4, 3, 3, 3) for _ in range(5)], torch.rand(shape)
    module = torch.fx.symbolic_trace(convolve)
    graph = CompiledGraph(module, inputs, weights[:1], read_options(None, QUICK))
    for i, weight in enumerate([*weights, weights[0]]):
        with pytest.warns(UserWarning) if i == 2 else contextlib.nullcontext():
            torch.testing.assert_close(graph(x, weight), convolve(x, weight))
    assert sum(graph.not_planned.values()) == 3


def test_a_limit_of_weights_lets_plans_be_taken_over(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net, weight_limit_bytes=1 << 30)
    compiled(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C, "measure", None)
        expect_equal(compiled, net, torch.rand(2, *x.shape[1:]))
    assert not dynamo.report().original_runs


def test_graphs_end_with_the_compiled_code(x: torch.Tensor) -> None:
    model = make_net()
    compiled = compiled_net(model)
    compiled(x)
    ref = weakref.ref(model.fc.weight)
    assert len(dynamo.report().graphs) == 1
    del compiled, model
    torch._dynamo.reset()
    gc.collect()
    assert dynamo.report().graphs == ()
    assert ref() is None


# ---- shapes --------------------------------------------------------------------------------------


def test_other_shapes_run_the_first_plan(net: Net) -> None:
    compiled = compiled_net(net)
    shapes = [(1, 40, 40), (1, 48, 40), (2, 40, 56), (3, 33, 57), (4, 64, 64), (5, 41, 35)]
    for n, h, w in shapes:
        expect_equal(compiled, net, torch.rand(n, 3, h, w))
    report = dynamo.report(compiled)
    assert not report.original_runs
    for graph in report.graphs:
        assert list(graph.plans) == ["1x3x40x40"]  # it was measured once
    # torch makes at most one more graph: some values of a size are special to it.
    for n in range(6, 20):
        expect_equal(compiled, net, torch.rand(n, 3, 30 + n, 70 - n))
    after = dynamo.report(compiled)
    assert len(after.graphs) <= len(report.graphs) + 1
    assert not after.original_runs


def test_new_shapes_get_plans_of_their_own_if_wanted(net: Net) -> None:
    compiled = torch.compile(
        net, backend="torchalgo", dynamic=True, options={**QUICK, "new_shapes": "tune"}
    )
    for size in (44, 48, 48, 56):
        expect_equal(compiled, net, torch.rand(2, 3, size, 40))
    assert list(the_report(compiled).plans) == ["2x3x44x40", "2x3x48x40", "2x3x56x40"]


# ---- what PyTorch runs ---------------------------------------------------------------------------


def test_gradients_are_those_of_eager_and_counted(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net)
    with torch.enable_grad():
        want = torch.autograd.grad(net(x).square().sum(), net.fc.weight)[0]
        with pytest.warns(UserWarning, match=r"gradients are enabled.*torch\.no_grad"):
            got = torch.autograd.grad(compiled(x).square().sum(), net.fc.weight)[0]
    torch.testing.assert_close(got, want)
    assert sum(dynamo.report(compiled).original_runs.values()) == 1
    expect_equal(compiled, net, x)


def test_train_mode_runs_in_pytorch_and_eval_mode_again_by_a_plan(
    net: Net, x: torch.Tensor
) -> None:
    compiled = compiled_net(net)
    expect_equal(compiled, net, x)
    net.train()
    twin = copy.deepcopy(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(net.stem[1].running_mean, twin.stem[1].running_mean)
    net.eval()
    expect_equal(compiled, net, x)


def test_a_graph_without_convolutions_is_handed_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    compiled = compiled_net(model)
    x = torch.rand(2, 4)
    assert torch.equal(compiled(x), model(x))
    assert list(dynamo.report(compiled).original_runs) == ["it has no convolutions"]


class Breaks(nn.Module):
    """A model with a graph break between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x)


def test_both_sides_of_a_graph_break_are_planned() -> None:
    model = Breaks().eval()
    compiled = compiled_net(model)
    expect_equal(compiled, model, torch.rand(1, 3, 20, 20))
    report = dynamo.report(compiled)
    assert [len(graph.plans) for graph in report.graphs] == [1, 1]
    assert not report.original_runs


def test_a_function_with_a_number_and_two_models_is_right() -> None:
    first, second = nn.Conv2d(3, 8, 3).eval(), nn.Conv2d(8, 4, 3).eval()

    def run(x: torch.Tensor, factor: float) -> torch.Tensor:
        return second(first(x).relu() * factor)

    compiled = torch.compile(run, backend="torchalgo", options=QUICK)
    x = torch.rand(1, 3, 20, 20)
    for factor in (2.0, 2.0, 3.0):
        torch.testing.assert_close(compiled(x, factor), run(x, factor))


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 3}, r"TA1001 .*options\['budget'\] is unknown"),
        ({"new_shapes": "all"}, r"TA1001 .*new_shapes"),
        ({"max_error": 0}, r"TA1001 .*max_error"),
        ({"training": True}, r"TA1001 .*'training'.* is unknown"),
    ],
)
def test_wrong_options_are_refused(
    net: Net, x: torch.Tensor, options: dict[str, Any], message: str
) -> None:
    compiled = torch.compile(net, backend="torchalgo", options=options)
    with pytest.raises(Exception, match=message):
        compiled(x)


def test_wrong_modes_are_refused(net: Net, x: torch.Tensor) -> None:
    compiled = torch.compile(net, backend="torchalgo", mode="reduce-overhead")
    with pytest.raises(Exception, match=r"TA1001 .*mode='reduce-overhead'.*max-autotune"):
        compiled(x)


def test_report_shows_what_ran(net: Net, x: torch.Tensor) -> None:
    compiled = compiled_net(net)
    for _ in range(3):
        compiled(x)
    text = str(dynamo.report(compiled))
    assert "3 of 3 calls ran a plan" in text
    assert "inputs 1x3x40x40: predicted" in text
    with pytest.raises(torchalgo.Error, match=r"TA1101 dynamo\.report"):
        dynamo.report(1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_snippets_of_the_page_run(net: Net, x: torch.Tensor) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "compile.md").read_text()
    names: dict[str, Any] = {"model": net, "x": x}
    for snippet in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(snippet, names)
    assert names["fast"].plan.nodes
    assert not dynamo.report(names["compiled"]).original_runs


# ---- torch.export --------------------------------------------------------------------------------


def test_an_exported_program_is_planned_like_its_model(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    batch = torch.export.Dim.DYNAMIC
    program = torch.export.export(net, (x.repeat(2, 1, 1, 1),), dynamic_shapes=({0: batch},))
    settings = torchalgo.Settings(progress=False)
    planned = torchalgo.optimize(program, budget_s=4, settings=settings)
    assert planned.plan.structure_hash != ""
    applied = torchalgo.optimize(torch.export.export(net, (x,)), plan=fast.plan, settings=settings)
    assert torch.equal(applied(x), fast(x))
    expect_equal(planned, net, torch.rand(5, 3, 40, 40))
    assert not planned.original_runs
    with pytest.raises(torchalgo.Error, match=r"TA4301 .*expected \?x3x40x40"):
        planned(torch.rand(2, 3, 48, 40))


class Sized(nn.Module):
    """Computes with the sizes of its images between two convolutions."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.compute(self.first(x)))


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "views": _shuffled,
    "twice the size": lambda x: functional.interpolate(x, (2 * x.shape[2], 2 * x.shape[3])),
    "a factor": lambda x: functional.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "a slice": lambda x: x[:, :, : x.shape[2] // 2, 1:],
    "a part": lambda x: x.narrow(3, 1, x.shape[3] - 2),
    "a new tensor": lambda x: x + torch.full((x.shape[0], 1, 1, x.shape[3]), 0.5),
    "positions": lambda x: x + torch.arange(x.shape[3]).float() / x.shape[2],
    "a number of elements": lambda x: x.flatten(2).sum(2)[..., None, None] / x[0, 0].numel(),
    "the longer side": lambda x: x / torch.sym_max(x.shape[2], x.shape[3]),
    "half of it, rounded down": lambda x: x.narrow(2, 0, math.floor(x.shape[2] / 2)),
    "a root": lambda x: x / torch.sym_sqrt(x.shape[2]),
    "a bound": lambda x: x.clamp(max=x.shape[0] / x.shape[3]),
    "a pool": lambda x: functional.adaptive_avg_pool2d(x, (x.shape[2] // 2, 4)),
    "half of it, rounded up": lambda x: x.narrow(2, 0, math.ceil(x.shape[2] / 2)),
    "a sum of sizes": lambda x: x / (x.shape[0] + x.shape[2] + x.shape[3]),
    "the shorter side": lambda x: x / torch.sym_min(x.shape[2], x.shape[3]),
    "pads": lambda x: functional.pad(x, (0, x.shape[2], 1, 0)),
    "copies": lambda x: x.mean(3, keepdim=True).repeat(1, 1, 1, x.shape[2]),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_an_exported_program_stay_free(name: str) -> None:
    model, x = Sized(SIZES[name]).eval(), torch.rand(2, 3, 12, 16)
    free = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(model, (x,), dynamic_shapes=(free,))
    settings = torchalgo.Settings(progress=False, cost_db=False, run_untimed=True)
    planned = torchalgo.optimize(program, budget_s=2, settings=settings)
    for sizes in ((2, 3, 12, 16), (3, 3, 20, 10), (1, 3, 8, 14)):
        expect_equal(planned, model, torch.rand(sizes))
    assert not planned.original_runs


def test_inputs_of_an_exported_program_whose_sizes_have_one_name_are_compared() -> None:
    class Joined(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.conv2d(x, torch.ones(3, 3, 1, 1)).flatten(1).sum(1) + y.sum(1)

    batch = torch.export.Dim("batch")
    given = torch.rand(2, 3, 4, 4), torch.rand(2, 5)
    program = torch.export.export(Joined(), given, dynamic_shapes=({0: batch}, {0: batch}))
    with pytest.raises(torchalgo.Error, match=r"TA4301 .*expected equal sizes"):
        exported_model(program)(torch.rand(2, 3, 4, 4), torch.rand(3, 5))


class TwoWays(nn.Module):
    """A model that takes a number and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, other: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.conv(x) + other["y"]


def test_an_exported_program_with_other_arguments_is_refused() -> None:
    x, y = torch.rand(1, 3, 8, 8), torch.rand(1, 4, 6, 6)
    program = torch.export.export(TwoWays().eval(), (x, {"y": y}))
    with pytest.raises(torchalgo.Error, match=r"TA1207 .*tensors by position"):
        torchalgo.optimize(program)
