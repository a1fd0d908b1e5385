# SPDX-License-Identifier: BSD-3-Clause
"""Calls of any form, and results of any type, as the original model takes and returns them."""

from __future__ import annotations

import collections
import dataclasses
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net
from torchalgo._base.trees import copied, flatten
from torchalgo._capture.calls import as_tensor_model, bind_call, script_names
from torchalgo._run.call_files import CALLS_FILE, form_from_json, form_to_json

QUIET: dict[str, Any] = {"settings": torchalgo.Settings(progress=False, cost_db=False)}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] | None = None
    loss: torch.Tensor | None = None


class ModelOutput(collections.OrderedDict[str, Any]):
    """Attributes that are entries too, as transformers has it."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits=logits)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class AttributeDict(dict[str, Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


@dataclasses.dataclass
class DictOutput(collections.OrderedDict):  # type: ignore[type-arg]
    """A dataclass that is a dict, as transformers has it."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Convs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
        self.eval()


class Keywords(Convs):
    def forward(
        self,
        batch: dict[str, torch.Tensor],
        scale: float = 1.0,
        *more: torch.Tensor,
        mask: torch.Tensor | None = None,
        mode: str = "sum",
        flags: tuple[bool, ...] = (),
    ) -> torch.Tensor:
        y = self.head(self.stem(batch["image"]).relu()) * scale
        for each in more:
            y = y + each
        if mask is not None:
            y = y * mask
        if any(flags):
            y = -y
        return y.sum(1) if mode == "sum" else y


def image() -> torch.Tensor:
    return torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(3))


def check_equal(got: Any, want: Any) -> None:
    """Equal types throughout, equal tensors up to rounding."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert got.shape == want.shape
        assert torch.allclose(got, want, atol=1e-5)
    elif dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            check_equal(getattr(got, field.name), getattr(want, field.name))
    elif not isinstance(want, (dict, list, tuple)):
        assert got == want
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            check_equal(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_equal(one, other)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (({"image": image()},), {}),
    ((), {"batch": {"image": image()}, "mode": "none"}),
    (({"image": image()}, 2.0, torch.ones(1), torch.rand(4, 1, 1)), {"mask": torch.rand(12)}),
    (({"image": image()},), {"flags": (False, True), "mask": None, "scale": 0.5}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_arguments_of_any_form_run_the_plan_also_from_a_file(
    args: tuple[Any, ...], kwargs: dict[str, Any], tmp_path: Path
) -> None:
    model = Keywords()
    fast = torchalgo.optimize(model, args, example_kwargs=kwargs, **QUIET)
    fast.save(tmp_path / "fast.pt")
    loaded = torchalgo.load(tmp_path / "fast.pt")
    with torch.no_grad():
        check_equal(fast(*args, **kwargs), model(*args, **kwargs))
        assert torch.equal(loaded(*args, **kwargs), fast(*args, **kwargs))
    assert not fast.original_runs
    assert {node.name for node in fast.plan.nodes if node.problem} >= {"stem", "head.0"}


def test_other_constants_run_the_original_and_a_file_refuses_them(tmp_path: Path) -> None:
    model, batch = Keywords(), {"image": image()}
    fast = torchalgo.optimize(model, (batch,), example_kwargs={"mode": "none"}, **QUIET)
    others: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((batch,), {}, "mode=its default, planned with mode='none'"),
        ((batch, 2.0), {"mode": "none"}, "scale=2.0, planned with scale=its default"),
        ((batch,), {"mode": "none", "mask": torch.ones(1)}, "mask=a tensor, planned with mask=its"),
        (({**batch, "other": 3},), {"mode": "none"}, "batch={image: a tensor, other: 3}, planned"),
        ((batch,), {"mode": "none", "flags": (1,)}, r"flags=(1), planned with flags=its default"),
    ]
    fast.save(tmp_path / "fast.pt")
    loaded = torchalgo.load(tmp_path / "fast.pt")
    with torch.no_grad(), pytest.warns(UserWarning, match="so the original model ran"):
        for args, kwargs, _ in others:
            assert torch.equal(fast(*args, **kwargs), model(*args, **kwargs))
    assert fast.original_runs.total() == len(others)
    for args, kwargs, text in others:
        assert any(reason.startswith(text) for reason in fast.original_runs)
        with pytest.raises(torchalgo.Error, match="only the original model can run this call"):
            loaded(*args, **kwargs)
    # A default that is written out is the default, and 1 is not True.
    fast(batch, 1.0, mode="none", mask=None, flags=())
    assert fast.original_runs.total() == len(others)


def test_missing_and_extra_arguments_are_told_in_the_users_names(net: Net, tmp_path: Path) -> None:
    fast = torchalgo.optimize(net, image(), **QUIET)
    fast.save(tmp_path / "fast.pt")
    for module in (fast, torchalgo.load(tmp_path / "fast.pt")):
        for call, text in (
            (lambda m: m(), r"missing a required argument: 'x'; expected forward\(x\)"),
            (lambda m: m(image(), image()), r"too many positional arguments; expected forward"),
            (lambda m: m(y=image()), r"missing a required argument: 'x'"),
            (lambda m: m(image(), y=1), r"got an unexpected keyword argument 'y'"),
        ):
            with pytest.raises(torchalgo.Error, match=text):
                call(module)
        with torch.no_grad():
            assert torch.equal(module(x=image()), module(image()))
    for args, kwargs in (((image(),), {"y": 1}), ((image(), 3), {})):
        with pytest.raises(torchalgo.Error, match=r"optimize: .*; expected forward\(x\)"):
            torchalgo.optimize(net, args, example_kwargs=kwargs, **QUIET)


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "named tuple": lambda y: Pair(y, y + 1),
    "dataclass": lambda y: Output(y, hidden=(y, -y)),
    "dict subclass": lambda y: ModelOutput(logits=y),
    "attributes": lambda y: AttributeDict(y=y, n=-y),
    "dataclass and dict": lambda y: DictOutput(y),
    "ordered": lambda y: collections.OrderedDict(out=y, aux=y * 2),
    "list of dicts": lambda y: [{"boxes": y, "label": None}, {"boxes": -y}],
    "None": lambda y: (y, None, [None]),
    "numbers": lambda y: {"y": y, "classes": 4, "name": "net", "scale": 0.5, "flag": True},
    "torch's own": lambda y: torch.max(y, 1),
    "nested": lambda y: (y, [y, y + 1], {"a": (y, y)}),
    "keys": lambda y: {0: y, "b": y},
}


class Returns(Convs):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        return RESULTS[self.kind](self.head(self.stem(x)))


@pytest.mark.parametrize("kind", RESULTS)
def test_results_have_the_types_of_the_original_also_from_a_file(kind: str, tmp_path: Path) -> None:
    model, x = Returns(kind), image()
    fast = torchalgo.optimize(model, x, **QUIET)
    fast.save(tmp_path / "fast.pt")
    with torch.no_grad():
        want = model(x)
        check_equal(fast(x), want)
        check_equal(torchalgo.load(tmp_path / "fast.pt")(x), want)
        plain = torch.jit.load(tmp_path / "fast.pt")(x)
    assert type(plain) in (tuple, list, dict)
    assert not fast.original_runs


def test_numbers_in_a_result_hold_for_the_planned_sizes_only() -> None:
    model, x = Returns("numbers"), image()
    fast = torchalgo.optimize(model, x, **QUIET)
    with torch.no_grad(), pytest.warns(UserWarning, match="results hold numbers"):
        check_equal(fast(x[..., :9]), model(x[..., :9]))
    assert fast.original_runs == {"results hold numbers, and inputs are 1x3x12x9": 1}


class Tagged(torch.Tensor):
    pass


class Unknown:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


@dataclasses.dataclass
class Counted:
    y: torch.Tensor
    made: int = 0

    def __post_init__(self) -> None:
        Counted.count = getattr(Counted, "count", 0) + 1  # type: ignore[attr-defined]
        self.made = Counted.count  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Unknown, r"the model's result is a test_calls.Unknown; expected tensors, numbers"),
        (lambda y: [{"a": Unknown(y)}], r"the model's result\[0\]\['a'\] is a test_calls.Unknown"),
        (lambda y: y.as_subclass(Tagged), "result holds a test_calls.Tagged"),
        (Counted, "cannot be rebuilt from its tensors"),
        (lambda _: None, "the model's result holds no tensor"),
        (lambda y: (y, float(y.mean())), "here and was"),
        (lambda y: collections.defaultdict(list, y=y), "cannot be rebuilt"),
        (lambda y: y.missing, "the model raises AttributeError for these example inputs"),
    ],
)
def test_results_that_cannot_be_kept_are_refused(
    make: Callable[[torch.Tensor], Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESULTS, "refused", make)
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.optimize(Returns("refused"), image(), **QUIET)


def test_arguments_that_cannot_be_kept_are_refused(net: Net) -> None:
    with pytest.raises(torchalgo.Error, match=r"argument batch\['m'\] is a test_calls.Unknown"):
        torchalgo.optimize(Keywords(), ({"image": image(), "m": Unknown(image())},), **QUIET)
    with pytest.raises(torchalgo.Error, match="input x holds NaN"):
        torchalgo.optimize(net, image() * float("nan"), **QUIET)
    with pytest.raises(torchalgo.Error, match="the example inputs contain no tensor"):
        torchalgo.optimize(net, (None,), **QUIET)
    with pytest.raises(torchalgo.Error, match="example_kwargs is int, expected a dict"):
        torchalgo.optimize(net, image(), example_kwargs=3, **QUIET)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Net, r"the class Net, .*make an instance, Net\(...\)"),
        (lambda x: x, "function '<lambda>', expected torch.nn.Module"),
        ("resnet18.pt", "text, 'resnet18.pt', .*load the model first"),
        (nn.Conv2d(1, 1, 1).state_dict(), "expected torch.nn.Module .*load_state_dict"),
        (nn.LazyConv2d(3, 3).eval(), r"'weight' has no sizes yet.*call the model once"),
    ],
)
def test_what_is_no_model_is_refused_with_what_to_do(model: Any, text: str) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.optimize(model, image(), **QUIET)


def test_what_the_surroundings_change_is_refused(net: Net) -> None:
    half = torch.autocast("cpu", dtype=torch.float16)
    with half, pytest.raises(torchalgo.Error, match=r"torch\.autocast is on"):
        torchalgo.optimize(net, image(), **QUIET)
    with pytest.raises(torchalgo.Error, match=r"is dict, .* or \(batch,\) where forward takes"):
        torchalgo.optimize(Keywords(), {"image": image()}, **QUIET)


def test_frozen_script_modules_are_taken_too(net: Net) -> None:
    frozen = torch.jit.freeze(torch.jit.script(net))
    fast = torchalgo.optimize(frozen, image(), **QUIET)
    with torch.no_grad():
        check_equal(fast(x=image()), net(image()))
    with pytest.raises(torchalgo.Error, match=r"missing a required argument: 'x'"):
        fast()


def test_the_first_call_may_have_any_form() -> None:
    model, batch = Keywords(), {"image": image()}
    fast = torchalgo.optimize(model, **QUIET)
    with torch.no_grad():
        want = model(batch, mode="none")
        check_equal(fast(batch, mode="none"), want)
        check_equal(fast(batch=batch, mode="none"), want)
    assert not fast.original_runs
    assert fast.state_dict().keys() == model.state_dict().keys()


def test_several_plans_share_one_form() -> None:
    model = Keywords()
    small, large = {"image": image()}, {"image": torch.rand(2, 3, 16, 16)}
    kwargs = {"mode": "none"}
    shapes = [(1, 3, 12, 12), (2, 3, 16, 16)]
    fast = torchalgo.optimize(model, (small,), example_kwargs=kwargs, shapes=shapes, **QUIET)
    with torch.no_grad():
        for batch in (small, large):
            check_equal(fast(batch, **kwargs), model(batch, **kwargs))
        with pytest.warns(UserWarning, match="there is no plan for inputs 1x3x9x9"):
            other = {"image": torch.rand(1, 3, 9, 9)}
            check_equal(fast(other, **kwargs), model(other, **kwargs))
    assert list(fast.plans) == ["1x3x12x12", "2x3x16x16"]


class Chooses(Convs):
    """Its control flow depends on values, so that a trace would be wrong."""

    def forward(self, images: list[torch.Tensor], more: bool = False) -> list[dict[str, Any]]:
        y = self.head(self.stem(images[0]))
        if bool(y.sum() > 0):
            y = y * 2
        return [{"y": y}, {"y": y + 1}]


class ChoosesInTorchScript(Chooses):
    def forward(  # type: ignore[override]
        self, images: list[torch.Tensor], more: bool = False
    ) -> tuple[int, list[dict[str, torch.Tensor]]]:
        y = self.head(self.stem(images[0]))
        if bool(y.sum() > 0):
            y = y * 2
        results = [{"y": y}, {"y": y + 1}]
        if torch.jit.is_scripting():
            return 3, results
        return results  # type: ignore[return-value]


class Attributes(Convs):
    def forward(self, batch: AttributeDict) -> torch.Tensor:
        return self.head(self.stem(batch.image))


def test_validation_calls_the_model_with_containers_of_its_types() -> None:
    call = (AttributeDict(image=image()),)
    fast = torchalgo.optimize(Attributes(), call, validation=[call], **QUIET)
    assert fast.plan.validation_error is not None and fast.plan.validation_error < 1e-5
    assert not fast.original_runs


@pytest.mark.parametrize("kind", RESULTS)
def test_copies_have_the_types_of_the_original(kind: str) -> None:
    value = RESULTS[kind](torch.rand(2, 3))
    own = copied(value)
    check_equal(own, value)
    addresses = [{t.data_ptr() for t in leaves(each)} for each in (value, own)]
    assert addresses[0].isdisjoint(addresses[1])


def leaves(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    flatten(value, "it", tensors, [])
    return tensors


def test_a_model_of_containers_that_depends_on_values_is_scripted() -> None:
    model = ChoosesInTorchScript()
    fast = torchalgo.optimize(model, ([image()],), **QUIET)
    with torch.no_grad():
        for x in (image(), -image(), image() * 30 - 20):
            check_equal(fast([x]), model([x]))
    assert not fast.original_runs
    assert {node.name for node in fast.plan.nodes if node.problem} >= {"model.stem", "model.head.0"}


def test_hooks_and_copies_of_a_model_of_containers_see_its_own_arguments() -> None:
    model, batch = Keywords(), {"image": image()}
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(type(args[0])))
    made = as_tensor_model(bind_call(model, (batch,), {}))
    assert made.model(*made.inputs).shape == (1, 12, 12)
    assert set(seen) == {dict}
    assert script_names(made.form.names) == ["batch_image"]
    assert script_names(("x[0]", "x_0", "self")) == ["x_0", "x_0_1", "self_1"]


def test_a_file_names_types_and_runs_nothing(tmp_path: Path) -> None:
    fast = torchalgo.optimize(Returns("named tuple"), image(), **QUIET)
    fast.save(tmp_path / "fast.pt")
    with zipfile.ZipFile(tmp_path / "fast.pt") as archive:
        name = next(n for n in archive.namelist() if n.endswith(CALLS_FILE))
        text = archive.read(name).decode()
    assert json.loads(text)["output"]["type"] == "test_calls:Pair"
    assert form_to_json(form_from_json(text, "it")) == text
    for other, error in (
        ("missing_module:Pair", "is imported: import missing_module before torchalgo.load"),
        ("os:system", "is a system of the module 'os', but no such tuple"),
        ("subprocess:Popen", "but no such tuple, list, dict or dataclass is imported"),
    ):
        with pytest.raises(torchalgo.Error, match=error):
            form_from_json(text.replace("test_calls:Pair", other), "it")
    for damage in ("{", "[]", "{}", text.replace('"keys"', '"k"'), text.replace('"x"', "3")):
        with pytest.raises(torchalgo.Error, match="it is damaged"):
            form_from_json(damage, "it")


def test_models_of_tensors_stay_as_they_are(net: Net, tmp_path: Path) -> None:
    made = as_tensor_model(bind_call(net, (image(),), {}))
    assert made.model is net
    assert made.form.is_positional
    fast = torchalgo.optimize(net, image(), **QUIET)
    fast.save(tmp_path / "fast.pt")
    with zipfile.ZipFile(tmp_path / "fast.pt") as archive:
        assert not any(n.endswith(CALLS_FILE) for n in archive.namelist())
