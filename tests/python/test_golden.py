# SPDX-License-Identifier: BSD-3-Clause
"""What earlier versions wrote must load and compute the same for ever (scripts/make_golden.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchalgo
from support.command import run
from support.golden_nets import NETS, Sizes, golden_input
from torchalgo._base.overlap import quiet_jit
from torchalgo._C import STRUCTURE_VERSION, matches_name
from torchalgo._db import CostStore, DeviceCosts, Environment
from torchalgo._ir.costs import Key

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VERSIONS = ["0.1.0"]
STEMS = sorted(path.name.removesuffix(".pt") for path in GOLDEN.glob("*.pt"))
PLANNED = sorted(path.name.removesuffix(".plan.json") for path in GOLDEN.glob("*.plan.json"))
# Plans of networks that golden_nets.py can build.
REBUILT = [stem for stem in PLANNED if stem.rpartition("_")[0] in NETS]
# Their graphs have more planned nodes than those of then, so layers are found by name.
CHANGED = {"shapes_0.1.0"}
MOST_BYTES = 1500 * 1024

# A machine without AVX-512 may lack a primitive of a plan: another one runs, and torchalgo says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torchalgo. layer .* was planned for"),
    pytest.mark.filterwarnings("ignore:torchalgo. there is no plan for inputs"),
]


def calls_of(stem: str) -> list[tuple[Tensor, Tensor]]:
    """Inputs, and the outputs that belong to them."""
    data = json.loads((GOLDEN / f"{stem}.expected.json").read_text())
    return [
        (golden_input(tuple(call["input"])), torch.tensor(call["output"]))
        for call in data.get("calls", [data])
    ]


def assert_computes(module: Any, x: Tensor, expected: Tensor) -> None:
    with torch.no_grad():
        result = module(x).flatten()
    assert (result - expected).norm() / expected.norm() <= 1e-5


def plans_of(stem: str) -> list[torchalgo.Plan]:
    return list(torchalgo.load_plans(GOLDEN / f"{stem}.plan.json").values())


def load_golden(stem: str) -> torchalgo.Optimized:
    plans = json.loads((GOLDEN / f"{stem}.plan.json").read_text())
    inputs = [tensor for plan in plans.get("plans", [plans]) for tensor in plan["inputs"]]
    says_sizes = all("dims" in tensor for tensor in inputs)
    warns = contextlib.nullcontext() if says_sizes else pytest.warns(UserWarning, match="sizes")
    with (
        warns,
        warnings.catch_warnings(),
    ):  # the tests have one thread, and some files were made with two
        warnings.filterwarnings("ignore", message=".*was measured with torch.get_num_threads")
        return torchalgo.load(GOLDEN / f"{stem}.pt")


def is_offered(node: torchalgo.PlanNode) -> bool:
    (layer,) = torchalgo.candidates(node.problem)
    return (node.primitive, node.src, node.dst) in {
        (o.primitive, o.src, o.dst) for o in layer.offered
    }


def assert_runs_as_planned(module: Any, stem: str) -> None:
    """Checks the outputs; and for planned sizes that each layer runs its primitive, unless this
    machine does not offer it."""
    plans = plans_of(stem)
    planned = [tuple(plan.inputs[0].shape) for plan in plans]
    calls = calls_of(stem)
    assert [tuple(x.shape) for x, _ in calls[: len(plans)]] == planned
    torchalgo.reset_fallbacks()
    for x, expected in calls[: len(plans)]:
        assert_computes(module, x, expected)
    fallen = torchalgo.fallbacks()
    nodes = [node for plan in plans for node in plan.nodes if node.name in fallen]
    assert [node.name for node in nodes if is_offered(node)] == []
    for x, expected in calls[len(plans) :]:
        assert_computes(module, x, expected)


def ops_of(stem: str) -> set[str]:
    with quiet_jit():
        module = torch.jit.load(GOLDEN / f"{stem}.pt")
    return set(re.findall(r"torchalgo::\w+", str(module.inlined_graph)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_has_a_file_of_every_network(version: str) -> None:
    names = {*NETS, "modules", "small"}
    assert {f"{name}_{version}" for name in names} <= set(STEMS)
    assert {f"{name}_{version}" for name in names - {"modules"}} <= set(PLANNED)


def test_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.glob("*.*")) <= MOST_BYTES


# ---- modules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", PLANNED)
def test_golden_file_loads_and_computes_what_it_did(stem: str) -> None:
    assert_runs_as_planned(load_golden(stem), stem)


@pytest.mark.parametrize("stem", STEMS)
def test_torch_jit_load_opens_it_too(stem: str) -> None:
    with quiet_jit():
        module = torch.jit.load(GOLDEN / f"{stem}.pt")
    assert bool(ops_of(stem)) != stem.startswith("portable_")
    for x, expected in calls_of(stem):
        assert_computes(module, x, expected)


@pytest.mark.slow
def test_cpp_opens_it_too(run_files: Path, tmp_path: Path) -> None:
    jobs, results = [], []
    for stem in STEMS:
        for i, (x, expected) in enumerate(calls_of(stem)):
            inputs, result = tmp_path / f"{stem}_{i}.in", tmp_path / f"{stem}_{i}.out"
            torch.save(((x,), {}), inputs)
            jobs.append(f"{GOLDEN / stem}.pt {inputs} {result}")
            results.append((result, expected))
    (tmp_path / "jobs").write_text("\n".join(jobs))
    subprocess.run([run_files, tmp_path / "jobs"], check=True)
    for path, expected in results:
        error = Path(f"{path}.error")
        assert not error.exists(), error.read_text()
        (output,) = torch.load(path, weights_only=False)
        assert_computes(lambda _, output=output: output, expected, expected)


def test_a_scripted_module_keeps_the_algorithms_it_was_given() -> None:
    (x, expected) = calls_of("modules_0.1.0")[0]
    with quiet_jit():
        module = torch.jit.load(GOLDEN / "modules_0.1.0.pt")
    with torchalgo.record_runs() as ran:
        assert_computes(module, x, expected)
    assert "cpu.direct" in {r.primitive.partition(".t")[0] for r in ran}


# ---- ops -----------------------------------------------------------------------------------------

CLASS = "__torch__.torch.classes."


def recorded_ops(version: str) -> list[str]:
    return (GOLDEN / f"ops_{version}.txt").read_text().splitlines()


@pytest.mark.parametrize("version", VERSIONS)
def test_ops_keep_their_schemas(version: str) -> None:
    recorded = [line for line in recorded_ops(version) if not line.startswith(CLASS)]
    assert "torchalgo::new_buffer(Tensor like, int[] sizes) -> Tensor" in recorded
    present = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("torchalgo::")]
    lost = [text for text in recorded if torch._C.parse_schema(text) not in present]
    assert lost == []


@pytest.mark.parametrize("version", VERSIONS)
def test_classes_stay_registered(version: str) -> None:
    names = [line.removeprefix(CLASS) for line in recorded_ops(version) if line.startswith(CLASS)]
    assert "torchalgo.PackedConv" in names
    for name in names:
        namespace, _, own = name.partition(".")
        assert getattr(getattr(torch.classes, namespace), own) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_op_of_planned_modules_is_in_a_golden_file(version: str) -> None:
    """An op that no file holds could change what it computes without a failing test."""
    held = {op for stem in STEMS if stem.endswith(f"_{version}") for op in ops_of(stem)}
    ops = {text.partition("(")[0] for text in recorded_ops(version) if "(" in text}
    assert held >= {op for op in ops if not op.startswith(("torchalgo::conv", "torchalgo::pack_"))}


# ---- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", PLANNED)
def test_golden_plan_loads_and_prints(stem: str) -> None:
    plans = torchalgo.load_plans(GOLDEN / f"{stem}.plan.json")
    assert plans
    assert torchalgo.load_plans(GOLDEN / f"{stem}.pt") == plans
    for plan in plans.values():
        assert plan.nodes[0].name in str(plan)


@pytest.mark.parametrize("stem", REBUILT)
def test_golden_plan_has_the_primitives_it_was_made_for(stem: str) -> None:
    net = NETS[stem.rpartition("_")[0]]
    for plan in plans_of(stem):
        names = [node.primitive for node in plan.nodes]
        for primitive in {*net.overrides.values(), *net.holds.values()}:
            assert any(matches_name(name, primitive) for name in names), primitive


@pytest.mark.parametrize("stem", [stem for stem in REBUILT if stem not in CHANGED])
def test_golden_plan_is_applied_to_the_network_it_was_made_for(stem: str) -> None:
    net, plans = NETS[stem.rpartition("_")[0]], plans_of(stem)
    x = golden_input(net.sizes[0])
    fast = torchalgo.optimize(
        net.make(), x, shapes=net.sizes, plan=plans, settings=torchalgo.Settings(progress=False)
    )
    assert_runs_as_planned(fast, stem)
    assert fast.runs == "plan"
    assert list(fast.plans.values()) == plans


@pytest.mark.parametrize("stem", REBUILT)
def test_golden_plan_of_an_older_hash_is_fitted_by_name(stem: str) -> None:
    net, plans = NETS[stem.rpartition("_")[0]], plans_of(stem)
    older = [dataclasses.replace(p, structure_hash="0" * 16, structure_version=0) for p in plans]
    x = golden_input(net.sizes[0])
    with pytest.warns(UserWarning, match="by the names and problems of the layers"):
        fast = torchalgo.optimize(
            net.make(), x, shapes=net.sizes, plan=older, settings=torchalgo.Settings(progress=False)
        )
    fitted = list(fast.plans.values())
    assert {plan.structure_version for plan in fitted} == {STRUCTURE_VERSION}
    hashes = ("structure_hash", "structure_version")
    kept = [{name: getattr(plan, name) for name in hashes} for plan in plans]
    assert [dataclasses.replace(p, **k) for p, k in zip(fitted, kept, strict=True)] == plans
    for x, expected in calls_of(stem):
        assert_computes(fast, x, expected)


# ---- the database of costs -----------------------------------------------------------------------


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN / "costs_0.1.0.sqlite3", tmp_path / "golden.sqlite3"))


def recorded_costs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "costs_0.1.0.expected.json").read_text())
    return found


def recorded_lines() -> list[dict[str, Any]]:
    lines = (GOLDEN / "costs_0.1.0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def entries_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The values of exported lines that 0.1.0 wrote; a later version may write more."""
    names = {name for line in recorded_lines() for name in line} - {"schema", "checksum"}
    kept = [{name: line[name] for name in sorted(names & set(line))} for line in lines]
    return sorted(kept, key=str)


def test_commands_read_a_golden_database(capsys: pytest.CaptureFixture[str], costs: Path) -> None:
    lines = recorded_lines()
    rows = sum("ticks" in line for line in lines)
    assert 0 < rows < len(lines)
    found = json.loads(run(capsys, "db", "verify", "--cost-db", costs, "--json"))
    assert found["is_sound"]
    assert (found["rows"], found["refusals"]) == (rows, len(lines) - rows)
    assert found["checks"] == recorded_costs()["checks"] > 0
    info = json.loads(run(capsys, "db", "info", "--cost-db", costs, "--json"))
    assert info["rows"] == rows
    assert info["verdicts"] + sum(info["records"].values()) == recorded_costs()["verdicts"]
    exported = run(capsys, "db", "export", "-", "--cost-db", costs).splitlines()
    assert entries_of([json.loads(line) for line in exported]) == entries_of(lines)


def test_golden_lines_are_imported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"
    run(capsys, "db", "import", GOLDEN / "costs_0.1.0.jsonl", "--cost-db", path)
    exported = run(capsys, "db", "export", "-", "--cost-db", path).splitlines()
    assert entries_of([json.loads(line) for line in exported]) == entries_of(recorded_lines())


def test_the_machine_that_wrote_a_golden_database_finds_its_costs(costs: Path) -> None:
    recorded = recorded_costs()
    environment = Environment(recorded["facts"], recorded["versions"])
    want = {Key(*key): ticks for *key, ticks in recorded["costs"]}
    assert set(Environment.of().facts) >= set(recorded["facts"])
    with CostStore.open(costs) as store:
        found = DeviceCosts(store, environment).read(want)
        other = dict(recorded["facts"], isa="none")
        assert DeviceCosts(store, Environment(other, recorded["versions"])).read(want) == {}
    assert {key: cost.ticks for key, cost in found.items()} == want


def test_tuning_writes_beside_the_rows_of_a_golden_database(costs: Path) -> None:
    net = NETS["portable"]
    sizes: Sizes = (1, 3, 6, 7)  # of which the database has no costs
    with CostStore.open(costs) as store:
        before = store.rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine that is busy
        torchalgo.optimize(
            net.make(),
            golden_input(sizes),
            settings=torchalgo.Settings(cost_db=costs, progress=False),
            budget_s=5,
        )
    with CostStore.open(costs) as store:
        after = store.rows()
    assert set(before) < set(after)
