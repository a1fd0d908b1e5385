# SPDX-License-Identifier: BSD-3-Clause
"""The mode of a planned model is that of the model as it was given, however it is set."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import torchalgo
from support.training_models import Chain, images, options, trio
from torchalgo._ir.plan import AS_GIVEN
from torchalgo._measure.guard import PLAN, guard_verdict

Switch = Callable[[torchalgo.TrainingModule, nn.Module, bool], Any]


class Dropped(nn.Module):
    """Reads its own mode in forward, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Chain()
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.inner(self.body(x)), 0.5, training=self.training)


def plan_of(model: nn.Module, tmp_path: Path) -> torchalgo.TrainingModule:
    return torchalgo.optimize_training(model.train(), (images(),), **options(tmp_path))


def is_random(model: nn.Module) -> bool:
    """Returns whether dropout is on: two calls differ then."""
    with torch.no_grad():
        return not torch.equal(model(images()), model(images()))


def set_each_flag(planned: nn.Module, _: nn.Module, mode: bool) -> None:
    """Sets the attribute of each module, as training loops do after a validation."""
    for _, module in planned.named_modules():
        module.training = mode


def set_flags_of_the_original(_: nn.Module, original: nn.Module, mode: bool) -> None:
    for module in original.modules():
        module.training = mode


def set_the_whole(planned: nn.Module, _: nn.Module, mode: bool) -> None:
    nn.Sequential(planned, nn.Identity()).train(mode)


SWITCHES: dict[str, Switch] = {
    "train": lambda planned, _, mode: planned.train(mode),
    "train and eval": lambda planned, _, mode: planned.train() if mode else planned.eval(),
    "of the original": lambda _, original, mode: original.train(mode),
    "each flag": set_each_flag,
    "each flag of the original": set_flags_of_the_original,
    "of a model around it": set_the_whole,
    "apply": lambda planned, _, mode: planned.apply(lambda m: setattr(m, "training", mode)),
}


@pytest.mark.parametrize("on", SWITCHES.values(), ids=SWITCHES.keys())
@pytest.mark.parametrize("off", SWITCHES.values(), ids=SWITCHES.keys())
def test_the_plan_and_dropout_come_back_after_any_switch(
    off: Switch, on: Switch, planned: tuple[torchalgo.TrainingModule, nn.Module]
) -> None:
    model, original = planned
    others = model.original_runs.total()
    off(model, original, False)
    assert not model.training and not original.training and not is_random(model)
    on(model, original, True)
    assert model.training and original.training
    before = model.planned_runs
    assert is_random(model)
    assert model.planned_runs > before and model.original_runs.total() == others == 0


@pytest.fixture(scope="module")
def planned(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[torchalgo.TrainingModule, nn.Module]:
    """A model with a plan, and the same model as it was given."""
    original = Dropped()
    return plan_of(original, tmp_path_factory.mktemp("modes")), original


def test_steps_around_a_validation_equal_eager_ones(tmp_path: Path) -> None:
    both = trio(Dropped(), images(), tmp_path)
    for _ in range(3):
        both.check_step(images())
        for model, _ in both.each():
            modes = {name: module.training for name, module in model.named_modules()}
            model.eval()
            for name, module in model.named_modules():
                module.training = modes[name]
    assert both.planned.original_runs.total() == 0


def test_copies_have_modes_of_their_own(
    planned: tuple[torchalgo.TrainingModule, nn.Module],
) -> None:
    model, original = planned
    model.eval()
    copied = copy.deepcopy(model)
    assert not copied.training
    set_each_flag(copied, original, True)
    assert copied.training and not model.training and not original.training
    assert is_random(copied) and not is_random(model)
    model.train()


class KeepsNorms(Dropped):
    """Keeps its norms in eval mode, and counts calls of eval()."""

    evals = 0

    def train(self, mode: bool = True) -> KeepsNorms:
        super().train(mode)
        self.body[1].eval()
        return self

    def eval(self) -> KeepsNorms:
        self.evals += 1
        return super().eval()


def test_the_model_s_own_train_and_eval_are_called(tmp_path: Path) -> None:
    model = KeepsNorms()
    planned = plan_of(model, tmp_path)
    planned.eval()
    assert model.evals == 1 and not model.training
    planned.train()
    assert model.training and not model.body[1].training
    assert is_random(planned) and planned.planned_runs > 0 and planned.original_runs.total() == 0


# ---- warnings ------------------------------------------------------------------------------------


def replace_layer(model: Any) -> None:
    model.inner[0] = nn.Conv2d(8, 8, 1)


def change_setting(model: Any) -> None:
    model.body[1].eps = 0.1


def change_class(model: Any) -> None:
    """Gives a layer a weight of a class of its own, as quantization does."""
    kind = type("OwnParameter", (nn.Parameter,), {})
    model.body[0].weight = kind(model.body[0].weight.detach().clone())


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a batch norm": (lambda m: m.body[1].eval(), "'body.1' is in eval mode"),
    "a part": (lambda m: m.inner.eval(), "'inner' is in eval mode, and it was in train mode"),
    "a layer": (replace_layer, "layers of 'inner' were replaced"),
    "a setting": (change_setting, "eps of 'body.1' was changed"),
    "a hook": (
        lambda m: m.body[0].register_forward_hook(lambda *_: None),
        "'body.0' has a hook",
    ),
    "a hook of a part": (
        lambda m: m.inner.register_forward_hook(lambda *_: None),
        "hooks or the forward of 'inner' were changed",
    ),
    "a class": (change_class, "another size, type or device"),
}


def warned(model: nn.Module, *args: Any, **kwargs: Any) -> list[str]:
    """Returns the texts of our warnings in a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model(*args, **kwargs)
    return [str(each.message) for each in found if str(each.message).startswith("torchalgo:")]


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES.keys())
def test_a_warning_says_once_why_a_plan_does_not_run(
    change: Callable[[Any], Any], why: str, planned: tuple[torchalgo.TrainingModule, nn.Module]
) -> None:
    model = copy.deepcopy(planned[0])
    assert not warned(model, images())
    change(model)
    (text,) = warned(model, images())
    assert why in text and model.original_runs.total() > 0
    assert not warned(model, images())


class Seen(TorchDispatchMode):
    """Sees each operation, as a mode that counts them does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_each_reason_has_a_warning_and_sizes_hide_no_other(
    planned: tuple[torchalgo.TrainingModule, nn.Module],
) -> None:
    model = copy.deepcopy(planned[0])
    (sizes,) = warned(model, images(3, 8, 16, 16))
    assert "other sizes than those of the plan, [2, 8, 16, 16]" in sizes
    assert not warned(model, images(1, 8, 16, 16))
    (arguments,) = warned(model, x=images())
    assert "other arguments" in arguments
    with torch.autocast("cpu", torch.bfloat16):
        (autocast,) = warned(model, images())
    assert "torch.autocast is on" in autocast
    with Seen():
        (mode,) = warned(model, images())
    assert "looks at each operation" in mode
    model.body[0].weight = nn.Parameter(model.body[0].weight.detach().clone())  # type: ignore
    assert not warned(model, images()) and model.original_runs.total() == 5 * len(
        model.plan.regions
    )


def test_eval_mode_and_a_faster_baseline_do_not_warn(
    planned: tuple[torchalgo.TrainingModule, nn.Module],
) -> None:
    model = copy.deepcopy(planned[0])
    assert not warned(model.eval(), images()) and model.original_runs.total() == 0
    model.train().guard_with(guard_verdict({PLAN: [2e6] * 6, AS_GIVEN: [1e6] * 6}))
    assert model.runs == "baseline"
    assert not warned(model, images()) and model.original_runs.total() > 0


def test_the_warning_names_the_line_of_the_call(
    planned: tuple[torchalgo.TrainingModule, nn.Module],
) -> None:
    model = copy.deepcopy(planned[0])
    with pytest.warns(UserWarning, match="other sizes") as found:
        model(images(1, 8, 16, 16))
    assert found[0].filename == __file__
    model.body[1].eval()  # type: ignore[index, operator, union-attr]
    with pytest.warns(UserWarning, match="in eval mode") as found:
        model(images())
    assert found[0].filename == __file__
