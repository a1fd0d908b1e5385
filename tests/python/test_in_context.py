# SPDX-License-Identifier: BSD-3-Clause
"""A plan inside its net: what is common changes nothing, what is an op's own changes the plan."""

from __future__ import annotations

import dataclasses
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import make_net
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.time_budget import Deadline
from torchalgo._db import DeviceCosts
from torchalgo._ir.costs import Cost, Key, key_of
from torchalgo._measure.pairs import NOTHING, PairEnd, Pairs, admissible, native_pairs
from torchalgo._measure.sampling import Bench
from torchalgo._measure.steps import Done, next_step
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._refine.binding import Tuned
from torchalgo._refine.in_context import (
    Kept,
    Refined,
    Search,
    TimedOp,
    _planned_ops,
    corrections,
    fit_lines,
    has_time,
    limit_s,
    timed_ops,
)
from torchalgo._refine.net_times import Line, NetTimes, fit_line, time_in_net

GRAPHS = Path(__file__).parents[2] / "benchmarks" / "graphs" / "inference.zip"
CONV = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"


# ---- what the ops have in common -----------------------------------------------------------------


def test_a_line_is_found_though_a_quarter_of_the_points_lies_anywhere() -> None:
    for seed in range(50):
        pick = random.Random(seed)
        factor, call = pick.uniform(0.8, 2.0), pick.uniform(0, 3000)
        alone = [pick.uniform(1e3, 1e6) for _ in range(24)]
        measured = [factor * x + call for x in alone]
        for i in pick.sample(range(24), 5):
            measured[i] *= pick.uniform(0.3, 4.0)
        line = fit_line(alone, measured)
        assert line.factor == pytest.approx(factor, rel=0.02)
        assert line.call_ns == pytest.approx(call, abs=3000)


def test_a_line_of_few_points_is_their_ratio_or_passes_through_them() -> None:
    assert fit_line([], []) == Line(1.0, 0.0)
    assert fit_line([100.0], [150.0]) == Line(1.5, 0.0)
    assert fit_line([100.0, 200.0], [150.0, 300.0]).factor == pytest.approx(1.5)


def timed(name: str, alone: float, net: float, noise: float = 0.0, problem: str = CONV) -> TimedOp:
    reader = PairEnd(name, Key(problem, "test.x", "nchw", "nchw"))
    return TimedOp((name, problem), (NOTHING, reader), alone, 0.0, net, noise)


def test_what_all_ops_share_is_no_correction() -> None:
    ops = [timed(f"n{i}", x, 1.4 * x + 800) for i, x in enumerate([2e3, 1e4, 5e4, 2e5, 7e5])]
    assert set(corrections(ops, fit_lines(ops)).values()) == {0}


def test_what_one_op_takes_beyond_its_kind_is_its_pairs_cost() -> None:
    alone = [1e4 * (i + 1) for i in range(9)]
    ops = [timed(f"n{i}", x, 1.5 * x) for i, x in enumerate(alone)]
    ops[3] = timed("n3", 4e4, 1.5 * 5e4)  # as if it cost 5e4 alone
    found = corrections(ops, fit_lines(ops))
    assert {pair[1].node: ticks for pair, ticks in found.items() if ticks} == {"n3": 10_000 * 1024}


@pytest.mark.parametrize("net, noise", [(1.5 * 4.1e4, 0.0), (1.5 * 5e4, 1.6e4)])
def test_less_than_5_percent_or_noise_is_no_correction(net: float, noise: float) -> None:
    ops = [timed(f"n{i}", 1e4 * (i + 1), 1.5e4 * (i + 1)) for i in range(9)]
    ops[3] = timed("n3", 4e4, net, noise)
    assert not any(corrections(ops, fit_lines(ops)).values())


def test_no_pair_makes_a_choice_cheaper_than_nothing() -> None:
    run = Key(CONV, "test.x", "nchw", "nchw")
    reader, others = PairEnd("r", run), [PairEnd(f"p{i}", run) for i in range(3)]
    pairs: Pairs = {(others[0], reader): -80, (others[1], reader): -70, (others[2], reader): 9}
    for cost in (0, 1, 40, 149, 150, 1000):
        kept = admissible(pairs, {run: cost})
        assert kept[others[2], reader] == 9
        assert cost + sum(ticks for ticks in kept.values() if ticks < 0) >= 0
        assert cost < 150 or kept == pairs


def test_the_time_of_the_search_is_a_tenth_of_the_tuning_and_what_the_guard_leaves() -> None:
    clock = [100.0]
    assert limit_s(40.0, Deadline(None)) == 4.0
    assert limit_s(1.0, Deadline(None)) == 3.0
    assert limit_s(500.0, Deadline(None)) == 6.0
    deadline = Deadline(20.0, lambda: clock[0])
    assert limit_s(3.0, deadline) == 2.0
    deadline.keep("finish", 17.0)
    assert limit_s(3.0, deadline) == pytest.approx(1.5)
    clock[0] += 5.0
    assert limit_s(3.0, deadline) == 0.0


def test_a_budget_without_room_for_it_leaves_the_net_untimed() -> None:
    plan = _C.Plan()
    plan.cost = round(0.1e9 * 1024)  # 0.1 s: nine calls, half as long again
    assert has_time(plan, 0.0, Deadline(None))
    assert has_time(plan, 1.4, Deadline(14.0)) and not has_time(plan, 1.3, Deadline(13.0))


# ---- times inside the net ------------------------------------------------------------------------


def test_every_op_of_the_module_is_timed_once_per_pass(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    times = time_in_net({"net": lambda: fast._results[0].scripted(x)}, passes=8)["net"]
    assert len(times.call) == len(times.rest) == 8
    planned = {(n.name, n.problem) for n in fast.plan.nodes if n.primitive}
    changed = {(t.value, t.problem) for t in fast.plan.transforms}
    assert set(times.ops) <= planned | changed
    convolutions = {op for op in planned if op[1].startswith("fwd_")}
    assert convolutions | changed <= set(times.ops)
    for samples in times.ops.values():
        assert len(samples) == 8 and min(samples) > 0
    for i in range(8):
        inside = sum(samples[i] for samples in times.ops.values())
        assert times.call[i] == pytest.approx(inside + times.rest[i]) and times.rest[i] > 0


def test_nothing_is_recorded_unless_asked_for(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    _C.take_op_times()
    fast._results[0].scripted(x)
    assert _C.take_op_times() == []
    assert _C.set_op_timing(True) is False
    try:
        fast._results[0].scripted(x)
    finally:
        assert _C.set_op_timing(False) is True
    fast._results[0].scripted(x)
    times = _C.take_op_times()
    assert len(times) >= sum(n.problem.startswith("fwd_") for n in fast.plan.nodes)
    assert all(start <= end and node == -1 for _, _, start, end, node in times)
    assert _C.take_op_times() == []


# ---- the search ----------------------------------------------------------------------------------


def chain(length: int) -> _C.Graph:
    """Convolutions, one behind the other."""
    lines = ["torchalgo graph 1"]
    lines += [f"value\tv{i}\t1,16,8,8\tf32" for i in range(length + 1)]
    lines += [f"node\tconv{i}\taten::conv2d\t{i}\t{i + 1}\t{CONV}\t" for i in range(length)]
    return _C.parse_graph("\n".join([*lines, "input\t0\tnchw", f"output\t{length}"]) + "\n")


class Machine:
    """A net of convolutions with made-up costs, and how its ops run in it."""

    def __init__(self, alone: dict[str, float], length: int = 6) -> None:
        self.graph, self.truth = chain(length), alone
        primitives = [_C.Primitive(name, "nchw", "nchw") for name in alone]
        found = _C.single_candidates(self.graph, [primitives] * length)
        self.tuning = Tuning(
            self.graph,
            found,
            {},
            TuneSettings(),
            bench=Bench(self._measure, self._check),
            transforms=[],
        )
        self.solved = 0

    def _measure(self, tasks: Any, **_: Any) -> list[Any]:
        raise AssertionError("all costs are known from the start")

    def _check(self, problem: str, primitives: Any, bound: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def learn(self) -> None:
        costs = {
            Key(CONV, name, "nchw", "nchw"): Cost(round(us * 1024_000))
            for name, us in self.truth.items()
        }
        self.tuning.state.enter_costs(costs, {})

    def tuned(self, pairs: Pairs) -> Tuned:
        self.solved += 1
        self.tuning.set_pairs(pairs)
        plan = self.tuning.settle()
        return Tuned(plan, plan, 0.0, None)  # type: ignore[arg-type]

    def in_net_us(self, names: list[str], i: int) -> float:
        """1.3 times what it takes alone; at one place the fast one behind itself twice as much."""
        slow = i == 3 and names[i] == names[i - 1] == "test.fast"
        return 1.3 * self.truth[names[i]] * (2.0 if slow else 1.0)

    def timer(self, plans: dict[str, Any]) -> Any:
        def time_them(calls: dict[str, Any], **_: Any) -> dict[str, NetTimes]:
            return {name: self.times_of(plans_of(call)) for name, call in calls.items()}

        def plans_of(call: Any) -> Any:
            return call.__defaults__[0]

        return time_them

    def times_of(self, plan: Any) -> NetTimes:
        names = [node.primitive.name for node in plan.nodes]
        us = [self.in_net_us(names, i) for i in range(len(names))]
        ops = {(n.name, n.problem): [1000 * t] * 9 for n, t in zip(plan.nodes, us, strict=True)}
        call = 1000 * sum(us) + 5000
        return NetTimes([call] * 9, ops, [5000.0] * 9)

    def search(self) -> Refined:
        self.learn()
        search = Search(self.tuning, self, (), limit_s=60.0, most_error=1.0, timer=self.timer({}))
        return search.run(self.tuned({}))


def names_of(plan: _C.Plan) -> list[str]:
    return [node.primitive.name for node in plan.nodes]


def test_the_search_ends_with_the_plan_that_is_fastest_in_the_net() -> None:
    machine = Machine({"test.fast": 100.0, "test.even": 140.0})
    refined = machine.search()
    names = names_of(refined.tuned.native)
    assert names.count("test.even") == 1 and "test.even" in names[2:4]
    best = sum(machine.in_net_us(names, i) for i in range(6))
    assert best < sum(machine.in_net_us(["test.fast"] * 6, i) for i in range(6))
    assert refined.context is not None and refined.context.kept > 1
    assert refined.context.measured_us == pytest.approx(best + 5, rel=1e-3)


def test_the_result_is_the_optimum_of_the_costs_that_are_left_behind() -> None:
    machine = Machine({"test.fast": 100.0, "test.even": 140.0})
    refined = machine.search()
    machine.tuning.set_pairs(refined.pairs)
    step = next_step(machine.tuning.knowledge, machine.tuning.phase)
    assert isinstance(step, Done)
    plan = step.plan
    assert names_of(plan) == names_of(refined.tuned.native)
    assert plan.status == "optimal" and plan.cost == plan.lower_bound
    assert len(machine.tuning.costs.pairs()) == len(native_pairs(refined.pairs))


def test_a_net_that_is_only_slower_as_a_whole_changes_nothing() -> None:
    machine = Machine({"test.slower": 101.0, "test.first": 100.0})
    refined = machine.search()
    assert machine.solved == 1
    assert refined.pairs == {} and machine.tuning.costs.pairs() == []
    context = refined.context
    assert context is not None and context.kept == context.rounds == 1
    assert context.factors == {"convolution": pytest.approx(1.3)}
    assert context.corrected_us == pytest.approx(context.measured_us)


def test_ctrl_c_while_the_net_is_timed_keeps_the_best_plan() -> None:
    machine = Machine({"test.fast": 100.0, "test.even": 140.0})
    machine.learn()
    first = machine.tuned({})

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    search = Search(machine.tuning, machine, (), limit_s=9.0, most_error=1.0, timer=interrupted)
    refined = search.run(first)
    assert refined.tuned is first and refined.context is None
    assert machine.tuning.is_interrupted


def test_each_op_belongs_to_the_node_that_makes_what_it_reads_first() -> None:
    machine = Machine({"test.fast": 100.0})
    machine.learn()
    plan = machine.tuned({}).native
    ops = timed_ops(machine.graph, plan, machine.times_of(plan), machine.tuning)
    pairs = [op.pair for op in ops]
    assert [pair[0].node for pair in pairs if pair] == ["", *(f"conv{i}" for i in range(5))]
    assert [pair[1].node for pair in pairs if pair] == [f"conv{i}" for i in range(6)]
    assert all(pair and pair[1].run == key_of(CONV, plan.nodes[0].primitive) for pair in pairs)


def planned(name: str, primitive: str = "", src: str = "nchw", absorbed_by: str = "") -> Any:
    node = _C.PlanNode()
    node.name, node.problem, node.absorbed_by = name, CONV, absorbed_by
    node.primitive = _C.Primitive(primitive, src, "nchw")
    return node


def changed(value: str, producer: str, to: str) -> Any:
    change = _C.PlanTransform()
    change.value, change.producer = value, producer
    change.problem = f"transform_f32_n1c16h8w8_nchw_{to}"
    change.primitive = _C.Primitive("layout.aten", "nchw", to)
    return change


def test_a_transform_belongs_to_its_values_writer_and_first_reader() -> None:
    """conv0 computes conv1 too; what they write is turned for conv2; conv3's result for nobody."""
    plan = _C.Plan()
    plan.nodes = [
        planned("conv0", "a"),
        planned("conv1", absorbed_by="conv0"),
        planned("conv2", "b", "nhwc"),
        planned("conv3", "c"),
    ]
    plan.transforms = [
        changed("v0", "", "nChw16c"),
        changed("v2", "conv1", "nhwc"),
        changed("v4", "conv3", "nhwc"),
    ]
    found = {op: pair for op, _, pair in _planned_ops(chain(4), plan)}
    ends = {op[0]: (pair[0].node, pair[1].node) for op, pair in found.items() if pair}
    assert ends == {
        "conv0": ("", "conv0"),
        "conv2": ("conv0", "conv2"),
        "conv3": ("conv2", "conv3"),
        "v0": ("", "conv0"),
        "v2": ("conv0", "conv2"),
        "v4": ("", "conv3"),
    }


def test_a_dense_net_with_hundreds_of_pairs_is_still_proven() -> None:
    """Each plan's own pairs are drawn and kept, as if five plans had been timed one by one."""
    with zipfile.ZipFile(GRAPHS) as graphs:
        graph = _C.parse_graph(graphs.read("densenet121").decode())
    found = _C.find_candidates(graph)
    transforms, pick = _C.transform_candidates(graph, found), random.Random(1)
    everything = [*(c for some in found.by_anchor for c in some), *transforms]
    known = {key_of(c.problem, c.primitive): pick.randint(2000, 80_000) for c in everything}
    known |= {key: 0 for key in known if _C.is_view(key.primitive)}
    costs = _C.CostTable()
    for key, ticks in known.items():
        costs.set(_C.CostKey(*key), ticks, "measured")
    pairs: Pairs = {}
    for _ in range(5):
        plan, _ = _C.make_plan(graph, found, transforms, costs)
        assert plan.status == "optimal" and plan.cost == plan.lower_bound
        ends = (pair for _, _, pair in _planned_ops(graph, plan) if pair)
        pairs |= {pair: pick.randint(-2000, 9000) for pair in ends}
        costs.clear_pairs()
        for native in native_pairs(admissible(pairs, known)):
            costs.set_pair(*native)
    assert len(costs.pairs()) > 400 and len(plan.pairs) > 50


# ---- kept ----------------------------------------------------------------------------------------


def test_what_is_kept_comes_back_and_damage_is_a_miss() -> None:
    refined = Machine({"test.fast": 100.0, "test.even": 140.0}).search()
    kept = Kept.of(refined)
    assert kept is not None and Kept.from_json(kept.to_json()) == kept
    assert kept.fits(refined.tuned.native)
    text = kept.to_json()
    assert Kept.from_json(None) is None and Kept.from_json(text[:-9]) is None
    data = json.loads(text)
    for ticks in (1.5, "1", None, 1 << 60, True):
        data["pairs"][0][4] = ticks
        assert Kept.from_json(json.dumps(data)) is None
    name, before, reader, run, _ = data["pairs"][0]
    for pair in (
        [1],
        [reader, before or run, reader, run, 1],
        [name, before, "", run, 1],
        [name, before, reader, [*run[:3], "no layout"], 1],
        [name, before, reader, 1, 1],
    ):
        data["pairs"] = [pair]
        assert Kept.from_json(json.dumps(data)) is None
    assert Kept.from_json(text.replace('"rest_us": 5.0', '"rest_us": NaN')) is None
    data["pairs"] = [[1]]
    assert Kept.from_json(json.dumps(data)) is None
    assert Kept.from_json("[]") is None and Kept.from_json("{}") is None


@pytest.mark.usefixtures("optimum")
def test_a_second_process_has_the_same_plan_and_times_nothing(
    tmp_path: Path, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    path = tmp_path / "costs.sqlite3"
    first = torchalgo.optimize(
        make_net(), x, settings=torchalgo.Settings(cost_db=path, progress=False)
    ).plan
    assert first.in_context is not None and first.in_context.measured_us > 0

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("timed again")

    monkeypatch.setattr(Search, "run", never)
    second = torchalgo.optimize(
        make_net(), x, settings=torchalgo.Settings(cost_db=path, progress=False)
    ).plan
    assert second.in_context == first.in_context and second.pairs == first.pairs
    assert second.nodes == first.nodes and second.cost_ticks == first.cost_ticks
    assert second.guard is not None and second.guard.timed_on
    assert dataclasses.replace(second.guard, timed_on="") == first.guard
    torchalgo.Plan.from_json(second.to_json())
    assert torchalgo.Plan.from_json(second.to_json()) == second


@pytest.mark.usefixtures("optimum")
def test_a_plan_with_pairs_proves_itself_and_comes_back_from_its_file(
    tmp_path: Path, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof, the file and the checker know the pairs of an optimized model's plan."""

    def with_pairs(search: Search, first: Tuned) -> Refined:
        ends = _planned_ops(search._tuning.graph, first.native)
        pairs = {pair: 1000 + i for i, (_, _, pair) in enumerate(ends) if pair}
        return Refined(first, pairs, None)

    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    monkeypatch.setattr(Search, "run", with_pairs)
    plan = torchalgo.optimize(make_net(), x, settings=torchalgo.Settings(progress=False)).plan
    assert len(plan.pairs) > 3 and any(not pair.producer for pair in plan.pairs)
    parts = [*plan.nodes, *plan.transforms, *plan.pairs]
    assert plan.cost_ticks == sum(part.ticks for part in parts)
    proven = plan.with_proof()
    assert proven.proof is not None and len(proven.proof.pairs) >= len(plan.pairs)
    torchalgo.check_plan(proven)
    proven.save(tmp_path / "net.plan.json")
    assert torchalgo.load_plan(tmp_path / "net.plan.json") == proven
    cheaper = dataclasses.replace(
        proven, pairs=[], cost_ticks=plan.cost_ticks - sum(pair.ticks for pair in plan.pairs)
    )
    with pytest.raises(torchalgo.Error, match="the pairs that apply"):
        torchalgo.check_plan(cheaper)


@pytest.mark.usefixtures("optimum")
def test_what_anybody_wrote_into_the_database_changes_no_result(
    tmp_path: Path, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    path = tmp_path / "costs.sqlite3"
    written: dict[str, str] = {}
    monkeypatch.setattr(
        DeviceCosts, "keep_record", lambda _, key, text: written.update({key: text})
    )
    first = torchalgo.optimize(
        make_net(), x, settings=torchalgo.Settings(cost_db=path, progress=False)
    )
    [text] = written.values()
    key = Key(first.plan.nodes[0].problem, first.plan.nodes[0].primitive, "nchw", "nchw")
    data = json.loads(text)
    data["pairs"] = [["", None, first.plan.nodes[0].name, key, -(1 << 50)]]
    for record in ("", "{", "[]", text.replace("{", "[", 1), json.dumps(data)):
        monkeypatch.setattr(DeviceCosts, "read_record", lambda _, key, record=record: record)
        second = torchalgo.optimize(
            make_net(), x, settings=torchalgo.Settings(cost_db=path, progress=False)
        )
        assert output_error(second(x), make_net()(x)) < 1e-4
        assert second.plan.cost_ticks >= 0 and second.plan.status == "optimal"


def test_a_given_plan_is_not_timed_in_the_net(
    fast: torchalgo.Optimized, net: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("timed")

    monkeypatch.setattr(Search, "run", never)
    torchalgo.optimize(net, x, plan=fast.plan, settings=torchalgo.Settings(progress=False))


def test_the_printed_plan_says_what_the_net_takes(fast: torchalgo.Optimized) -> None:
    context = fast.plan.in_context
    assert context is not None
    text = " ".join(str(fast.plan).split())
    assert "inside the network: " in text and "with corrected costs" in text
    assert f"plan {context.kept} of {context.rounds} that were timed runs" in text
    assert len(context.ops) > 0


def test_a_pair_takes_no_more_off_than_its_reader_costs_now() -> None:
    run = Key("fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1", "aten.conv", "nchw", "nchw")
    pairs = {(PairEnd("a", run), PairEnd("b", run)): -900}
    assert [
        [p[-1] for p in native_pairs(admissible(pairs, {run: ticks}))] for ticks in (1000, 100)
    ] == [
        [-900],
        [-100],
    ]
