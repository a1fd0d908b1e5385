# SPDX-License-Identifier: BSD-3-Clause
"""Calls of an optimized module after its weights, its inputs' types or its results have changed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.small_models import rand
from torchalgo._capture.calls import copy_of

QUICK = torchalgo.Settings(progress=False, run_untimed=True, cost_db=False)


class OneConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.conv(x)


def planned(model: nn.Module, *inputs: Any) -> torchalgo.Optimized:
    with torch.no_grad():
        return torchalgo.optimize(model.eval(), inputs, budget_s=2.0, settings=QUICK)


class OfBytes(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.float() / 255
        return self.conv(x)


@torch.no_grad()
def test_an_input_of_another_type_is_an_error() -> None:
    model = OfBytes()
    images = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    fast = planned(model, images)
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    for size in (8, 12):
        with pytest.raises(torchalgo.Error, match=r"TA1204.*float32.*planned|TA1204.*float32"):
            fast(rand(1, 3, size, size))


def with_norm() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return nn.Sequential(*layers).eval()


@torch.no_grad()
def test_a_copy_notices_new_weights_after_the_other_one_was_refreshed() -> None:
    model, x = with_norm(), rand(1, 3, 8, 8)
    fast = planned(model, x)
    copies = [copy.copy(fast), copy.copy(copy.copy(fast))]
    for parameter in model.parameters():
        parameter.mul_(1.5)
    fast.refresh()
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    for each in (*copies, copy.copy(copies[0])):
        with pytest.raises(torchalgo.Error, match="TA1404"):
            each(x)
        torch.testing.assert_close(each.refresh()(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_parts_of_a_copy_notice_new_weights_too() -> None:
    model, shapes = with_norm(), [(1, 3, 8, 8), (1, 3, 12, 12)]
    fast = torchalgo.optimize(model, shapes=shapes, budget_s=4.0, settings=QUICK)
    stale = copy.copy(fast)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    fast.refresh()
    for shape, part in zip(shapes, stale.by_shape.values(), strict=True):
        with pytest.raises(torchalgo.Error, match="TA1404"):
            part(rand(*shape))
    for shape, part in zip(shapes, fast.by_shape.values(), strict=True):
        torch.testing.assert_close(part(rand(*shape)), model(rand(*shape)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_changed_weights_are_not_saved_or_pickled(tmp_path: Path) -> None:
    model, x = with_norm(), rand(1, 3, 8, 8)
    fast = planned(model, x)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    saves: list[Any] = [lambda: fast.save(tmp_path / "m.pt"), lambda: fast.save(tmp_path / "m.pt2"),
                        lambda: pickle.dumps(fast), lambda: copy.deepcopy(fast)]  # fmt: skip
    for save in saves:
        with pytest.raises(torchalgo.Error, match="TA1404"):
            save()
    fast.refresh().save(tmp_path / "m.pt")
    loaded = torchalgo.load(tmp_path / "m.pt")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_weights_made_in_inference_mode_are_watched() -> None:
    with torch.inference_mode():
        model = OneConv().eval()
    fast = planned(model, rand(1, 3, 8, 8))
    with torch.inference_mode():
        model.conv.weight.mul_(2)
    with pytest.raises(torchalgo.Error, match="TA1404"):
        fast(rand(1, 3, 8, 8))


class Sign(OneConv):
    def forward(self, x: Tensor) -> Any:
        return self.conv(x), bool(x.mean() > 0)


class Longest(OneConv):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.conv(x), int(lengths.max())


def test_numbers_that_depend_on_values_are_an_error() -> None:
    with pytest.raises(torchalgo.Error, match="TA1117"):
        planned(Sign(), rand(1, 3, 8, 8))
    with pytest.raises(torchalgo.Error, match="TA1117"):
        planned(Longest(), rand(1, 3, 8, 8), torch.tensor([3, 5]))


class Writing(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.sub_(0.5))


@torch.no_grad()
def test_a_model_that_writes_to_a_part_of_a_tensor_writes_once() -> None:
    model = Writing()
    for example in (rand(1, 3, 8, 8), rand(1, 3, 12, 12)[..., 2:10, 2:10]):
        before = example.clone()
        fast = planned(model, example)
        torch.testing.assert_close(example, before)
        ours, theirs = rand(1, 3, 12, 12), rand(1, 3, 12, 12)
        theirs.copy_(ours)
        for _ in range(2):
            found = fast(ours[..., 2:10, 2:10])
            torch.testing.assert_close(found, model(theirs[..., 2:10, 2:10]), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours, theirs)


def test_copies_have_the_strides_of_the_tensor() -> None:
    whole = torch.rand(4, 3, 12, 12)
    for part in (whole[..., 2:10, 1:9], whole[::2], whole.mT[..., ::3], whole[:, :1]):
        copied = copy_of(part)
        assert copied.stride() == part.stride() and copied.data_ptr() != part.data_ptr()
        assert torch.equal(copied, part)
    overlapping = torch.rand(10).as_strided((4, 4), (2, 1))
    for shared in (torch.rand(3, 1).expand(3, 4), overlapping):
        assert copy_of(shared) is shared


class WithConstants(OneConv):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.arange(4.0))

    def forward(self, x: Tensor) -> Any:
        more = {"a": self.conv(x) + 1, "b": torch.ones(2)}
        return self.conv(x), torch.zeros(1), (self.anchors * 2).view(2, 2), more


@torch.no_grad()
def test_a_result_that_is_a_constant_may_be_changed_by_the_caller(tmp_path: Path) -> None:
    model, x = WithConstants(), rand(1, 3, 8, 8)
    fast = planned(model, x)
    fast.save(tmp_path / "m.pt")
    for module in (fast, torchalgo.load(tmp_path / "m.pt")):
        for _ in range(2):
            results = module(x)
            torch.testing.assert_close(results, model(x), rtol=1e-4, atol=1e-5)
            for each in (*results[:3], *results[3].values()):
                each += 5


@pytest.mark.slow
@torch.no_grad()
def test_a_model_that_writes_to_its_input_is_right_inside_a_compiled_function() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.sub_(0.5))

    fast = planned(Small(), rand(1, 3, 8, 8))

    def use(x: Tensor) -> Tensor:
        before = x + 1
        return fast(x) + before

    x = rand(1, 3, 8, 8)
    found = torch.compile(use)(x.clone())
    torch.testing.assert_close(found, use(x.clone()), rtol=1e-4, atol=1e-5)


class BySetting(OneConv):
    by_batch = False

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * (len(x) if self.by_batch else 2)


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are")
@torch.no_grad()
def test_refresh_knows_for_which_sizes_the_changed_model_is_right() -> None:
    model, x = BySetting(), rand(3, 3, 8, 8)
    fast = planned(model, x)
    model.by_batch = True
    fast.refresh()
    for each in (x, x[:2]):
        torch.testing.assert_close(fast(each), model(each), rtol=1e-4, atol=1e-5)


class ManyTerms(OneConv):
    def forward(self, x: Tensor, scale: float = 1.0, *more: Tensor, **kwargs: Any) -> Tensor:
        y = self.conv(x) * scale
        for each in more:
            y = y + each
        return y


@torch.no_grad()
def test_a_default_before_further_arguments_keeps_its_place() -> None:
    model, x, one = ManyTerms(), rand(1, 3, 8, 8), torch.ones(1)
    fast = planned(model, x, 1.0, one)
    torch.testing.assert_close(fast(x, 1.0, one), model(x, 1.0, one), rtol=1e-4, atol=1e-5)
    assert not fast.original_runs
