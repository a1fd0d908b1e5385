# SPDX-License-Identifier: BSD-3-Clause
"""45 models as people write them, at three batch sizes and three image sizes each.

Each call equals the model as it was given, or raises a torchalgo.Error that says why. Where the
model itself raises, the optimized one raises. Saved files do the same in Python and in C++.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchalgo
from support import models_as_given_io, models_as_given_layers  # noqa: F401
from support.model_state import is_same, state_of
from support.models_as_given import GIVEN, Arguments, Given
from support.nets import arguments

FOLDER = tempfile.TemporaryDirectory(prefix="torchalgo-given-")
# traced models warn about what they bake in
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WITHOUT_FILE = ("SizeTable", "DataclassOutput", "IntegersAndNumbers")
WITH_FILE = [name for name in GIVEN if name not in WITHOUT_FILE]


Sizes = tuple[int, int]  # batch, image


@dataclasses.dataclass
class Outcome:
    """What a call gave: a value, or what was raised; and whether the original computed it."""

    value: Any = None
    error: Exception | None = None
    by_original: bool = False


@dataclasses.dataclass
class Trial:
    """An optimized model and its file; `error` says why one of them is missing."""

    given: Given
    fast: torchalgo.Optimized | None = None
    path: Path | None = None
    error: Exception | None = None

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """What forward of the file takes in C++: the tensors, in order. None if other arguments
        than tensors differ from the planned ones, which C++ does not pass."""
        assert self.fast is not None
        assert self.fast._form is not None
        tensors, form = self.fast._form.tensors(args, kwargs)
        return tensors if form == self.fast._form.inputs else None


def call(model: Callable[..., Any], arguments: Arguments) -> Outcome:
    args, kwargs = arguments
    try:
        with torch.no_grad():
            return Outcome(model(*args, **kwargs))
    except Exception as error:
        return Outcome(error=error)


def optimized(given: Given, **options: Any) -> torchalgo.Optimized:
    """Optimizes for the planned sizes. A model with keyword arguments is planned by a call."""
    args, kwargs = given.arguments(*given.planned)
    if not kwargs:
        model = given.model()
        before = state_of(model)
        try:
            return torchalgo.optimize(model, args, **arguments(**options))
        finally:
            assert is_same(before, state_of(model)), "optimize changed the model"
    fast = torchalgo.optimize(given.model(), **arguments(**options))
    if (error := call(fast, (args, kwargs)).error) is not None:
        raise error
    return fast


@functools.cache
def trial_of(name: str) -> Trial:
    """Tunes for a second, then applies the plan without the guard's verdict: the plan runs."""
    trial = Trial(GIVEN[name])
    try:
        trial.fast = optimized(trial.given, budget_s=1)
        if plan := trial.fast.plan:  # None: the model runs as it was given, with plans of parts
            trial.fast = optimized(trial.given, plan=dataclasses.replace(plan, guard=None))
        path = Path(FOLDER.name) / f"{name}.pt"
        trial.fast.save(path)
        trial.path = path
    except Exception as error:
        trial.error = error
    return trial


def sizes_of(given: Given) -> list[Sizes]:
    """Lists the nine calls; the planned one comes first."""
    calls = list(itertools.product(given.batches, given.sizes))
    calls.sort(key=lambda sizes: sizes != given.planned)
    return calls


def is_refusal(error: Exception | None) -> bool:
    """True for a torchalgo.Error that says something in words."""
    return isinstance(error, torchalgo.Error) and len(str(error).split()) >= 6


def parts_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Lists the keys and parts of a container; None if it is not one."""
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple | list) else None


def leaves_of(value: Any) -> list[Any]:
    """Lists the tensors and numbers of an output, in order."""
    if (parts := parts_of(value)) is not None:
        return [leaf for _, part in parts for leaf in leaves_of(part)]
    return [value] if isinstance(value, Tensor | int | float | complex) else []


def structure_of(value: Any) -> Any:
    """Spells the types of an output; tensors with dtype and sizes, other leaves with values."""
    if (parts := parts_of(value)) is not None:
        return type(value), [(key, structure_of(part)) for key, part in parts]
    if isinstance(value, Tensor):
        return type(value).__name__, value.dtype, tuple(value.shape)
    return type(value), value


def difference(ours: Any, expected: Any) -> str:
    """Says how two outputs differ by more than rounding; empty if they do not."""
    if structure_of(ours) != structure_of(expected):
        return f"got {str(structure_of(ours))[:300]}, expected {str(structure_of(expected))[:300]}"
    for i, (a, b) in enumerate(zip(leaves_of(ours), leaves_of(expected), strict=True)):
        if not isinstance(a, Tensor) or torch.equal(a, b):
            continue
        if not (a.is_floating_point() or a.is_complex()):
            return f"leaf {i}: other integers"
        error = ((a - b).abs().double().norm() / b.abs().double().norm()).item()
        if not error <= 1e-5:
            return f"leaf {i}: relative L2 {error:.2g}"
    return ""


def are_bit_equal(a: Any, b: Any) -> bool:
    """Compares tensors and numbers; the containers may be of other types."""
    first, second = ([torch.as_tensor(leaf) for leaf in leaves_of(v)] for v in (a, b))
    return len(first) == len(second) and all(map(torch.equal, first, second))


def judge(ours: Outcome, expected: Outcome) -> str:
    """Returns "equal", "refused", "raises" as eager does, or what is wrong."""
    if expected.error is not None:
        return "raises" if ours.error is not None else "wrong: eager raises, this does not"
    if ours.error is None:
        return f"wrong: {text}" if (text := difference(ours.value, expected.value)) else "equal"
    if is_refusal(ours.error):
        return "refused"
    return f"crashed: {type(ours.error).__name__}: {str(ours.error)[:200]}"


@functools.cache
def calls_of(name: str) -> dict[Sizes, tuple[str, Outcome]]:
    """Calls the optimized model at all sizes: a verdict against eager, and the outcome."""
    trial, found = trial_of(name), {}
    eager = trial.given.model()
    for sizes in sizes_of(trial.given):
        expected_inputs, inputs = (trial.given.arguments(*sizes) for _ in range(2))
        before = trial.fast.original_runs.total()
        expected, ours = call(eager, expected_inputs), call(trial.fast, inputs)
        ours.by_original = trial.fast.original_runs.total() > before
        verdict = judge(ours, expected)
        if verdict == "equal" and (text := difference(inputs, expected_inputs)):
            verdict = f"wrong: its inputs afterwards: {text}"
        found[sizes] = verdict, ours
    return found


@pytest.mark.parametrize("name", GIVEN)
def test_each_call_equals_the_model_as_given_or_is_refused(name: str) -> None:
    trial = trial_of(name)
    if trial.fast is None:
        assert is_refusal(trial.error), repr(trial.error)
        return
    wrong = {s: v for s, (v, _) in calls_of(name).items() if v.startswith(("wrong", "crashed"))}
    assert not wrong


def path_of(name: str) -> Path:
    trial = trial_of(name)
    assert trial.path is not None, repr(trial.error)
    return trial.path


@pytest.mark.parametrize("name", WITHOUT_FILE)
def test_a_model_without_a_file_is_refused(name: str) -> None:
    assert trial_of(name).path is None and is_refusal(trial_of(name).error)


def test_few_calls_are_refused() -> None:
    """Refusing all would be safe and useless. Today 378 of 405 calls do as eager does."""
    good = ("equal", "raises")
    found = [v for name in GIVEN if trial_of(name).fast for v, _ in calls_of(name).values()]
    assert sum(verdict in good for verdict in found) >= 350


@pytest.mark.parametrize("name", WITH_FILE)
def test_a_file_gives_the_bits_of_the_plan_or_refuses(name: str) -> None:
    loaded = torchalgo.load(path_of(name))
    for sizes, (_, fast) in calls_of(name).items():
        ours = call(loaded, GIVEN[name].arguments(*sizes))
        if ours.error is None:
            assert fast.error is None, f"{sizes}: the file runs what {fast.error!r} refused"
            assert not fast.by_original, f"{sizes}: the file runs what the original had to run"
            assert are_bit_equal(ours.value, fast.value), sizes
        elif fast.error is None:  # a file takes only the sizes that are proven to be free
            assert is_refusal(ours.error), repr(ours.error)
            assert sizes != GIVEN[name].planned, "the file refuses what is planned"


TWO_INPUTS = pytest.mark.xfail(
    strict=True, reason="a size that two inputs share is pinned, though the plan runs at any"
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TWO_INPUTS) for name in ("Siamese", "DictInput")]
)
def test_a_file_takes_any_batch_that_two_inputs_share(name: str) -> None:
    loaded = torchalgo.load(path_of(name))
    assert call(loaded, GIVEN[name].arguments(2, 16)).error is None


@pytest.fixture(scope="module")
def cpp_results(run_files: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with what one C++ process gave for the files of all tests that were selected."""
    folder, jobs = run_files.parent, []
    params = [getattr(item, "callspec", None) for item in request.session.items]
    names = {p.params["name"] for p in params if p and p.params.get("name") in GIVEN}
    for name in sorted(names):
        if (path := trial_of(name).path) is None:
            continue
        for batch, size in sizes_of(GIVEN[name]):
            inputs = folder / f"{name}_{batch}_{size}.in"
            arguments = GIVEN[name].arguments(batch, size)
            if (tensors := trial_of(name).tensors(*arguments)) is not None:
                torch.save((tensors, {}), inputs)
                jobs.append(f"{path} {inputs} {inputs.with_suffix('.out')}")
    (folder / "jobs").write_text("\n".join(jobs))
    subprocess.run([run_files, folder / "jobs"], check=True)
    return folder


@pytest.mark.parametrize("name", WITH_FILE)
def test_cpp_gives_the_bits_that_python_gives(name: str, cpp_results: Path) -> None:
    loaded = torchalgo.load(path_of(name))
    for sizes in sizes_of(GIVEN[name]):
        python = call(loaded, GIVEN[name].arguments(*sizes))
        path = cpp_results / f"{name}_{sizes[0]}_{sizes[1]}.out"
        if python.error is None:
            assert path.exists(), path.with_name(path.name + ".error").read_text()
            assert are_bit_equal(torch.load(path, weights_only=False), python.value), sizes
        else:
            assert not path.exists(), f"{sizes}: C++ runs what {python.error!r} refused"
