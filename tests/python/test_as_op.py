# SPDX-License-Identifier: BSD-3-Clause
"""Tests of an optimized module inside of a model that torch.compile compiles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.nets import arguments, make_net, run_plan
from torchalgo._capture.fake_run import fake_mode
from torchalgo._run.planned_calls import _is_plain

pytestmark = pytest.mark.filterwarnings("ignore:torchalgo. ", "ignore:The .grad attribute")


class Around(nn.Module):
    """A model with ops before and after an optimized module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x * 2)
        return [each + 1 for each in y] if isinstance(y, (tuple, list)) else y + 1


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def optimized(model: nn.Module, *inputs: Tensor, **options: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(model.eval(), inputs, **arguments(run_untimed=True, **options))


class Graphs:
    """A backend that keeps the ops of each graph and runs the graph as it is."""

    def __init__(self) -> None:
        self.ops: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.ops.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph.forward


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@torch.no_grad()
def test_one_op_without_graph_breaks(backend: str) -> None:
    x = torch.rand(1, 3, 24, 24)
    model = Around(optimized(make_net(), x))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        y = torch.rand_like(x)
        torch.testing.assert_close(compiled(y), model(y), rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_the_graph_has_the_op() -> None:
    x, graphs = torch.rand(1, 3, 24, 24), Graphs()
    torch.compile(Around(optimized(make_net(), x)), backend=graphs)(x)
    (ops,) = graphs.ops
    assert sum("run_held_plan" in op for op in ops) == 1


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return y, torch.relu(y).to(memory_format=torch.channels_last)


@torch.no_grad()
def test_results_have_the_model_s_form_and_formats() -> None:
    x = torch.rand(1, 3, 12, 12)
    fast = optimized(Parts(), x)
    got = torch.compile(fast, backend="aot_eager", fullgraph=True)(x)
    for mine, expected in zip(got, fast(x), strict=True):
        assert torch.equal(mine, expected) and mine.stride() == expected.stride()


@torch.no_grad()
def test_a_changed_weight_is_an_error_until_refresh() -> None:
    x, net = torch.rand(1, 3, 24, 24), make_net().eval()
    fast = optimized(net, x)
    compiled = torch.compile(Around(fast), backend="aot_eager", fullgraph=True)
    compiled(x)
    name, weight = next(iter(net.named_parameters()))
    weight.mul_(1.5)
    with pytest.raises(RuntimeError, match=rf"TA1404 .*{name!r}.*refresh"):
        compiled(x)
    fast.refresh()
    torch.testing.assert_close(compiled(x), Around(net)(x), rtol=1e-4, atol=1e-5)


def replace_weight(net: Any) -> None:
    net.stem[0].weight = nn.Parameter(2 * net.stem[0].weight)


def write_through_data(net: Any) -> None:
    net.stem[0].weight.data.mul_(2)


@pytest.mark.parametrize("change", [replace_weight, write_through_data])
@torch.no_grad()
def test_other_changes_are_errors_too(change: Callable[[nn.Module], None]) -> None:
    x, net = torch.rand(1, 3, 24, 24), make_net().eval()
    fast = optimized(net, x)
    compiled = torch.compile(Around(fast), backend="aot_eager", fullgraph=True)
    compiled(x)
    change(net)
    with pytest.raises(RuntimeError, match=r"TA1404 .*'stem.0.weight'.*refresh"):
        compiled(x)
    fast.refresh()
    torch.testing.assert_close(compiled(x), Around(net)(x), rtol=1e-4, atol=1e-5)


class SizedByHalf(nn.Module):
    """Computes a size from the input's size and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y[:, :, : x.size(2) // 2]


@torch.no_grad()
def test_sizes_may_be_computed() -> None:
    x = torch.rand(1, 3, 24, 24)
    fast = run_plan(SizedByHalf().eval(), x)  # the baseline serves its own sizes only
    compiled = torch.compile(Around(fast), backend="aot_eager", fullgraph=True)
    for size in (24, 32):
        y = torch.rand(1, 3, size, size)
        torch.testing.assert_close(compiled(y), Around(fast)(y))


@pytest.mark.parametrize("strict", [True, False])
@torch.no_grad()
def test_an_optimized_module_is_not_exported(strict: bool) -> None:
    x = torch.rand(1, 3, 24, 24)
    fast = optimized(make_net(), x)
    with pytest.raises(Exception, match=r"TA1402 .*\.save\('model\.pt2'\)"):
        torch.export.export(fast, (x,), strict=strict)


@torch.no_grad()
def test_a_plan_ends_with_its_module() -> None:
    x = torch.rand(1, 3, 24, 24)
    net = make_net().eval()
    fast = optimized(net, x)
    torch.compile(fast, backend="aot_eager")(x)
    handle = fast._as_op.handle(((1, 3, 24, 24),), [torch.float32], ["cpu"])  # type: ignore[union-attr]
    weight = weakref.ref(net.stem[0].weight)
    torch._dynamo.reset()
    del fast, net
    gc.collect()
    assert weight() is None
    with pytest.raises(RuntimeError, match="TA4303"):
        torch.ops.torchalgo.run_held_plan([x], handle)


@torch.no_grad()
def test_a_weight_that_changed_before_compilation_is_an_error() -> None:
    x, net = torch.rand(1, 3, 24, 24), make_net().eval()
    fast = optimized(net, x)
    next(net.parameters()).mul_(1.5)
    compiled = torch.compile(Around(fast), backend="aot_eager")
    with pytest.raises(torchalgo.Error, match="TA1404"):
        compiled(x)
    fast.refresh()
    torch.testing.assert_close(compiled(x), Around(net)(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_other_calls_run_outside_of_the_compiled_code() -> None:
    x, net = torch.rand(1, 3, 24, 24), make_net().eval()
    fast = optimized(net, x)
    model = Around(fast)
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    strided = torch.rand(1, 3, 24, 48)[..., ::2]
    torch.testing.assert_close(compiled(strided * 1), Around(net)(strided), rtol=1e-4, atol=1e-5)
    with torch.enable_grad():
        y = torch.rand(1, 3, 24, 24, requires_grad=True)
        compiled(y).sum().backward()
    assert y.grad is not None
    assert sum(fast.original_runs.values()) == 1
    assert torch.equal(compiled(x), model(x))


@torch.no_grad()
def test_other_sizes_run_the_plans_or_the_original() -> None:
    net = make_net().eval()
    x = torch.rand(1, 3, 24, 24)
    model = Around(optimized(net, x))
    compiled = torch.compile(model, backend="aot_eager")
    for shape in ((1, 3, 24, 24), (2, 3, 24, 24), (1, 3, 32, 28)):
        y = torch.rand(shape)
        torch.testing.assert_close(compiled(y), Around(net)(y), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_module_without_a_plan_is_planned_by_its_first_call() -> None:
    net, x = make_net().eval(), torch.rand(1, 3, 24, 24)
    fast = torchalgo.optimize(net, **arguments(run_untimed=True))
    compiled = torch.compile(Around(fast), backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), Around(net)(x), rtol=1e-4, atol=1e-5)
    assert fast.plan


class FourFormats(nn.Module):
    """Returns tensors whose formats do and do not depend on the input's."""

    def __init__(self, conv: type[nn.Module], last: torch.memory_format) -> None:
        super().__init__()
        self.conv: Any = conv(3, 8, 3)  # type: ignore[call-arg, arg-type]
        self.last = last

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = self.conv(x)
        return y, y.contiguous(), torch.relu(y).to(memory_format=self.last), x + 1


CHANNELS_LAST: list[tuple[type[nn.Module], torch.memory_format, tuple[int, ...]]] = [
    (nn.Conv2d, torch.channels_last, (1, 3, 12, 12)),
    (nn.Conv2d, torch.channels_last, (2, 3, 12, 9)),
    (nn.Conv3d, torch.channels_last_3d, (1, 3, 8, 8, 8)),
]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("conv", "last", "shape"), CHANNELS_LAST)
@torch.no_grad()
def test_inputs_in_channels_last_stay_in_the_graph_with_eager_s_formats(
    conv: type[nn.Module], last: torch.memory_format, shape: tuple[int, ...], backend: str
) -> None:
    model = FourFormats(conv, last).eval()
    fast = optimized(model, torch.rand(shape))
    compiled = torch.compile(fast, backend=backend, fullgraph=True)
    for x in (torch.rand(shape), torch.rand(shape).contiguous(memory_format=last)):
        for mine, expected, given in zip(compiled(x), fast(x), model(x), strict=True):
            torch.testing.assert_close(mine, expected)
            assert mine.stride() == expected.stride() == given.stride()
    assert not fast.original_runs


@torch.no_grad()
def test_a_loaded_module_returns_the_same_formats_inside_of_compiled_code(tmp_path: Any) -> None:
    x = torch.rand(1, 3, 12, 12)
    optimized(FourFormats(nn.Conv2d, torch.channels_last), x).save(tmp_path / "model.pt")
    loaded = torchalgo.load(tmp_path / "model.pt")
    compiled = torch.compile(loaded, backend="aot_eager")
    for each in (x, x.contiguous(memory_format=torch.channels_last)):
        for mine, expected in zip(compiled(each), loaded(each), strict=True):
            torch.testing.assert_close(mine, expected)
            assert mine.stride() == expected.stride()


class RefusesZeros(nn.Module):
    """Fails for an image of zeros, so that its formats cannot be learned while torch compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async((x != 0).any())
        return self.conv(x)


@torch.no_grad()
def test_slices_and_models_that_refuse_zeros_run_outside_of_the_compiled_code() -> None:
    x = torch.rand(1, 3, 12, 12)
    for net, y in (
        (make_net(), torch.rand(1, 3, 12, 24)[..., ::2]),
        (RefusesZeros(), x.contiguous(memory_format=torch.channels_last)),
    ):
        torch._dynamo.reset()
        fast, graphs = optimized(net, x), Graphs()
        compiled = torch.compile(nn.Sequential(fast, nn.ReLU()), backend=graphs)
        torch.testing.assert_close(compiled(y), torch.relu(net(y)), rtol=1e-4, atol=1e-5)
        assert not any("run_held_plan" in op for ops in graphs.ops for op in ops)


@torch.no_grad()
def test_autocast_of_the_devices_in_use_ends_the_op() -> None:
    x = torch.rand(1, 3, 12, 12)
    with fake_mode():
        on_gpu = torch.empty(1, 3, 12, 12, device="cuda")
    net = make_net().eval()
    fast, graphs = optimized(net, x), Graphs()
    for device, is_cpu, is_gpu in (("cpu", False, True), ("cuda", True, False)):
        torch._dynamo.reset()
        graphs.ops.clear()
        torch.set_autocast_enabled(device, True)
        try:
            assert (_is_plain(x), _is_plain(on_gpu)) == (is_cpu, is_gpu)
            found = torch.compile(Around(fast), backend=graphs)(x)
            assert found.dtype is Around(net)(x).dtype
        finally:
            torch.set_autocast_enabled(device, False)
        assert any("run_held_plan" in op for ops in graphs.ops for op in ops) is is_cpu
