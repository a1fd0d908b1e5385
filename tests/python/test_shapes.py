# SPDX-License-Identifier: BSD-3-Clause
"""Several shapes: a plan each, the nearest plan for any other, and what users do with them."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, arguments, fp64_error, make_net
from support.several_shapes import SHAPES, nearest_by_brute_force, tensor
from torchalgo import _C
from torchalgo._ir.plan import shapes_text
from torchalgo._measure.sampling import Sampler
from torchalgo._run import unseen_shapes

UNSEEN = ((1, 3, 33, 57), (3, 3, 20, 60), (1, 3, 200, 40), (2, 3, 8, 8))


# ---- the result ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [*SHAPES, *UNSEEN])
def test_every_shape_is_right_wherever_it_runs(
    shaped: torchalgo.Optimized, sizes: tuple[int, ...], no_unseen_warning: None
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
    shaped: torchalgo.Optimized, tmp_path: Path, no_unseen_warning: None
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
    shaped: torchalgo.Optimized, tmp_path: Path, no_unseen_warning: None
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
    shaped: torchalgo.Optimized, tmp_path: Path, no_unseen_warning: None
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
    text = "no plan for inputs 1x3x33x57, so the nearest plan runs, which was made for 1x3x40x40"
    with pytest.warns(UserWarning, match=text) as told:
        again(tensor(1, 3, 33, 57))
    assert told[0].filename == __file__
    monkeypatch.setattr(unseen_shapes, "MOST_REMEMBERED", 2)
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
    monkeypatch.setattr("torchalgo._measure.tuning.Tuning.settle", fail)
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


def test_threads_may_call_with_any_shapes_at_once(
    again: torchalgo.Optimized, no_unseen_warning: None
) -> None:
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
