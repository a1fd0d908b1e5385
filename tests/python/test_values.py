# SPDX-License-Identifier: BSD-3-Clause
"""Right values for every input: the model as it was given is what counts, at every size."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import torchalgo
from support.nets import arguments
from support.small_models import FUNCTIONS, Function, make, rand
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.reference import Reference


def optimize(model: nn.Module, *inputs: Any, **options: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(
        model,
        inputs,
        **arguments(cost_db=False, budget_s=2.0, **options),
    )


# ---- the model as it was given -------------------------------------------------------------------


def test_a_trace_that_is_not_the_model_is_refused_or_scripted() -> None:
    def looked_up(*y: torch.Tensor) -> torch.Tensor:  # a size is a tensor in a trace
        return y[0] + {16: 1.0, 20: 2.0}.get(y[0].shape[2], 3.0)

    with pytest.raises(
        torchalgo.Error, match=r"its trace differ by relative L2 .* dict cannot look up"
    ):
        optimize(make(looked_up), rand(1, 3, 16, 16))

    class Scriptable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = {16: 1.0, 20: 2.0}
            size = x.shape[-1]
            return self.conv(x) + table.get(size, 3.0)

    model = Scriptable().eval()
    fast = optimize(model, rand(1, 3, 16, 16))
    assert "scripted: a trace differs from the model" in str(fast.plan)
    for size in (16, 20, 24):
        x = rand(2, 3, 8, size)
        assert output_error(fast(x), model(x)) <= 1e-5


def test_the_errors_of_a_plan_are_to_the_model_as_it_was_given() -> None:
    fast = optimize(make(torch.relu), rand(1, 3, 16, 16))
    assert fast.plan.capture_error is not None
    assert 0 < fast.plan.capture_error <= 1e-6  # the batch norm was folded
    assert fast.plan.rel_error is not None
    assert fast.plan.rel_error > 0
    assert "compared with the given model" in str(fast.plan)
    assert set(fast.timings) > {"read", "values"}


@pytest.mark.parametrize("function", [functional.dropout, lambda y: y + torch.rand_like(y)])
def test_a_model_whose_runs_differ_is_refused(function: Function) -> None:
    with pytest.raises(torchalgo.Error, match=r"two runs of the model .* differ .*deterministic"):
        optimize(make(function), rand(1, 3, 16, 16))


def test_a_model_with_a_branch_on_values_that_no_script_takes_keeps_plans_of_its_parts() -> None:
    def branching(*y: torch.Tensor) -> torch.Tensor:
        return y[0] if bool(y[0].mean() > 0) else -y[0] * 2

    model = make(branching)
    fast = optimize(model, rand(1, 3, 16, 16))
    assert fast.runs == "parts"
    assert "reads values" in fast.why_as_given
    for factor in (1, -1):
        x = factor * rand(1, 3, 16, 16)
        assert output_error(fast(x), model(x)) <= 1e-5


def test_results_that_tell_nothing_are_refused() -> None:
    with pytest.raises(torchalgo.Error, match="only NaN and infinite"):
        optimize(make(lambda y: y / 0), rand(1, 3, 16, 16))


def test_inputs_that_a_model_changes_are_changed_in_copies_only() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.sub_(0.5).relu_())

    torch.manual_seed(0)
    model = InPlace().eval()
    x = rand(1, 3, 16, 16)
    given = x.clone()
    reference = Reference.of(model, (x,))
    assert torch.equal(x, given)
    assert reference.error_of(model) == 0
    assert reference.error_of(lambda y: model(y.clone())) > 0.1  # leaves its input alone
    fast = optimize(model, x)
    got, want = given.clone(), given.clone()
    assert output_error(fast(got), model(want)) <= 1e-5
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, math.nan], [1.0, math.nan], 0.0),
        ([1.0, 0.0], [1.0, math.nan], math.inf),
        ([1.0, math.nan], [1.0, math.inf], math.inf),
        ([1.0, -math.inf], [1.0, math.inf], math.inf),
        ([1.0 + 2j], [1.0 + 1j], 1 / math.sqrt(2)),
        ([True, False], [True, True], math.inf),
    ],
)
def test_output_error_of_what_is_not_finite_or_not_real(got: Any, want: Any, error: float) -> None:
    assert output_error(torch.tensor(got), torch.tensor(want)) == pytest.approx(error)


def test_output_error_tells_types_and_structures_apart() -> None:
    one = torch.ones(3)
    different = [
        (one.double(), one), (one.int(), one), (one > 0, one), ({"a": one}, {"b": one}),
        ([one, 1], [one, None]), ("a", "b"), (True, 1), (2, 1.0),
    ]  # fmt: skip
    for got, want in different:
        assert output_error(got, want) == math.inf, (got, want)
    assert output_error(one, one.double()) == 0  # a reference in f64
    assert output_error((one, 2.0, None, "a"), [one, 2.0, None, "a"]) == 0
    assert output_error(3.0, 2.0) == pytest.approx(0.5)


def test_a_number_that_numpy_makes_of_sizes_pins_them() -> None:
    """The symbolic run does not see it; the run at other sizes does."""
    fast = optimize(make(lambda y: y / np.prod(y.shape[2:])), rand(1, 3, 16, 16))
    dims = fast.plan.inputs[0].dims
    assert dims is not None
    assert [dim.name for dim in dims] == ["0.0", "", "", ""]


# ---- calls with other sizes ----------------------------------------------------------------------


def planned(model: nn.Module, *inputs: Any) -> torchalgo.Optimized:
    """Optimized, and forced to run its plan."""
    tuned = optimize(model, *inputs)
    plan = dataclasses.replace(tuned.plan, guard=None)
    return torchalgo.optimize(model, inputs, plan=plan, settings=torchalgo.Settings(progress=False))


@pytest.mark.parametrize(
    ("name", "runs_original"),
    [
        ("plain", ()), ("length", ("2x",)), ("loop", ("2x",)), ("int", ("x30",)),
        ("table", ("x20x",)), ("even", ()), ("squeeze", ()), ("view", ()),
    ],
)  # fmt: skip
def test_values_are_right_at_every_size_and_what_differs_runs_the_original(
    name: str, runs_original: tuple[str, ...], recwarn: pytest.WarningsRecorder
) -> None:
    model = make(FUNCTIONS[name][0])
    fast = planned(model, rand(1, 3, 16, 24))
    for sizes in ((1, 3, 16, 24), (2, 3, 16, 24), (1, 3, 20, 24), (1, 3, 16, 30), (1, 3, 16, 24)):
        x = rand(*sizes)
        for _ in range(2):
            assert output_error(fast(x), model(x)) <= 1e-5, sizes
    assert len(fast.original_runs) == len(runs_original)
    for why, part in zip(fast.original_runs, runs_original, strict=True):
        assert part in why
        assert "another program" in why or "computed otherwise" in why
    assert set(fast.original_runs.values()) <= {2}


class RankBySize(nn.Module):
    """A branch on a size changes a rank, which the importer takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if x.shape[0] > 4:
            y = y.flatten(2)
        return y * 2 if y.dim() == 3 else y


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are")
def test_a_rank_that_depends_on_a_size_pins_the_sizes_of_a_scripted_model() -> None:
    torch.manual_seed(0)
    model = torch.jit.script(RankBySize().eval())
    fast = planned(model, rand(1, 3, 8, 8))
    for sizes in ((1, 3, 8, 8), (2, 3, 8, 8), (6, 3, 8, 8)):
        assert output_error(fast(rand(*sizes)), model(rand(*sizes))) <= 1e-5
    assert ["6x3x8x8" in why for why in fast.original_runs] == [True]


class RankByValues(RankBySize):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if bool(x.mean() > 0):
            y = y.flatten(2)
        return y * 2 if y.dim() == 3 else y


class RankBySqueeze(RankBySize):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).mean((2, 3)).squeeze()
        if y.dim() == 1:
            y = y.unsqueeze(0)
        return y


class GrayImages(RankBySize):
    """A branch on the channels of an input, which no weight fixes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x[:, :1].repeat(1, 3, 1, 1))
        if x.size(1) == 1:
            x = x.repeat(1, 3, 1, 1)
        return y * x.size(1)


class ShuffleOfOneSize(RankBySize):
    """It shuffles images of 8 x 8. An image of 16 x 16 counts as four of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).view(-1, 2, 4, 8, 8).transpose(1, 2).contiguous()
        return y.view(-1, 8, 8, 8)


class RegroupedPool(RankBySize):
    """The linear layer reads rows of four channels, and not all eight of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        rows = x.size(0) * 2
        y = functional.adaptive_avg_pool2d(x, 1).view(rows, 4)
        y = torch.sigmoid(self.fc(y)).view(rows, 4, 1, 1)
        return x.view(rows, 4, x.size(2), x.size(3)) * y


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are")
@pytest.mark.parametrize(
    ("model", "others"),
    [
        (RankByValues, [-rand(1, 3, 8, 8)]),
        (RankBySqueeze, [rand(4, 3, 8, 8), rand(1, 3, 6, 6)]),
        (GrayImages, [rand(1, 1, 8, 8), rand(1, 2, 8, 8)]),
        (ShuffleOfOneSize, [rand(1, 3, 16, 16), rand(2, 3, 8, 8)]),
        (RegroupedPool, [rand(2, 3, 8, 8), rand(1, 3, 9, 6)]),
    ],
)
def test_a_scripted_model_is_right_for_other_values_and_sizes(
    model: type[nn.Module], others: list[torch.Tensor]
) -> None:
    torch.manual_seed(0)
    scripted = torch.jit.script(model().eval())
    x = rand(1, 3, 8, 8)
    for example, inputs in ((x, others), (others[0], [x])):
        fast = planned(scripted, example)
        for each in (example, *inputs):
            found, expected = fast(each), scripted(each)
            assert found.shape == expected.shape
            assert output_error(found, expected) <= 1e-5


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are")
@pytest.mark.parametrize("primitive", ["cpu.im2col_gemm", "cpu.im2row_gemm", ""])
@torch.no_grad()
def test_a_transposed_convolution_is_right_for_results_smaller_than_its_stride(
    primitive: str,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(16, 16, 3, stride=2, padding=1)).eval()
    sizes = [(8, 8), (8, 1), (1, 8), (8, 8)]
    if not primitive:
        sizes = [(1, 8), (8, 8), (8, 1), (1, 8)]
    overrides = {"*": primitive} if primitive else None
    fast = optimize(model, rand(1, 16, *sizes[0]), overrides=overrides, run_untimed=True)
    for size in sizes:
        x = rand(1, 16, *size)
        assert output_error(fast(x), model(x)) <= 1e-5


def test_an_empty_batch_is_right() -> None:
    model = make(torch.relu)
    fast = planned(model, rand(2, 3, 16, 16))
    assert fast(rand(0, 3, 16, 16)).shape == (0, 8, 16, 16)


def test_a_file_raises_for_sizes_that_it_is_not_right_for(tmp_path: Path) -> None:
    model = make(FUNCTIONS["length"][0])
    fast = planned(model, rand(1, 3, 16, 16))
    fast.save(tmp_path / "net.pt")
    fast.save(tmp_path / "portable.pt", portable=True)
    loaded = torchalgo.load(tmp_path / "net.pt")
    assert loaded.plan == fast.plan
    for module in (
        loaded,
        fast.scripted,
        torch.jit.load(str(tmp_path / "net.pt")),
        torch.jit.load(str(tmp_path / "portable.pt")),
    ):
        for sizes in ((1, 3, 16, 16), (1, 3, 20, 12)):
            assert output_error(module(rand(*sizes)), model(rand(*sizes))) <= 1e-5
        for sizes in ((2, 3, 16, 16), (3, 16, 16), (1, 4, 16, 16)):
            with pytest.raises((torchalgo.Error, torch.jit.Error)) as caught:
                module(rand(*sizes))
            assert f"inputs are [{list(sizes)}], planned are [[1, 3, 16, 16]]" in str(caught.value)
    with pytest.raises(torchalgo.Error, match="dimension 0 of tensor 0 takes only 1"):
        loaded(rand(2, 3, 16, 16))


def test_of_several_plans_only_those_that_are_right_for_the_sizes_run(tmp_path: Path) -> None:
    model = make(lambda y: y * y.shape[0] if y.shape[0] >= 4 else y * len(y))
    fast = torchalgo.optimize(
        model,
        rand(1, 3, 16, 16), shapes=[(1, 3, 16, 16), (4, 3, 16, 16), (3, 3, 16, 16)],
        settings=torchalgo.Settings(progress=False, cost_db=False), budget_s=3.0,
    )  # fmt: skip
    fast.save(tmp_path / "net.pt")
    loaded = torchalgo.load(tmp_path / "net.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sizes in ((1, 3, 8, 8), (3, 3, 20, 20), (4, 3, 9, 16), (9, 3, 16, 16)):
            x = rand(*sizes)
            for module in (fast, loaded, loaded.scripted):
                assert output_error(module(x), model(x)) <= 1e-5, sizes
        assert output_error(fast(rand(2, 3, 16, 16)), model(rand(2, 3, 16, 16))) <= 1e-5
    with pytest.raises(torchalgo.Error, match="dimension 0 of tensor 0 takes only"):
        loaded(rand(2, 3, 16, 16))


def test_a_file_of_an_older_torchalgo_takes_any_sizes_and_says_so(tmp_path: Path) -> None:
    fast = planned(make(torch.relu), rand(1, 3, 16, 16))
    inputs = [dataclasses.replace(given, dims=None) for given in fast.plan.inputs]
    result = fast._results[0]
    old = dataclasses.replace(result, plan=dataclasses.replace(fast.plan, inputs=inputs))
    torchalgo.Optimized(old).save(tmp_path / "old.pt")
    with pytest.warns(UserWarning, match="does not say which sizes"):
        loaded = torchalgo.load(tmp_path / "old.pt")
    assert loaded(rand(2, 3, 20, 20)).shape == (2, 8, 20, 20)


def test_equal_sizes_that_a_model_joins_are_checked_in_files(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.conv(torch.cat([x, y], 2))

    torch.manual_seed(0)
    model = Two().eval()
    fast = planned(model, rand(2, 3, 8, 8), rand(2, 3, 4, 8))
    fast.save(tmp_path / "net.pt")
    loaded = torchalgo.load(tmp_path / "net.pt")
    good, bad = (rand(3, 3, 8, 9), rand(3, 3, 5, 9)), (rand(3, 3, 8, 9), rand(2, 3, 5, 9))
    assert output_error(loaded(*good), model(*good)) <= 1e-5
    with pytest.raises(torchalgo.Error, match="tensor 1 takes 1 or more, with equal sizes"):
        loaded(*bad)


# ---- what the comparisons cost -------------------------------------------------------------------


class Counting(nn.Module):
    """Counts the runs of its Python code by the sizes of the input; `factor` may change them."""

    def __init__(self, factor: Callable[[torch.Tensor], Any] = lambda x: 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.factor = nn.Conv2d(3, 4, 3, padding=1), factor
        runs: list[tuple[int, ...]] = []  # no attribute, since optimize restores attributes
        self.count = runs.append
        self.all_runs = lambda: runs

    @property
    def runs(self) -> list[tuple[int, ...]]:
        return self.all_runs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:  # and not a fake one
            self.count(tuple(int(size) for size in x.shape))
        return self.conv(x) * self.factor(x)


def test_a_slow_model_runs_twice_at_its_own_sizes() -> None:
    model, sizes = Counting().eval(), (2, 3, 40, 60)
    fast = torchalgo.optimize(
        model,
        rand(*sizes),
        settings=torchalgo.Settings(progress=False, cost_db=False),
        budget_s=1e-4,
    )
    assert model.runs[:2] == [sizes, sizes]  # as it is, and by the tracer
    small = set(model.runs[2:])
    assert small == {(3, 3, 21, 31)}
    note = "compared with the model at inputs 3x3x21x31, and not at 2x3x40x60"
    assert note in str(fast.plan)
    assert fast.plan.capture_error is not None
    assert fast.plan.capture_error <= 1e-6


def test_a_slow_model_whose_sizes_are_pinned_is_compared_at_its_own() -> None:
    model, sizes = (
        Counting(lambda x: x.stride()[0] + float(len(x) * x.shape[2])).eval(),
        (1, 3, 8, 9),
    )
    fast = torchalgo.optimize(
        model,
        rand(*sizes),
        settings=torchalgo.Settings(progress=False, cost_db=False),
        budget_s=1e-4,
    )
    assert set(model.runs) == {sizes}
    assert len(model.runs) >= 3  # the run that is repeated is one of them
    assert "compared with the model at" not in str(fast.plan)


def test_a_slow_model_whose_runs_differ_is_refused_at_smaller_sizes() -> None:
    model = Counting(lambda x: torch.rand(1)).eval()
    with pytest.raises(torchalgo.Error, match=r"two runs of the model .* differ"):
        torchalgo.optimize(
            model, rand(2, 3, 40, 60), settings=torchalgo.Settings(progress=False), budget_s=1e-4
        )
    assert model.runs.count((2, 3, 40, 60)) == 2
