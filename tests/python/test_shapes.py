# SPDX-License-Identifier: BSD-3-Clause
"""Several shapes: a plan each, the nearest plan for any other, and what users do with them."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import math
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, arguments, fp64_error, make_net
from support.plans import make_plan
from torchalgo import _C
from torchalgo._api.enable import planned_choices
from torchalgo._base.deadline import Deadline
from torchalgo._base.timings import Timings
from torchalgo._capture.example_calls import example_calls, resized
from torchalgo._capture.shapes import Shapes, nearest, shapes_of, shapes_text
from torchalgo._ir.plan import PlanInput
from torchalgo._measure.checking import Checker
from torchalgo._measure.sampling import Sampler
from torchalgo._plan.result import Result
from torchalgo._refine.call_budget import CallBudget
from torchalgo._run import unseen
from torchalgo._run.shape_dispatch import join
from torchalgo_cli import main

SHAPES = ((1, 3, 40, 40), (2, 3, 24, 64), (1, 3, 96, 32))
UNSEEN = ((1, 3, 33, 57), (3, 3, 20, 60), (1, 3, 200, 40), (2, 3, 8, 8))


X = torch.rand(1, 3, 8, 8)


def tensor(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def optimize_for(model: nn.Module, *shapes: Any, **options: Any) -> torchalgo.Optimized:
    """Tuned, then applied with no verdict of the guard, so that every plan runs."""
    tuned = torchalgo.optimize(model, shapes=shapes, **arguments(**options))
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    return torchalgo.optimize(model, shapes=shapes, plan=plans, **arguments())


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> torchalgo.Optimized:
    costs = tmp_path_factory.mktemp("costs") / "costs.sqlite3"
    return optimize_for(make_net(), *SHAPES, cost_db=costs)


@pytest.fixture
def again(shaped: torchalgo.Optimized) -> torchalgo.Optimized:
    """The same, never called."""
    return copy.deepcopy(shaped)


@pytest.fixture
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torchalgo: there is no plan for inputs")
        yield


# ---- the rule ------------------------------------------------------------------------------------


def nearest_by_brute_force(shapes: Shapes, planned: list[Shapes]) -> int:
    """By exact ratios: the sum of |log(a / b)| orders as the product of max(a, b) / min(a, b)."""

    def distance(other: Shapes) -> Fraction | float:
        if [len(sizes) for sizes in shapes] != [len(sizes) for sizes in other]:
            return math.inf
        pairs = [
            pair for a, b in zip(shapes, other, strict=True) for pair in zip(a, b, strict=True)
        ]
        filled = [(max(a, 1), max(b, 1)) for a, b in pairs]
        return math.prod((Fraction(max(p), min(p)) for p in filled), start=Fraction(1))

    return min(range(len(planned)), key=lambda i: distance(planned[i]))


def random_shapes(rng: random.Random) -> Shapes:
    ranks = rng.choice([(4,), (4,), (4,), (3,), (4, 2), ()])
    return tuple(tuple(rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 48]) for _ in range(r)) for r in ranks)


def as_lists(shapes: Shapes) -> list[list[int]]:
    return [list(sizes) for sizes in shapes]


def test_the_nearest_shapes_are_those_of_brute_force_with_ties_to_the_first() -> None:
    rng = random.Random(0)
    scripted = torch.jit.script(nearest)
    for _ in range(2000):
        shapes = random_shapes(rng)
        planned = [random_shapes(rng) for _ in range(rng.randrange(1, 6))]
        want = nearest_by_brute_force(shapes, planned)
        lists = [as_lists(other) for other in planned]
        assert nearest(as_lists(shapes), lists) == want, (shapes, planned)
        if shapes and all(planned):  # TorchScript cannot tell of what an empty list is
            assert scripted(as_lists(shapes), lists) == want


def test_shapes_are_spelled_with_an_x_and_commas() -> None:
    x, number = torch.empty(1, 3, 8, 9), torch.tensor(1.0)
    assert shapes_text(shapes_of((x,))) == "1x3x8x9"
    assert shapes_text(shapes_of((x, {"a": [number, x]}, 7))) == "1x3x8x9,scalar,1x3x8x9"


class Number(nn.Module):
    """Tells which module ran."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> int:
        return self.number


def numbered(*shapes: tuple[int, ...]) -> torchalgo.Optimized:
    """Plans for `shapes` whose modules return their numbers."""
    return torchalgo.Optimized(
        *(
            Result(
                torch.jit.script(Number(i)),
                dataclasses.replace(make_plan(), inputs=[PlanInput(list(s), "float32", "nchw")]),
            )
            for i, s in enumerate(shapes)
        )
    )


def test_what_runs_is_the_nearest_plan_in_python_and_in_torchscript(quiet: None) -> None:
    shapes = ((1, 3, 8, 8), (8, 3, 8, 8), (2, 3, 32, 32), (3, 16, 16))
    fast = numbered(*shapes)
    for sizes in [
        *shapes,
        *itertools.product((1, 3, 6), (3,), (4, 16, 20, 64), (8, 20)),
        (3, 4, 4),
    ]:
        want = nearest_by_brute_force((sizes,), [(s,) for s in shapes])
        x = torch.empty(sizes)
        assert [fast(x), fast(x), fast(x=x), fast.scripted(x)] == [want] * 4
        assert fast.scripted.nearest(x) == want


def test_a_joined_module_looks_at_every_tensor_of_a_call(tmp_path: Path) -> None:
    class Many(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(
            self,
            x: torch.Tensor,
            pair: tuple[torch.Tensor, torch.Tensor],
            many: list[torch.Tensor],
            named: dict[str, torch.Tensor],
            maybe: torch.Tensor | None = None,
            scale: float = 2.0,
        ) -> float:
            return self.number * scale

    def arguments(size: int, maybe: bool) -> tuple[Any, ...]:
        t = [torch.empty(size, 2) for _ in range(6)]
        return t[0], (t[1], t[2]), [t[3], t[4]], {"a": t[5]}, torch.empty(3) if maybe else None

    sets = [arguments(4, False), arguments(4, True), arguments(9, False)]
    modules = [torch.jit.script(Many(i)) for i in range(3)]
    joined = join(modules, [shapes_of(s) for s in sets])
    joined.save(str(tmp_path / "joined.pt"))
    for module in (joined, torch.jit.load(str(tmp_path / "joined.pt"))):
        assert [module(*s) for s in sets] == [0.0, 2.0, 4.0]
        assert [module(*s, 3.0) for s in sets] == [0.0, 3.0, 6.0]
        assert module(*arguments(8, False)[:4]) == 4.0
        assert module(*arguments(8, True)[:4], maybe=torch.empty(9)) == 2.0


# ---- the result ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [*SHAPES, *UNSEEN])
def test_every_shape_is_right_wherever_it_runs(
    shaped: torchalgo.Optimized, sizes: tuple[int, ...], quiet: None
) -> None:
    x = tensor(*sizes)
    assert fp64_error(make_net(), shaped, x) <= 1e-5
    assert fp64_error(make_net(), shaped.scripted, x) <= 1e-5


def test_each_shape_has_a_plan_and_the_first_is_the_plan(
    shaped: torchalgo.Optimized, again: torchalgo.Optimized
) -> None:
    assert list(shaped.plans) == ["1x3x40x40", "2x3x24x64", "1x3x96x32"]
    assert shaped.plan == shaped.plans["1x3x40x40"]
    for sizes, plan in zip(SHAPES, shaped.plans.values(), strict=True):
        assert [i.shape for i in plan.inputs] == [list(sizes)]
    assert shaped.runs == "plan"
    assert again.weight_bytes == sum(one.weight_bytes for one in again.by_shape.values())
    assert again.weight_bytes == sum(plan.weight_bytes or 0 for plan in again.plans.values())
    assert "2x3x24x64: " in repr(shaped)


def test_each_plan_alone_is_a_module(
    shaped: torchalgo.Optimized, tmp_path: Path, quiet: None
) -> None:
    one = shaped.by_shape["2x3x24x64"]
    x = tensor(2, 3, 24, 64)
    assert one.plans == {"2x3x24x64": shaped.plans["2x3x24x64"]}
    assert torch.equal(one(x), shaped(x))
    one.save(tmp_path / "one.pt")
    assert torchalgo.load_plan(tmp_path / "one.pt") == one.plan
    assert one.by_shape["2x3x24x64"] is one


def test_costs_are_those_of_all_shapes_and_the_rest_of_the_first(net: Net) -> None:
    fast = torchalgo.optimize(net, shapes=SHAPES[:2], **arguments())
    measured = [{k for k, _, kind in one.costs.items() if kind == "measured"} for one in (
        *fast.by_shape.values(), fast,
    )]  # fmt: skip
    assert measured[0] | measured[1] == measured[2]
    assert measured[0] != measured[1]
    assert fast.alternatives == fast.by_shape["1x3x40x40"].alternatives
    assert str(fast.pareto()) == str(fast.by_shape["1x3x40x40"].pareto())


def test_a_copy_or_a_file_runs_the_same_plans(
    shaped: torchalgo.Optimized, tmp_path: Path, quiet: None
) -> None:
    saved = io.BytesIO()
    torch.save(shaped, saved)
    saved.seek(0)
    shaped.save(tmp_path / "net.pt")
    torchalgo.load(tmp_path / "net.pt").save(tmp_path / "again.pt")
    copies = [
        copy.deepcopy(shaped),
        copy.deepcopy(copy.deepcopy(shaped)),
        pickle.loads(pickle.dumps(shaped)),
        torch.load(saved, weights_only=False),
        torchalgo.load(tmp_path / "net.pt"),
        torchalgo.load(tmp_path / "again.pt"),
    ]
    for other in copies:
        assert other.plans == shaped.plans
        for sizes in (*SHAPES, *UNSEEN):
            x = tensor(*sizes)
            assert torch.equal(other(x), shaped(x))
            assert torch.equal(other.scripted(x), shaped(x))
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["again.pt", "net.pt"]


def test_torch_jit_load_in_another_process_chooses_the_same_plan(
    shaped: torchalgo.Optimized, tmp_path: Path, quiet: None
) -> None:
    shaped.save(tmp_path / "net.pt")
    shaped.save(tmp_path / "portable.pt", portable=True)
    data = [(tensor(*sizes), shaped(tensor(*sizes))) for sizes in (*SHAPES, *UNSEEN)]
    numbers = [nearest_by_brute_force((s,), [(o,) for o in SHAPES]) for s in (*SHAPES, *UNSEEN)]
    torch.save(data, tmp_path / "data.pt")
    code = (
        "import sys, torch\n"
        f"data = torch.load({str(tmp_path / 'data.pt')!r})\n"
        f"portable = torch.jit.load({str(tmp_path / 'portable.pt')!r})\n"
        "assert 'torchalgo' not in sys.modules\n"
        "for x, want in data: assert torch.allclose(portable(x), want, atol=1e-5)\n"
        "import torchalgo\n"
        "torch.set_num_threads(1)\n"
        f"net = torch.jit.load({str(tmp_path / 'net.pt')!r})\n"
        "for x, want in data: assert torch.equal(net(x), want)\n"
        f"assert [net.nearest(x) for x, _ in data] == {numbers}\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    again = torchalgo.load(tmp_path / "portable.pt")
    assert again.runs == "baseline"
    assert list(again.plans) == list(shaped.plans)


def test_a_joined_module_is_optimized_already(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    shaped.save(tmp_path / "net.pt")
    for module in (shaped, shaped.scripted, torch.jit.load(str(tmp_path / "net.pt"))):
        with pytest.raises(torchalgo.Error, match="already optimized; pass the original one"):
            torchalgo.optimize(
                module, tensor(1, 3, 40, 40), settings=torchalgo.Settings(progress=False)
            )


# ---- what a call costs and counts ----------------------------------------------------------------


def test_calls_with_unseen_shapes_are_counted_and_told_of_once(
    again: torchalgo.Optimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sizes in SHAPES:
        again(tensor(*sizes))
    assert again.unseen == Counter()
    text = "no plan for inputs 1x3x33x57; the nearest, for 1x3x40x40, runs"
    with pytest.warns(UserWarning, match=text) as told:
        again(tensor(1, 3, 33, 57))
    assert told[0].filename == __file__
    monkeypatch.setattr(unseen, "MOST_REMEMBERED", 2)
    for sizes in ((1, 3, 33, 57), (2, 3, 8, 8), (3, 3, 8, 8), (4, 3, 8, 8), (3, 3, 8, 8)):
        again(tensor(*sizes))
    assert again.unseen == {"1x3x33x57": 2, "2x3x8x8": 1, "others": 3}
    again.unseen.clear()
    assert again.unseen.total() == 6
    assert copy.deepcopy(again).unseen.total() == 0


def test_one_plan_counts_in_silence(fast: torchalgo.Optimized) -> None:
    one = copy.deepcopy(fast)
    one(tensor(1, 3, 40, 40))
    one(tensor(2, 3, 8, 8))
    assert one.unseen == {"2x3x8x8": 1}


def test_no_call_measures(again: torchalgo.Optimized, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("measured in the request path")

    for name in ("measure", "check_primitives", "make_plan", "find_candidates"):
        monkeypatch.setattr(_C, name, fail)
    monkeypatch.setattr("torchalgo._measure.measuring.Tuning.settle", fail)
    monkeypatch.setattr("torchalgo._measure.process_bench.ProcessBench.measure", fail)
    monkeypatch.setattr("torchalgo._measure.process_bench.start_early", fail)
    with pytest.raises(AssertionError, match="measured"):  # these are what optimize calls
        torchalgo.optimize(
            make_net(), tensor(1, 3, 16, 16), settings=torchalgo.Settings(progress=False)
        )
    with pytest.warns(UserWarning, match="no plan"):
        for sizes in (*UNSEEN, *SHAPES):
            again(tensor(*sizes))
    assert again.unseen.total() == len(UNSEEN)


def test_threads_may_call_with_any_shapes_at_once(again: torchalgo.Optimized, quiet: None) -> None:
    calls = (*SHAPES, *UNSEEN)
    want = {sizes: again.scripted(tensor(*sizes)) for sizes in calls}
    wrong: list[tuple[int, ...]] = []

    def work(seed: int) -> None:
        order = list(calls) * 5
        random.Random(seed).shuffle(order)
        for sizes in order:
            if not torch.equal(again(tensor(*sizes)), want[sizes]):
                wrong.append(sizes)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert again.unseen == {shapes_text((sizes,)): 20 for sizes in UNSEEN}


# ---- memory and work are shared ------------------------------------------------------------------


def storages(module: torch.jit.ScriptModule) -> dict[int, int]:
    """Bytes of each memory in which a planned module's own weights lie."""
    graph: Any = module.graph
    constants = graph.findAllNodes("prim::Constant")
    tensors = [
        n.t("value") for n in constants if n.hasAttribute("value") and n.kindOf("value") == "t"
    ]
    for i in itertools.count():
        if not module._c.hasattr(f"_torchalgo_{i}"):
            break
        state = module._c.getattr(f"_torchalgo_{i}").__getstate__()[0]
        tensors += [tensor for tensor in state[-1] if tensor is not None]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def test_three_shapes_hold_each_weight_once(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    shaped.save(tmp_path / "net.pt")
    weights = 4 * sum(p.numel() for n, p in make_net().named_parameters() if "bn" not in n)
    for fast in (shaped, torchalgo.load(tmp_path / "net.pt"), copy.deepcopy(shaped)):
        each = [storages(one._results[0].scripted) for one in fast.by_shape.values()]
        assert all(sum(own.values()) >= 0.9 * weights for own in each)
        assert sum({**each[0], **each[1], **each[2]}.values()) == sum(each[0].values())
    shaped.by_shape["1x3x40x40"].save(tmp_path / "one.pt")
    one, all_ = ((tmp_path / f"{name}.pt").stat().st_size for name in ("one", "net"))
    plans = [len(plan.to_json()) for plan in shaped.plans.values()]
    assert all_ <= one + sum(plans[1:]) + 2 * 20_000  # the code of two more graphs


class Pooled(nn.Module):
    """Its second convolution sees one shape, whatever the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(self.first(x), (6, 6))
        return self.second(pooled)


@pytest.mark.parametrize("cost_db", [None, False])
def test_what_no_shape_changes_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, cost_db: Any
) -> None:
    measured: Counter[Any] = Counter()
    take = Sampler.take

    def count(self: Sampler, keys: Any, budget_s: float, again: bool = False) -> Any:
        costs = take(self, keys, budget_s, again)
        measured.update(key for key, cost in costs.items() if not (again or cost.is_rough))
        return costs

    monkeypatch.setattr(Sampler, "take", count)
    torchalgo.optimize(
        Pooled().eval(),
        shapes=[(1, 3, 20, 20), (1, 3, 30, 24)],
        settings=torchalgo.Settings(progress=False, cost_db=cost_db),
    )
    assert max(measured.values()) == 1
    assert any("h6w6_k8r3s3" in key.problem for key in measured)


# ---- how it is asked -----------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + y


def test_example_inputs_are_forwards_arguments_whatever_holds_them() -> None:
    net, two, x, y = make_net(), Two(), tensor(1, 3, 8, 8), tensor(1, 8, 6, 6)
    assert example_calls(net, x) == [((x,), {})]
    assert example_calls(net, (x,)) == example_calls(net, [x]) == [((x,), {})]
    assert example_calls(two, (x, y)) == example_calls(two, [x, y]) == [((x, y), {})]
    assert example_calls(two, [x, (y, y)]) == [((x, (y, y)), {})]
    assert example_calls(two, [(x,), (y,)]) == [(((x,), (y,)), {})]
    assert example_calls(net, ((x, y),)) == [(((x, y),), {})]
    assert example_calls(two, x, {"y": y}) == [((x,), {"y": y})]
    assert example_calls(two, None, {"x": x, "y": y}) == [((), {"x": x, "y": y})]


def test_shapes_make_a_call_each_of_the_examples_values() -> None:
    x = torch.arange(12.0).reshape(1, 3, 4)
    labels = torch.tensor([7, 3])
    small, large = example_calls(
        nn.Identity(),
        (x, {"labels": labels, "n": 5}),
        shapes=[[(1, 2, 2), (1,)], [(2, 3, 5), (3,)]],
    )
    assert torch.equal(small[0][0], x[:, :2, :2])
    assert small[0][1]["labels"].tolist() == [7] and small[0][1]["n"] == 5
    (again, values), _ = large
    assert torch.equal(again, torch.cat((x, x[..., :1]), 2).expand(2, 3, 5))
    assert values["labels"].tolist() == [7, 3, 7] and values["labels"].dtype == torch.int64
    image = torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    made = resized(image, (2, 3, 5, 3))
    assert made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous()


def test_shapes_alone_make_random_inputs_of_the_models_type() -> None:
    calls = example_calls(make_net().double(), None, shapes=[(1, 3, 8, 8), (2, 3, 8, 8)])
    assert [(tuple(x.shape), x.dtype) for (x,), _ in calls] == [
        ((1, 3, 8, 8), torch.float64),
        ((2, 3, 8, 8), torch.float64),
    ]


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ([X, X], {}, r"2 arguments, which forward does not take; for several plans"),
        ([(X,), (X,)], {}, r"2 arguments, which forward does not take; for several plans"),
        ([], {}, r"non-empty sequence"),
        (3, {}, r"is int, expected a tensor"),
        (X, {"example_kwargs": [{}]}, r"example_kwargs is list, expected a dict"),
        (X, {"shapes": []}, r"shapes is \[\], expected a shape for each plan"),
        (X, {"shapes": (1, 3, 8, 8)}, r"shapes\[0\] is 1, expected a shape for each plan"),
        (X, {"shapes": [(1, 3, 8.5, 8)]}, r"shapes\[0\] is \(1, 3, 8.5, 8\), expected"),
        (X, {"shapes": [(1, 3, 8, -8)]}, r"shapes\[0\] is \(1, 3, 8, -8\), expected"),
        (X, {"shapes": [(1, 3, 8, 8), [1, 3, 8, 8]]}, r"shapes\[0\] and shapes\[1\] are both 1x3"),
        (X, {"shapes": [[(1, 3, 8, 8), (1, 3)]]}, r": 2 tensors; the example inputs have 1"),
        (X, {"shapes": [(3, 8, 8)]}, r"3x8x8 for a tensor whose example is 1x3x8x8, expected 4"),
        (X[:0], {"shapes": [(1, 3, 8, 8)]}, r"example is 0x3x8x8.*and an example with values"),
    ],
)  # fmt: skip
def test_wrong_inputs_and_shapes_say_what_is_expected(
    net: Net, inputs: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.optimize(net, inputs, **options)


def test_a_model_that_fixes_sizes_is_right_for_each_shape_it_was_planned_for() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, *x: torch.Tensor) -> torch.Tensor:  # TorchScript refuses *x
            y = self.conv(x[0])
            half = int(y.shape[2]) // 2
            return y[:, :, :half] + (1.0 if half > 8 else 0.0)

    model = Fixed().eval()
    shapes = [(1, 3, 10, 9), (1, 3, 24, 9)]
    fast = torchalgo.optimize(model, shapes=shapes, **arguments())
    for x in (tensor(*sizes) for sizes in shapes):
        assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert torch.allclose(fast.scripted(x), model(x), atol=1e-5)


def test_a_result_that_differs_by_shape_runs_and_cannot_be_one_torchscript_module(
    tmp_path: Path, quiet: None
) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, *x: torch.Tensor) -> Any:
            y = self.conv(x[0])
            return (y, y.sum()) if x[0].shape[0] > 1 else y

    shapes = [(1, 3, 10, 9), (2, 3, 10, 9)]
    fast = torchalgo.optimize(Growing().eval(), shapes=shapes, **arguments())
    assert isinstance(fast(tensor(*shapes[0])), torch.Tensor)
    assert isinstance(fast(tensor(*shapes[1])), tuple)
    with pytest.raises(torchalgo.Error, match=r"cannot become one .* save each of .by_shape alone"):
        fast.save(tmp_path / "net.pt")
    fast.by_shape["2x3x10x9"].save(tmp_path / "two.pt")


# ---- plans, options, files -----------------------------------------------------------------------


def test_a_file_of_several_plans_is_read_by_load_plans(
    shaped: torchalgo.Optimized, tmp_path: Path
) -> None:
    shaped.report(tmp_path / "net.json")
    shaped.save(tmp_path / "net.pt")
    for name in ("net.json", "net.pt"):
        assert torchalgo.load_plans(tmp_path / name) == shaped.plans
        with pytest.raises(
            torchalgo.Error, match=r"holds 3 plans, expected one; torchalgo.load_pl"
        ):
            torchalgo.load_plan(tmp_path / name)
    shaped.plan.save(tmp_path / "one.json")
    assert torchalgo.load_plans(tmp_path / "one.json") == {"1x3x40x40": shaped.plan}
    (tmp_path / "bad.json").write_text('{"schema": 1, "plans": []}')
    with pytest.raises(torchalgo.Error, match=r"bad.json: expected a list of plans"):
        torchalgo.load_plans(tmp_path / "bad.json")
    text = (tmp_path / "net.json").read_text().replace('"ties"', '"knots"')
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(torchalgo.Error, match=r"bad.json.plans\[0\]: lacks 'ties'"):
        torchalgo.load_plans(tmp_path / "bad.json")


def test_enable_takes_the_choices_of_all_plans_in_a_file(
    shaped: torchalgo.Optimized, tmp_path: Path
) -> None:
    shaped.save(tmp_path / "net.pt")
    alone = [planned_choices(plan) for plan in shaped.plans.values()]
    assert planned_choices(tmp_path / "net.pt") == {**alone[0], **alone[1], **alone[2]}
    assert all(any(size in problem for problem in own) for own, size in zip(
        alone, ("h40w40", "h24w64", "h96w32"), strict=True,
    ))  # fmt: skip


def test_reports_show_every_plan(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    for suffix in (".txt", ".html"):
        shaped.report(tmp_path / f"net{suffix}")
        text = (tmp_path / f"net{suffix}").read_text()
        assert [text.lower().count(f"plan for {shapes}") for shapes in shaped.plans] == [1, 1, 1]


def test_plans_are_applied_to_the_inputs_of_their_shapes(
    net: Net, shaped: torchalgo.Optimized
) -> None:
    shapes = (SHAPES[2], SHAPES[0])
    applied = torchalgo.optimize(net, shapes=shapes, plan=shaped.plans, **arguments())
    assert list(applied.plans) == ["1x3x96x32", "1x3x40x40"]
    assert applied.plan == shaped.plans["1x3x96x32"]
    first = torchalgo.optimize(net, plan=shaped.plans, settings=torchalgo.Settings(progress=False))
    assert fp64_error(net, first, tensor(*SHAPES[1])) <= 1e-5
    assert first.plans == {"2x3x24x64": shaped.plans["2x3x24x64"]}
    for plan in (shaped.plans, shaped.plan):
        with pytest.raises(torchalgo.Error, match="no plan for the inputs 1x3x8x8; plans are for"):
            torchalgo.optimize(net, shapes=[(1, 3, 40, 40), (1, 3, 8, 8)], plan=plan)
    with pytest.raises(torchalgo.Error, match=r"plan is str, expected torchalgo.Plan"):
        torchalgo.optimize(net, shapes=shapes, plan=["net.json"])  # type: ignore[list-item]


def test_overrides_hold_in_every_plan_and_the_budget_is_shared(net: Net) -> None:
    call_budget = CallBudget(Timings(), Deadline(8.0, lambda: 3.0))
    assert [call_budget.part(left).deadline.left_s("finish") for left in (2, 1)] == [4.0, 8.0]
    overrides = {"layer1.*": "cpu.im2col_gemm"}
    fast = torchalgo.optimize(
        net,
        shapes=SHAPES[:2],
        overrides=overrides,
        budget_s=4,
        settings=torchalgo.Settings(progress=False),
    )
    for plan in fast.plans.values():
        nodes = [n for n in plan.nodes if n.name.startswith("layer1.") and n.primitive]
        convs = [n.primitive for n in nodes if n.problem.startswith("fwd_")]
        assert convs
        assert set(convs) == {"cpu.im2col_gemm"}


def test_ctrl_c_keeps_the_plans_there_are(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Sampler.take
    seen: list[str] = []

    def interrupt(self: Sampler, keys: Any, budget_s: float, again: bool = False) -> Any:
        seen.extend(key.problem for key in keys)
        if any("n2c3h24w64" in problem for problem in seen):
            raise KeyboardInterrupt
        return taken(self, keys, budget_s, again)

    monkeypatch.setattr(Sampler, "take", interrupt)
    told: list[str] = []
    fast = torchalgo.optimize(
        net,
        shapes=SHAPES,
        settings=torchalgo.Settings(progress=lambda event: told.append(event.text)),
    )
    assert list(fast.plans) == ["1x3x40x40", "2x3x24x64"]  # the second of what is known
    assert "interrupted: no plans for inputs 1x3x96x32" in told


def test_ctrl_c_while_the_first_plan_is_made_ends_it_all(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Checker, keys: Any) -> bool:  # by then enough is measured for a plan
        raise KeyboardInterrupt

    monkeypatch.setattr(Checker, "check", interrupt)
    fast = torchalgo.optimize(net, shapes=SHAPES, **arguments())
    assert list(fast.plans) == ["1x3x40x40"]
    assert "interrupted" in fast.plan.method
    assert fast.plan.guard is not None and fast.plan.guard.rounds >= 7  # timed as short as can be
    assert fp64_error(net, fast, tensor(*SHAPES[1])) <= 1e-5


def test_an_input_that_the_model_refuses_is_told_before_anything_is_measured(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "take", None)
    with pytest.raises(torchalgo.Error, match=r"inputs of sizes \[1, 4, 8, 8\]\)"):
        torchalgo.optimize(net, shapes=[(1, 3, 8, 8), (1, 4, 8, 8)], **arguments())


def test_the_command_makes_a_plan_for_each_of_its_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: None
) -> None:
    shapes = ("--shapes", "1x3x24x24", "--shapes", "2x3x16x32")
    files = ["-o", str(tmp_path / "o.pt"), "--plan-out", str(tmp_path / "o.json")]
    assert main(["optimize", "support.nets:net_factory", *shapes, *files, "--quiet"]) == 0
    assert "speed   2x3x16x32: " in capsys.readouterr().out
    plans = torchalgo.load_plans(tmp_path / "o.pt")
    assert list(plans) == ["1x3x24x24", "2x3x16x32"]
    assert torchalgo.load_plans(tmp_path / "o.json") == plans
    torch.save(tensor(3, 3, 16, 32), tmp_path / "data.pt")
    common = [str(tmp_path / "o.pt"), str(tmp_path / "data.pt")]
    assert main(["check-outputs", *common, "--original", "support.nets:net_factory"]) == 0
    assert main(["explain", str(tmp_path / "o.pt")]) == 0
    assert "plan for 1x3x24x24" in capsys.readouterr().out
    applied = ["--plan", str(tmp_path / "o.json"), "-o", str(tmp_path / "again.pt")]
    assert (
        main(["optimize", "support.nets:net_factory", *shapes, *applied, "--quiet", "--json"]) == 0
    )
    assert '"plans": [' in capsys.readouterr().out
    assert torchalgo.load_plans(tmp_path / "again.pt") == plans
    for wrong in (["--shapes", "1x3x24x"], ["--input", "1x3x8x8", *shapes], []):
        with pytest.raises(SystemExit):
            main(["optimize", "support.nets:net_factory", *wrong, *files])
