# SPDX-License-Identifier: BSD-3-Clause
"""Costs that nobody measured: learned from others, never below their bounds, and planned with."""

from __future__ import annotations

import builtins
import importlib.util
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import bench_replay
import torchalgo
from cost_tables import FOLDER, Table, read_table, usable
from replay import paid_ticks
from support.drawn_machine import DrawnMachine
from support.nets import arguments, make_net
from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import Deadline
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Cost, Key, key_of, native_key
from torchalgo._measure.known_costs import KnownCosts
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.learned_costs import guide_from_store, learn_from_store
from torchalgo._predict.features import (
    activation_alone,
    activation_of,
    features_of,
    without_activation,
)
from torchalgo._predict.model import can_learn, learn

PEAKS = Peaks(100.0, ((1 << 14, 200.0), (1 << 20, 50.0), (1 << 26, 10.0)))
NAMES = ("aten.prepacked", "cpu.im2row_gemm", "cpu.direct")

needs_trees = pytest.mark.skipif(
    importlib.util.find_spec("lightgbm") is None, reason="needs lightgbm"
)


def conv(c: int, k: int, size: int, r: int = 3, post: str = "+bias") -> str:
    return f"fwd_f32_n1c{c}h{size}w{size}_k{k}r{r}s{r}_st1x1_pad{r // 2}x{r // 2}_dil1x1_g1{post}"


def bound_of(key: Key) -> int:
    return PEAKS.bound_ticks(key.problem, _C.Primitive(key.primitive, key.src, key.dst))


def lawful_ticks(key: Key) -> int:
    """A machine on which one primitive is best with few channels, another with many, and the third
    pays for each activation as much as for the convolution."""
    channels = _C.tensor_sizes(key.problem)[0][0][1]
    ratio = {
        "aten.prepacked": 1.2 + 40.0 / channels,
        "cpu.im2row_gemm": 2.0,
        "cpu.direct": 1.5 * (2.0 if activation_of(key.problem) else 1.0),
    }[key.primitive]
    return max(1, round(bound_of(key) * ratio))


def law(channels: Sequence[int], post_ops: Sequence[str] = ("+bias", "+bias+relu")) -> list[Key]:
    return [
        Key(conv(c, k, size, r, post), name, "nhwc", "nhwc")
        for c in channels
        for k in (32, 64, 128)
        for size in (7, 14, 28)
        for r in (1, 3)
        for post in post_ops
        for name in NAMES
    ]


@pytest.fixture(scope="module")
def lawful() -> Any:
    return learn({key: lawful_ticks(key) for key in law([16, 24, 48, 64, 96, 192, 256])}, PEAKS)


# ---- the model -----------------------------------------------------------------------------------


@needs_trees
def test_problems_never_seen_are_ranked_as_the_law_ranks_them(lawful: Any) -> None:
    keys = law([20, 36, 80, 128, 160, 384])
    ticks = lawful.predict(keys)
    right = total = 0
    for problem in sorted({key.problem for key in keys}):
        rivals = [Key(problem, name, "nhwc", "nhwc") for name in NAMES]
        best = min(rivals, key=ticks.__getitem__)
        right += lawful_ticks(best) <= 1.05 * min(map(lawful_ticks, rivals))
        total += 1
    assert total == 216
    assert right >= 0.95 * total


@needs_trees
def test_what_it_learned_it_answers_as_it_was(lawful: Any) -> None:
    keys = law([16, 64])
    assert lawful.predict(keys) == {key: lawful_ticks(key) for key in keys}


@needs_trees
def test_a_fusion_never_seen_gains_nothing(lawful: Any) -> None:
    fused = Key(conv(64, 32, 14, 3, "+bias+silu"), "cpu.direct", "nhwc", "nhwc")
    alone = Key("silu_f32_n1c32h14w14", "cpu.activation", "nhwc", "nhwc")
    core = fused._replace(problem=conv(64, 32, 14))
    ticks = lawful.predict([fused, alone, core])
    aten = alone._replace(primitive="aten.eltwise")
    cheapest = min(ticks[alone], lawful.predict([aten])[aten])
    assert ticks[fused] >= ticks[core] + cheapest
    seen = fused._replace(problem=conv(64, 32, 14, 3, "+bias+relu"))
    assert lawful.predict([seen])[seen] == lawful_ticks(seen)


@needs_trees
def test_predictions_are_never_below_bounds_whatever_was_learned() -> None:
    cheap = dict.fromkeys(law([16, 24, 48, 64, 96]), 1)  # no machine is so fast
    keys = law([32, 512, 4096])
    ticks = learn(cheap, PEAKS).predict(keys)
    assert all(ticks[key] >= bound_of(key) for key in keys)
    dear = dict.fromkeys(cheap, 1 << 50)
    assert all(0 < t < 1 << 62 for t in learn(dear, PEAKS).predict(keys).values())


def predicted_with(*threads: int) -> list[list[int]]:
    """What models of the same costs predict that were learned with these numbers of threads, each
    from costs in another order."""
    costs, keys = {key: lawful_ticks(key) for key in law([16, 48, 96, 192])}, law([20, 80])
    found, before = [], torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            costs = dict(reversed(costs.items()))
            ticks = learn(costs, PEAKS).predict(keys if count == 2 else keys[::-1])
            assert torch.get_num_threads() == count
            found.append([ticks[key] for key in keys])
    finally:
        torch.set_num_threads(before)
    return found


@needs_trees
def test_the_same_costs_give_the_same_predictions_in_any_order_and_number_of_threads() -> None:
    found = predicted_with(1, 2, 4)
    assert len(found) == 3 and len(found[0]) == 216
    assert all(predictions == found[0] for predictions in found)


@pytest.mark.slow
@needs_trees
def test_predictions_do_not_depend_on_how_onednn_pads_its_weights() -> None:
    """On AVX2 it pads them differently with another number of threads, and not on AVX-512."""
    program = "import test_prediction as t, sys; print(t.predicted_with(*map(int, sys.argv[1:])))"
    paths = [str(Path(__file__).parent), *sys.path]
    found = []
    for omp, threads in (("1", "124"), ("4", "4")):
        env = {
            **os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
            "OMP_NUM_THREADS": omp, "PYTHONPATH": ":".join(paths),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", program, *threads],
            env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found += json.loads(done.stdout)
    assert len(found) == 4
    assert all(predictions == found[0] for predictions in found)


@needs_trees
def test_a_model_needs_enough_costs_of_enough_problems() -> None:
    assert not can_learn(dict.fromkeys(law([16])[:30], 5))
    assert can_learn(dict.fromkeys(law([16, 48, 96, 192]), 5))


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "lightgbm":
            raise ImportError("No module named 'lightgbm'")
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(torchalgo.Error, match="pip install lightgbm"):
        learn(dict.fromkeys(law([16, 48, 96, 192]), 5), PEAKS)


# ---- features ------------------------------------------------------------------------------------


def test_only_the_activation_of_a_convolution_over_images_has_a_problem_of_its_own() -> None:
    assert activation_alone(conv(16, 32, 8, 3, "+bias+relu")) == "relu_f32_n1c32h8w8"
    assert activation_alone(conv(16, 32, 8, 3, "+bias")) is None
    volume = "fwd_f32_n1c4d8h8w8_k4t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1"
    assert activation_alone(f"{volume}+bias+relu") is None


def test_an_activation_is_told_from_what_it_is_fused_to() -> None:
    problem = conv(16, 32, 8, 3, "+bias+add+relu6")
    assert activation_of(problem) == "relu"
    assert without_activation(problem) == conv(16, 32, 8, 3, "+bias+add")
    assert activation_alone(problem) == "relu6_f32_n1c32h8w8"
    assert activation_alone(conv(16, 32, 8)) is None
    assert activation_of("hardswish_f32_n1c8h1w1") == "hardswish"


@pytest.mark.parametrize(
    ("step", "alike"),
    [("leaky_relu0.1", "relu"), ("clamp-1x1", "relu"), ("elu1", "silu"), ("mish", "silu")],
)
def test_an_activation_with_numbers_counts_as_one_that_takes_as_long(step: str, alike: str) -> None:
    problem = conv(16, 32, 8, 3, f"+bias+{step}")
    assert activation_of(problem) == alike
    assert without_activation(problem) == conv(16, 32, 8, 3, "+bias")
    assert activation_alone(problem) == f"{step}_f32_n1c32h8w8"


def test_every_problem_of_every_table_has_features_of_one_length() -> None:
    lengths = set()
    for path in sorted(FOLDER.glob("*.json.gz"))[:4]:
        for key in read_table(path).rows:
            features = features_of(key, PEAKS)
            lengths.add(len(features.numbers))
            assert all(abs(number) < 1e6 for number in features.numbers)
            assert features.floor_ticks >= 1
    assert len(lengths) == 1


# ---- plans ---------------------------------------------------------------------------------------


def table_of(network: str) -> Table:
    return usable(read_table(FOLDER / f"{network}.json.gz"))


@needs_trees
def test_a_network_left_out_gets_a_plan_near_its_optimum() -> None:
    table = table_of("squeezenet1_1")
    others = [table_of(name) for name in ("resnet18", "mobilenet_v2", "regnet_y_400mf", "vgg16")]
    known = bench_replay.costs_of(others, {key.problem for key in table.rows})
    assert not {key.problem for key in known} & {key.problem for key in table.rows}
    peaks = Peaks.probed(table.probes)
    optimum = paid_ticks(table, {key: r.ticks for key, r in table.rows.items()})
    believed = bench_replay.by_model(known, list(table.rows), peaks)
    roofline = bench_replay.by_roofline(known, list(table.rows), peaks)
    assert paid_ticks(table, believed) <= 1.1 * optimum
    assert paid_ticks(table, roofline) > 1.5 * optimum


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A database as if this machine had tuned three networks."""
    path = tmp_path / "costs.sqlite3"
    with CostStore.open(path) as store:
        for network in ("mobilenet_v2", "resnet18", "regnet_y_400mf"):
            rows = table_of(network).rows
            costs = {key: Cost(row.ticks, row.noise_ticks) for key, row in rows.items()}
            DeviceCosts.of(store, None, 8 << 20).append(costs)
    return path


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a candidate was measured")


@needs_trees
def test_nothing_is_measured_and_the_plan_says_so(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "on", lambda *_: Bench(measure=never, peaks=lambda: PEAKS))
    net, x = make_net(), torch.rand(1, 3, 32, 32)
    with CostStore.open(store_path) as store:
        before = store.rows()
    fast = torchalgo.optimize(
        net, x, settings=torchalgo.Settings(mode="predict", cost_db=store_path, progress=False)
    )
    assert torch.allclose(fast(x), net(x), rtol=1e-3, atol=1e-4)
    sources = {n.cost_source for n in fast.plan.nodes if n.primitive}
    assert "model" in sources
    assert sources <= {"model", "measured", "construction"}
    assert "measured 0 of" in fast.plan.method
    assert "costs predicted from" in fast.plan.method
    assert "partly predicted" in str(fast.plan)
    assert fast.plan.comparisons["local_optimum"] >= fast.plan.cost_us
    assert fast.plan.comparisons["aten_only"] >= fast.plan.cost_us
    with CostStore.open(store_path) as store:
        assert store.rows() == before
    again = torchalgo.optimize(
        net, x, settings=torchalgo.Settings(mode="predict", cost_db=store_path, progress=False)
    )
    assert [n.primitive for n in again.plan.nodes] == [n.primitive for n in fast.plan.nodes]
    assert again.plan.cost_ticks == fast.plan.cost_ticks
    assert fast.pareto("workspace")  # of the same costs


def test_an_empty_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    with pytest.raises(
        torchalgo.Error, match=r"too few costs: 0 of 0 problems.*Tune one or two models"
    ):
        torchalgo.optimize(
            make_net(),
            torch.rand(1, 3, 32, 32),
            **arguments(mode="predict", cost_db=tmp_path / "new.sqlite3"),
        )
    with pytest.raises(torchalgo.Error, match="cost_db=False turns it off"):
        torchalgo.optimize(make_net(), settings=torchalgo.Settings(mode="predict", cost_db=False))


@needs_trees
def test_rows_of_another_number_of_threads_are_not_learned_from(store_path: Path) -> None:
    threads = torch.get_num_threads()
    with CostStore.open(store_path) as store:
        assert learn_from_store(store, None, 0, PEAKS).costs > 1000
        try:
            torch.set_num_threads(threads + 1)
            with pytest.raises(torchalgo.Error, match=r"too few costs: 0 .* rows are of others"):
                learn_from_store(store, None, 0, PEAKS)
        finally:
            torch.set_num_threads(threads)
        with pytest.raises(torchalgo.Error, match="works on CPUs only"):
            learn_from_store(store, None, 0, None)


def test_guessed_costs_give_way_to_measured_ones_and_never_fall_below_bounds() -> None:
    problem = conv(16, 32, 8)
    low, high, measured = (Key(problem, name, "nhwc", "nhwc") for name in NAMES)
    known = KnownCosts.start({low: 100, high: 100, measured: 100})
    known = known.learned({measured: Cost(500)})
    known = known.guessing({low: 50, high: 300, measured: 7})
    assert [known.lower(key) for key in (low, high, measured)] == [100, 300, 500]
    assert known.table.get(native_key(low)) == (100, "model")
    assert known.table.get(native_key(measured)) == (500, "measured")
    assert all(map(known.is_known, (low, high, measured)))
    assert set(known.costs) == {measured}
    known = known.learned({high: Cost(900)})
    assert known.lower(high) == 900
    assert {k.primitive: (t, s) for k, t, s in known.measured().items()} == {
        NAMES[0]: (100, "model"), NAMES[1]: (900, "measured"), NAMES[2]: (500, "measured"),
    }  # fmt: skip


# ---- what a budget left unmeasured ---------------------------------------------------------------


class Guide:
    """Answers as a model does, from a function."""

    costs, problems = 7, 3

    def __init__(self, ticks_of: Callable[[Key], int]) -> None:
        self.ticks_of, self.asked = ticks_of, 0

    def predict(self, keys: Iterable[Key]) -> dict[Key, int]:
        self.asked += 1
        return {key: self.ticks_of(key) for key in keys}


class ForMeasuring(Deadline):
    """There is always time for what follows."""

    def left_s(self, step: str) -> float:
        return super().left_s(step) if step == "measure" else math.inf


class Slow:
    """A machine on whose clock each visit takes a second."""

    def __init__(self, machine: DrawnMachine) -> None:
        self.machine, self.now_s = machine, 0.0

    def measure(self, tasks: Any, **options: Any) -> Any:
        self.now_s += 1.0
        return self.machine.measure(tasks, **options)

    def tuning(self, guide: Guide, budget_s: float | None) -> Tuning:
        machine = self.machine
        bench = Bench(self.measure, machine.check, lambda: self.now_s, lambda: machine)  # type: ignore
        return Tuning(
            machine.graph, machine.found, {}, TuneSettings(), bench=bench,
            transforms=machine.transforms, guide=lambda _: guide,  # type: ignore
            call=CallContext.start(ForMeasuring(budget_s, lambda: self.now_s)),
        )  # fmt: skip


def true_cost(machine: DrawnMachine, plan: _C.Plan) -> int:
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    keys += [key_of(t.problem, t.primitive) for t in plan.transforms]
    return sum(machine.costs[key] for key in keys if not _C.is_view(key.primitive))


def test_without_a_budget_nobody_asks_the_guide() -> None:
    for seed in range(40):
        machine = DrawnMachine(seed)
        wrong = Guide(lambda key: zlib.crc32(repr(key).encode()) % 100_000)
        plan = Slow(machine).tuning(wrong, None).settle(_C.make_plan)
        assert (plan.cost, wrong.asked) == (machine.optimum(), 0), f"seed {seed}"


def test_with_a_right_guide_the_plan_of_a_short_budget_is_the_optimum() -> None:
    stopped = 0
    for seed in range(40):
        machine = DrawnMachine(seed)
        tuning = Slow(machine).tuning(Guide(machine.costs.__getitem__), 0.5)
        plan = tuning.settle(_C.make_plan)
        assert true_cost(machine, plan) == machine.optimum(), f"seed {seed}"
        stopped += tuning.is_stopped
        assert not tuning.is_stopped or "costs predicted from 7" in tuning.method_note()
    assert stopped > 25  # the others have nothing left to measure


@needs_trees
def test_a_guide_is_learned_where_there_is_enough_and_none_where_not(
    store_path: Path, tmp_path: Path
) -> None:
    with CostStore.open(store_path) as store:
        guide = guide_from_store(store, None, 0, PEAKS)
        assert guide is not None
        assert guide.problems > 100
        assert guide_from_store(store, None, 0, None) is None
    with CostStore.open(tmp_path / "new.sqlite3") as store:
        assert guide_from_store(store, None, 0, PEAKS) is None
