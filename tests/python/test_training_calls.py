# SPDX-License-Identifier: BSD-3-Clause
"""A model of optimize_training under hooks, checkpoints, modes and wrong arguments."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint

import torchalgo
from support.training_models import (
    Chain,
    Mixed,
    Residual,
    Trio,
    images,
    options,
    trio,
    weighted,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- hooks ---------------------------------------------------------------------------------------


class Record:
    """Hooks of one module: what each of them has seen."""

    def __init__(self, module: nn.Module) -> None:
        self.seen: list[tuple[str, list[Tensor]]] = []
        module.register_forward_pre_hook(lambda _, args: self.note("pre", args))
        module.register_forward_hook(lambda _, args, result: self.note("forward", (result,)))
        module.register_full_backward_hook(lambda _, ins, outs: self.note("backward", outs))

    def note(self, kind: str, values: Any) -> None:
        kept = [v.detach().double() for v in values if isinstance(v, Tensor)]
        self.seen.append((kind, kept))


def check_same(found: Record, exact: Record) -> None:
    assert [kind for kind, _ in found.seen] == [kind for kind, _ in exact.seen]
    assert {"pre", "forward", "backward"} <= {kind for kind, _ in exact.seen}
    for (kind, values), (_, wanted) in zip(found.seen, exact.seen, strict=True):
        for value, want in zip(values, wanted, strict=True):
            assert torch.allclose(value, want, atol=1e-4), kind


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # x needs no gradient
@pytest.mark.parametrize("name", ["block.conv2", "block.bn1", "block", "stem", "fc", ""])
@pytest.mark.parametrize("is_before", [True, False])
def test_hooks_fire_as_in_eager(tmp_path: Path, name: str, is_before: bool) -> None:
    # A backward hook forbids changes of the module's result in place, also in eager.
    model = Mixed(inplace=False)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    if is_before:
        record = Record(model.get_submodule(name))
    both = Trio(torchalgo.optimize_training(model, (images(),), **options(tmp_path)), eager, exact)
    if not is_before:
        record = Record(both.planned.get_submodule(name))
    wanted = Record(both.exact.get_submodule(name))
    record.seen.clear()
    for seed in range(2):
        both.check_step(images(seed=seed))
    check_same(record, wanted)


def test_a_hook_may_replace_a_result_and_may_be_removed(tmp_path: Path) -> None:
    both = trio(Mixed(inplace=False), images(), tmp_path)
    handles = [
        model.get_submodule("block").register_forward_hook(lambda _, args, result: result * 2)
        for model, _ in both.each()
    ]
    both.check_step(images())
    for handle in handles:
        handle.remove()
    before = both.planned.planned_runs
    both.check_step(images())
    assert both.planned.planned_runs == before + 1


def test_hooks_of_all_modules_and_of_parameters_fire(tmp_path: Path) -> None:
    both = trio(Chain(), images(), tmp_path)
    counts = []
    for model, dtype in both.each():
        calls: list[str] = []
        note: Callable[..., None] = lambda *_, calls=calls: calls.append("module")  # noqa: E731
        handle = nn.modules.module.register_module_forward_hook(note)
        for parameter in model.parameters():
            parameter.register_hook(lambda g, calls=calls: calls.append("gradient"))
            parameter.register_post_accumulate_grad_hook(
                lambda p, calls=calls: calls.append("added")
            )
        weighted(model(images().to(dtype))).backward()
        handle.remove()
        counts.append({kind: calls.count(kind) for kind in set(calls)})
    assert counts[0] == counts[1] == counts[2]
    assert counts[0] == {"module": 4, "gradient": 4, "added": 4}


# ---- parametrizations ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_parametrizations(tmp_path: Path, kind: str, is_before: bool) -> None:
    model = nn.Sequential(Chain(), Chain())
    parametrize = getattr(nn.utils.parametrizations, kind)
    if is_before:
        parametrize(model.get_submodule("0.0"))
    both = trio(model, images(), tmp_path)
    if not is_before:
        for each, _ in both.each():
            torch.manual_seed(1)
            parametrize(each.get_submodule("0.0"))
    both.check_step(images())
    names = [name for name, _ in both.planned.named_parameters()]
    assert names == [name for name, _ in both.eager.named_parameters()]


# ---- checkpoints, modes and other tools of autograd ----------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_around_the_model(tmp_path: Path, use_reentrant: bool) -> None:
    both = trio(Mixed(), images(), tmp_path)
    found = []
    for model, dtype in both.each():
        torch.manual_seed(3)
        x = images().to(dtype).requires_grad_(use_reentrant)
        y = checkpoint(model, x, use_reentrant=use_reentrant)
        weighted(y).backward()
        found.append(y)
    assert torch.allclose(found[0].double(), found[2], atol=1e-4)
    both.check_gradients()
    both.check_buffers()


class Inside(nn.Module):
    """A model with a checkpoint around a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.last = Chain(), Residual(), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.body, self.stem(x), use_reentrant=False))


class WithPacking(nn.Module):
    """A block that sets hooks of saved tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return self.conv(x)


class WithoutGradient(nn.Module):
    """A part that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = Chain(), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.body(x)
        return self.last(x)


class InBf16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.conv(x)


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x


class NeedsMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.conv(x) if mask is None else self.conv(x) * mask


@pytest.mark.parametrize("kind", [Inside, WithPacking, WithoutGradient, InBf16, ByValue, NeedsMask])
def test_code_that_a_trace_does_not_show_is_an_error(tmp_path: Path, kind: type[nn.Module]) -> None:
    with pytest.raises(torchalgo.Error) as caught:
        torchalgo.optimize_training(kind(), (images(),), **options(tmp_path))
    assert caught.value.code == "TA1601"
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_saved_tensors_pass_their_hooks(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.clone())
        return len(packed) - 1

    for model, dtype in both.each():
        torch.manual_seed(3)
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i]):
            y = model(images().to(dtype))
        weighted(y).backward()
        assert len(packed) > 5
    both.check_gradients()
    assert both.planned.planned_runs == 1


def test_autocast_runs_the_model_as_it_was_given(tmp_path: Path) -> None:
    both = trio(Residual(inplace=False), images(), tmp_path)
    results = []
    for model in (both.planned, both.eager):
        with torch.autocast("cpu", torch.bfloat16):
            results.append(model(images()))
        weighted(results[-1].float()).backward()
    assert results[0].dtype == results[1].dtype
    assert torch.equal(results[0], results[1])
    for found, eager in zip(both.planned.parameters(), both.eager.parameters(), strict=True):
        assert found.grad is not None and eager.grad is not None
        assert torch.equal(found.grad, eager.grad)
    assert both.planned.planned_runs == 0 and both.planned.original_runs.total() == 1


def test_functional_calls_and_transforms_run_right(tmp_path: Path) -> None:
    both = trio(nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU()), images(), tmp_path)

    def loss(parameters: dict[str, Tensor], model: nn.Module, dtype: torch.dtype) -> Tensor:
        return weighted(functional_call(model, parameters, (images().to(dtype),)))

    gradients = []
    for model, dtype in both.each():
        parameters = {name: p.detach() * 1.5 for name, p in model.named_parameters()}
        gradients.append(grad(loss)(parameters, model, dtype))
    for name, found in gradients[0].items():
        assert torch.allclose(found.double(), gradients[2][name], atol=1e-3), name
    assert both.planned.planned_runs == 0


def test_forward_mode_derivatives_run_the_model_as_it_was_given(tmp_path: Path) -> None:
    both = trio(nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU()), images(), tmp_path)
    tangents = []
    for model, dtype in both.each():
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(
                images().to(dtype), torch.ones_like(images().to(dtype))
            )
            tangents.append(torch.autograd.forward_ad.unpack_dual(model(x)).tangent)
    assert tangents[0] is not None
    assert torch.allclose(tangents[0].double(), tangents[2], atol=1e-4)


def test_operations_are_seen_by_modes_that_count_them(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    both = trio(Chain(), images(), tmp_path)
    counts = []
    for model in (both.planned, both.eager):
        with FlopCounterMode(display=False) as flops:
            weighted(model(images())).backward()
        counts.append(flops.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_another_argument_runs_the_model_as_it_was_given(tmp_path: Path) -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor, unread: float = 1.0) -> Tensor:
            return self.conv(x)

    planned = torchalgo.optimize_training(Optional(), (images(),), **options(tmp_path))
    planned(images())
    planned(images(), 2.0)
    planned(x=images())
    assert planned.planned_runs == 1 and planned.original_runs.total() == 2


def test_a_model_with_two_inputs_and_a_dict_of_results(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            a = self.a(x)
            return {"sum": a + self.b(y), "a": a}

    model, y = Two(), images(seed=2)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    planned = torchalgo.optimize_training(model, (images(), y), **options(tmp_path))
    Trio(planned, eager, exact).check_step(images(), y)
    assert planned.planned_runs == 1


# ---- copies and files ----------------------------------------------------------------------------


def test_a_deep_copy_is_trained_alone_and_runs_the_plan(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    copied = copy.deepcopy(both.planned)
    for parameter in both.planned.parameters():
        parameter.data.zero_()
    alone = Trio(copied, both.eager, both.exact)
    alone.check_step(images())
    assert copied.planned_runs == 1 and copied.original_runs.total() == 0
    assert all(p.grad is None for p in both.planned.parameters())
    assert both.planned.get_buffer("norm.num_batches_tracked") == 0


def test_two_plans_of_one_model_share_its_parameters(tmp_path: Path) -> None:
    model = Chain().train()
    plain = copy.deepcopy(model)
    whole, rest = images(4, 8, 16, 16), images(3, 8, 16, 16, seed=2)
    plans = [torchalgo.optimize_training(model, (x,), **options(tmp_path)) for x in (whole, rest)]
    for net, calls in ((model, plans), (plain, [plain, plain])):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            for call, x in zip(calls, (whole, rest), strict=True):
                optimizer.zero_grad()
                call(x).square().mean().backward()
                optimizer.step()
    assert [plan.planned_runs for plan in plans] == [2, 2]
    for own, want in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.allclose(own, want, rtol=1e-4, atol=1e-5)


def test_averages_of_models(tmp_path: Path) -> None:
    both = trio(Chain(), images(), tmp_path)
    averaged = torch.optim.swa_utils.AveragedModel(both.planned)
    averaged.update_parameters(both.planned)
    assert torch.allclose(averaged(images()), both.eager(images()), atol=1e-5)


def test_a_pickle_is_an_error_and_a_state_dict_is_not(tmp_path: Path) -> None:
    planned = torchalgo.optimize_training(Mixed(), (images(),), **options(tmp_path))
    for save in (pickle.dumps, lambda model: torch.save(model, io.BytesIO())):
        with pytest.raises(torchalgo.Error) as caught:
            save(planned)
        assert caught.value.code == "TA1603"
    torch.save(planned.state_dict(), tmp_path / "state.pt")
    Mixed().load_state_dict(torch.load(tmp_path / "state.pt"))


# ---- arguments -----------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[str, Callable[[], Any], Any, dict[str, Any]]]:
    x = (images(),)
    yield "TA1001", Chain, x, {"max_error": 2}
    yield "TA1001", Chain, x, {"settings": {}}
    yield "TA4201", Chain, x, {"overrides": {"*": "aten.conv"}}
    yield "TA1003", Chain, (), {}
    yield "TA1003", Chain, None, {}
    yield "TA1003", Chain, (1.0,), {}
    yield "TA1003", Chain, 1.0, {}
    yield "TA1003", lambda: torch.jit.script(Chain()), x, {}
    yield "TA1003", lambda: None, x, {}
    yield "TA1003", Chain, x, {"settings": torchalgo.Settings(mode="predict")}
    yield "TA1003", Chain, x, {"settings": torchalgo.Settings(weight_limit_bytes=1000)}
    yield "TA1602", lambda: Chain().eval(), x, {}
    yield "TA1601", Chain, (images(1, 3, 8, 8),), {}  # channels that do not fit


@pytest.mark.parametrize("number", range(len(list(wrong()))))
def test_wrong_arguments(tmp_path: Path, number: int) -> None:
    code, model, inputs, more = list(wrong())[number]
    with pytest.raises(torchalgo.Error) as caught:
        torchalgo.optimize_training(model(), inputs, **options(tmp_path, **more))
    assert caught.value.code == code


def test_an_error_of_the_model_itself_is_shown(tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match=r"more than 1 value .*Give inputs that forward acc"):
        torchalgo.optimize_training(Chain(), (images(1, 8, 1, 1),), **options(tmp_path))


def test_a_model_without_convolutions_runs_as_it_was_given(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16 * 16, 3))
    both = trio(model, images(), tmp_path)
    both.check_step(images())
    assert both.planned.plan.regions == [] and both.planned.planned_runs == 0


# ---- several processes ---------------------------------------------------------------------------


def train_in_a_process(rank: int, folder: Path) -> None:
    """Runs three steps of DistributedDataParallel, and writes the weights and gradients."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Mixed()
    model.dropout.p = 0.0
    exact = copy.deepcopy(model).double()
    planned = torchalgo.optimize_training(model, (images(),), **options(folder / str(rank)))
    for each, dtype in ((planned, torch.float32), (exact, torch.float64)):
        parallel = nn.parallel.DistributedDataParallel(each)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            weighted(parallel(images(seed=10 * step + rank).to(dtype))).backward()
            optimizer.step()
    assert planned.planned_runs == 3 and planned.original_runs.total() == 0
    torch.save((planned.state_dict(), exact.state_dict()), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    torch.multiprocessing.spawn(train_in_a_process, (tmp_path,), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    names = [name for name, _ in Mixed().named_parameters()]
    for name in names:
        first, second = (planned[name] for planned, _ in results)
        assert torch.equal(first, second), name
        assert torch.allclose(first.double(), results[0][1][name], atol=1e-4), name
