# SPDX-License-Identifier: BSD-3-Clause
"""What users do with the module that optimize returns."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, fp64_error, make_net, run_plan
from torchalgo._capture.formats import MOST_KNOWN
from torchalgo._run.original import Original


@pytest.fixture
def own(net: Net, x: torch.Tensor, fast: torchalgo.Optimized) -> torchalgo.Optimized:
    """`net` optimized, for tests that change it."""
    return torchalgo.optimize(net, x, plan=fast.plan, settings=torchalgo.Settings(progress=False))


@pytest.mark.parametrize("shape", [(1, 3, 33, 57), (3, 3, 40, 40), (2, 3, 8, 8), (1, 3, 64, 40)])
def test_other_shapes_and_batches_are_right(
    net: Net, fast: torchalgo.Optimized, shape: tuple[int, ...]
) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    assert fp64_error(net, fast, x) <= 1e-5


def test_another_memory_format_is_right(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    last = x.contiguous(memory_format=torch.channels_last)
    assert fp64_error(net, fast, last) <= 1e-5
    assert fp64_error(net, fast, x.expand(2, -1, -1, -1)) <= 1e-5
    assert fp64_error(net, fast, x[..., ::2]) <= 1e-5


def test_another_number_of_threads_after_planning_is_right(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            assert fp64_error(net, fast, x) <= 1e-5
    finally:
        torch.set_num_threads(before)


def test_two_threads_may_call_at_once(fast: torchalgo.Optimized) -> None:
    inputs = [torch.rand(1, 3, 24 + 8 * i, 40) for i in range(4)]
    want = [fast(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.allclose(fast(inputs[i]), want[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:torchalgo. another call is planning")
def test_two_threads_may_make_the_first_call(net: Net, x: torch.Tensor) -> None:
    """One of them plans, and the other one runs the original meanwhile."""
    fast = torchalgo.optimize(net, settings=torchalgo.Settings(progress=False))
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(fast(x))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.allclose(results[0], results[1], atol=1e-5)
    assert fast.original_runs.total() <= 1 and len(fast.plans) == 1


def test_deepcopy_and_pickle_run_the_same_plan(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    saved = io.BytesIO()
    torch.save(fast, saved)
    saved.seek(0)
    for again in (
        copy.deepcopy(fast),
        copy.copy(fast),
        pickle.loads(pickle.dumps(fast)),
        torch.load(saved, weights_only=False),
    ):
        assert again is not fast
        assert again.runs == "plan"
        assert again.plan == fast.plan
        assert torch.equal(again(x), fast(x))


def test_it_is_a_submodule_like_any_other(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    whole = nn.Sequential(own, nn.Linear(10, 2)).train()
    assert whole.training
    assert not own.training
    assert whole.to(torch.float32)(x).shape == (1, 2)
    assert [name for name, _ in whole.named_parameters()] == ["1.weight", "1.bias"]
    plain = nn.Sequential(net, nn.Linear(10, 2))
    assert list(whole.state_dict()) == list(plain.state_dict())
    whole(x).sum().backward()
    assert all(p.grad is not None for p in whole.parameters())


def test_a_checkpoint_of_the_whole_loads_into_both_and_is_packed(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    whole = nn.Sequential(own, nn.Linear(10, 2)).eval()
    checkpoint = {
        key: value * 1.25 if value.is_floating_point() else value
        for key, value in whole.state_dict().items()
    }
    before = own(x)
    saved = io.BytesIO()
    torch.save(checkpoint, saved)
    saved.seek(0)
    missing, unexpected = whole.load_state_dict(torch.load(saved))
    assert not missing
    assert not unexpected
    assert fp64_error(net, own, x) <= 1e-5
    assert not torch.allclose(own(x), before)
    assert own.runs == "plan"
    del checkpoint["0.fc.bias"]
    with pytest.raises(RuntimeError, match="Missing key"):
        whole.load_state_dict(checkpoint)
    own.load_state_dict(net.state_dict())
    assert fp64_error(net, own, x) <= 1e-5


def test_an_optimizer_step_is_seen_and_refresh_packs_the_new_weights(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(x.expand(2, -1, -1, -1)).sum().backward()
    optimizer.step()
    net.eval()
    with pytest.raises(torchalgo.Error, match=r"was changed after optimize: call .refresh\(\)"):
        own(x)
    assert own.refresh() is own
    assert fp64_error(net, own, x) <= 1e-5
    assert own.runs == "plan"


def test_a_refresh_that_fails_leaves_the_change_an_error(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    weight = net.layer1[0].conv2.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(math.nan)
    for _ in range(2):
        with pytest.raises(torchalgo.Error):
            own.refresh()
        with pytest.raises(torchalgo.Error, match=r"TA1404 .*'layer1.0.conv2.weight'"):
            own(x[..., ::2])
    with torch.no_grad():
        weight.copy_(2 * before)
    assert fp64_error(net, own.refresh(), x) <= 1e-5


@pytest.mark.parametrize(
    "change",
    [
        lambda conv: conv.weight.data.mul_(2),
        lambda conv: setattr(conv.weight, "data", conv.weight.data * 2),
        lambda conv: setattr(conv, "weight", nn.Parameter(conv.weight * 2)),
        lambda conv: conv.load_state_dict({"weight": conv.weight * 2}),
        lambda conv: conv.load_state_dict({"weight": conv.weight * 2}, assign=True),
    ],
)
def test_a_changed_weight_is_an_error_and_never_ignored(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized, change: Callable[[nn.Module], object]
) -> None:
    with torch.no_grad():
        change(net.layer1[0].conv2)
    with pytest.raises(torchalgo.Error, match=r"'layer1.0.conv2.weight' of the original"):
        own(x)
    assert fp64_error(net, own.refresh(), x) <= 1e-5


@pytest.mark.slow
def test_every_call_looks_at_every_weight(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    counts = [m.num_batches_tracked for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for weight in [*net.parameters(), *counts]:
        with torch.no_grad():
            weight.add_(0)
        for given in (x, x[..., ::2]):
            with pytest.raises(torchalgo.Error, match="TA1404"):
                own(given)
        own.refresh()
    assert own(x).isfinite().all()


def test_a_change_is_not_forgotten_by_copies(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    with torch.no_grad():
        net.layer1[0].conv2.weight.mul_(2)
    for each in (copy.copy(own), *own.by_shape.values()):
        with pytest.raises(torchalgo.Error, match=r"TA1404 .*'layer1\.0\.conv2\.weight'"):
            each(x)
    with pytest.raises(torchalgo.Error, match="TA1404"):
        copy.deepcopy(own)


def test_copies_have_weights_of_their_own_or_share_them(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    deep, flat = copy.deepcopy(own), copy.copy(own)
    want = own(x)
    deep.load_state_dict({k: v * 2 if v.dim() == 4 else v for k, v in net.state_dict().items()})
    assert torch.equal(own(x), want)
    assert not torch.allclose(deep(x), want)
    assert torch.equal(flat(x), want)
    assert flat.state_dict().keys() == net.state_dict().keys()


def test_attributes_of_the_model_pass_through(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    net.config = {"depth": 3}  # type: ignore[assignment]
    assert own.config is net.config
    assert own.fc is net.fc
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        own.missing  # noqa: B018
    with pytest.raises(torchalgo.Error, match="Set 'config' on the original model"):
        own.config = {}
    with pytest.raises(torchalgo.Error, match="Set 'fc' on the original model"):
        own.fc = nn.Linear(32, 5)
    loaded = pickle.loads(pickle.dumps(own))
    with pytest.raises(AttributeError, match="no attribute 'config', and the original model is"):
        loaded.config  # noqa: B018
    for name in ("state_dict", "refresh"):
        with pytest.raises(torchalgo.Error, match=f"{name}: the original model, which has the"):
            getattr(loaded, name)()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are using the legacy")
def test_script_returns_the_planned_module_and_other_exports_say_what_to_do(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    assert torch.equal(torch.jit.script(own)(x), own(x))
    whole = torch.jit.script(nn.Sequential(own, nn.Linear(10, 2)).eval())
    assert whole(x).shape == (1, 2)
    with pytest.raises(torchalgo.Error, match=r"cannot be traced: put its .scripted"):
        torch.jit.trace(own, x)
    for export in (
        lambda: torch.onnx.export(own, (x,), io.BytesIO(), dynamo=False),
        lambda: torch.export.export(own, (x,)),
    ):
        with pytest.raises(torchalgo.Error, match="portable=True"):
            export()


def test_moves_that_change_nothing_are_allowed(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    assert fast.to("cpu") is fast
    assert fast.float() is fast
    assert fast.to(memory_format=torch.channels_last) is fast
    assert fast.eval() is fast
    assert fast.train(False) is fast
    assert fast.train() is fast
    assert not fast.training
    assert fast.requires_grad_(False) is fast


def test_moves_that_would_change_it_are_errors(fast: torchalgo.Optimized) -> None:
    for move in (
        fast.half,
        fast.double,
        fast.bfloat16,
        lambda: fast.to(torch.float64),
        lambda: fast.to("meta"),
    ):
        with pytest.raises(torchalgo.Error, match=r"cannot be moved from torch.float32 on cpu to"):
            move()


def test_an_input_of_another_dtype_or_device_is_an_error(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    with pytest.raises(torchalgo.Error, match=r"input x is torch.float64, .*for torch.float32"):
        fast(x.double())
    with pytest.raises(torchalgo.Error, match="input x is on meta, expected cpu"):
        fast(x.to("meta"))


def test_an_input_that_requires_a_gradient_gets_the_originals(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    with pytest.warns(
        UserWarning, match="input x requires a gradient: there is no plan for this call"
    ):
        own(leaf).sum().backward()
    net(other).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, other.grad)  # type: ignore[arg-type]
    assert own.original_runs == {"input x requires a gradient": 1}
    with torch.no_grad():
        assert not own(leaf).requires_grad
    with torch.inference_mode():
        assert own(x).shape == (1, 10)
    assert own.original_runs.total() == 1
    loaded = pickle.loads(pickle.dumps(own))
    with pytest.raises(torchalgo.Error, match="input x requires a gradient: only the original"):
        loaded(leaf)


def test_the_original_runs_inside_autocast_transforms_and_for_subclasses(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    class Tagged(torch.Tensor):
        pass

    with torch.no_grad(), pytest.warns(UserWarning, match="inside torch.autocast"):
        with torch.autocast("cpu", torch.bfloat16):
            assert own(x).dtype == torch.bfloat16
            assert torch.equal(own(x), net(x))
        tagged = own(x.as_subclass(Tagged))
        batch = torch.vmap(own)(x[None])
    assert type(tagged) is Tagged
    assert torch.equal(batch, torch.vmap(net)(x[None]))
    assert own.original_runs == {
        "inside torch.autocast": 2,
        f"input x is a {__name__}.{Tagged.__qualname__}": 1,
        "inside a transform of torch.func": 1,
    }
    net.train()
    with torch.autocast("cpu"), pytest.raises(torchalgo.Error, match="is in train mode now"):
        own(x)


class Features(nn.Module):
    """The result has the memory format of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(x).relu())


def test_the_original_may_be_trained_further_while_the_plan_runs(
    net: Net, x: torch.Tensor, own: torchalgo.Optimized
) -> None:
    net.train()
    with torch.no_grad():
        want = own(x)
        assert torch.allclose(own(x.to(memory_format=torch.channels_last)), want, atol=1e-5)
    assert not own.original_runs


def test_results_have_the_strides_that_the_original_gives_them(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = Features().eval()
    channels_last = x.to(memory_format=torch.channels_last)
    least = channels_last[..., :3, :3].contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for example in (x, channels_last):
            fast = run_plan(model, example)
            fast(least)  # the result is one pixel, which has every format
            for given in (
                x, channels_last, x[..., ::2], channels_last[..., ::2], x.expand(3, -1, -1, -1),
                x.transpose(2, 3), x[:0], channels_last, x,
            ):  # fmt: skip
                got, want = fast(given), model(given)
                assert got.stride() == want.stride()
                assert torch.allclose(got, want, atol=1e-5)


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.contiguous(memory_format=torch.channels_last),
    lambda x: x.contiguous(memory_format=torch.channels_last)[:, :, 1:, 1:],
    lambda x: x[:, :, 1:],
    lambda x: x[:1].expand(3, -1, -1, -1),
    lambda x: x.transpose(2, 3),
    lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
]


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_the_original_runs_once_for_inputs_of_one_layout_whatever_their_sizes(
    x: torch.Tensor, layout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, runs = Features().eval(), []
    run = Original.run_tensors

    def counted(self: Original, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        runs.append(tensors[0].shape)
        return run(self, tensors)

    monkeypatch.setattr(Original, "run_tensors", counted)
    fast = run_plan(model, x)
    sizes = [(height, width) for height in range(14, 31) for width in range(14, 30)]
    assert len(sizes) > MOST_KNOWN
    with torch.no_grad():
        for size in sizes:
            given = LAYOUTS[layout](torch.rand(2, 3, *size))
            assert fast(given).stride() == model(given).stride()
    assert len(runs) == 1
    assert not fast.original_runs


def test_a_wrong_number_of_channels_is_an_error(fast: torchalgo.Optimized) -> None:
    with pytest.raises(RuntimeError, match="channels") as caught:
        fast(torch.rand(1, 4, 40, 40))
    assert "TorchScript" not in str(caught.value)


def test_the_report_is_html_text_or_json(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    for suffix in (".html", ".txt", ".json"):
        fast.report(tmp_path / f"report{suffix}")
    html = (tmp_path / "report.html").read_text()
    assert "layer1.0.conv2" in html
    assert "http:" not in html and "https:" not in html
    assert (tmp_path / "report.txt").read_text() == f"{fast.plan}\n"
    assert torchalgo.load_plan(tmp_path / "report.json") == fast.plan
    with pytest.raises(torchalgo.Error, match=r"ends in '.pdf', expected one of .html, .txt, .csv"):
        fast.report(tmp_path / "report.pdf")


def test_its_text_says_what_runs(fast: torchalgo.Optimized, net: Net) -> None:
    assert "runs='plan'" in repr(fast)
    assert "plans on its first call" in repr(torchalgo.optimize(net))


def test_a_plan_of_other_threads_says_so(
    fast: torchalgo.Optimized, x: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(threads: str) -> str:
        environment = {**fast.plan.environment, "threads": threads}
        plan = dataclasses.replace(fast.plan, environment=environment)
        torchalgo.optimize(make_net(), x, plan=plan)
        return capsys.readouterr().err

    assert "torch.get_num_threads() = 77, and here it is" in said("77")
    assert "get_num_threads" not in said(str(torch.get_num_threads()))
