# SPDX-License-Identifier: BSD-3-Clause
"""Write tests/golden/*_<version>.*, which every later version loads.

A file that exists is left as it is. The networks are those of tests/python/golden_nets.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import os
import re
import sqlite3
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

import torchalgo
from torchalgo._base.overlap import quiet_jit
from torchalgo._C import matches_name
from torchalgo._db import CostStore, DeviceCosts, Environment, Refusal
from torchalgo._db.row import MEASURED_KINDS, Verdict
from torchalgo._ir.plan import save_plans

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT / "tests" / "python"))
from support.golden_nets import (  # type: ignore[import-not-found]  # noqa: E402
    MODULES_SIZES,
    NETS,
    GoldenNet,
    golden_input,
    torch_modules,
    torchalgo_modules,
)

COSTS_OF = "concat"  # the network whose costs are kept
BUDGET_S = 20.0


def without_source_paths(path: Path) -> None:
    """Drops TorchScript's debug records: they hold paths of the machine that wrote the file."""
    kept = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".debug_pkl"):
                kept.append((info.filename, archive.read(info)))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in kept:
            archive.writestr(zipfile.ZipInfo(name), data)


def write_expected(stem: Path, model: torch.nn.Module, sizes: list[tuple[int, ...]]) -> None:
    """Writes what the model computes in double precision."""
    exact = model.double()
    calls = []
    with torch.no_grad():
        for one in sizes:
            output = exact(golden_input(one).double()).flatten().tolist()
            calls.append({"input": list(one), "output": [float(f"{v:.8g}") for v in output]})
    lines = ",\n".join(json.dumps(call) for call in calls)
    Path(f"{stem}.expected.json").write_text(f'{{"calls": [\n{lines}\n]}}\n')


def check_holds(name: str, net: GoldenNet, plan: torchalgo.Plan) -> None:
    """Raises if the plan lacks a primitive that the network is there for."""
    for layer, primitive in {**net.overrides, **net.holds}.items():
        chosen = [node for node in plan.nodes if fnmatch.fnmatchcase(node.name, layer)]
        if not any(matches_name(node.primitive, primitive) for node in chosen):
            found = {node.name: node.primitive or node.absorbed_by for node in chosen}
            raise SystemExit(f"{name}: the plan has no {primitive} for {layer}: {found}")


def write_net(name: str, net: GoldenNet, stem: Path, costs: Path) -> None:
    """Plans the network and keeps the module, its plans and its outputs."""
    x = golden_input(net.sizes[0])
    tuned = torchalgo.optimize(
        net.make(),
        x,
        shapes=net.sizes,
        overrides=net.overrides,
        budget_s=BUDGET_S,
        settings=torchalgo.Settings(cost_db=costs, progress=False),
    )
    # Without a verdict the plan runs wherever the files are read.
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    for plan in plans:
        check_holds(name, net, plan)
    settings = torchalgo.Settings(progress=False)
    fast = torchalgo.optimize(net.make(), x, shapes=net.sizes, plan=plans, settings=settings)
    fast.save(f"{stem}.pt", portable=net.is_portable)
    without_source_paths(Path(f"{stem}.pt"))
    save_plans(list(fast.plans.values()), f"{stem}.plan.json")
    write_expected(stem, net.make(), [*net.sizes, *net.other_sizes])


def write_modules(stem: Path) -> None:
    """Keeps the scripted modules of torchalgo.nn."""
    with quiet_jit():
        torch.jit.script(torchalgo_modules()).save(f"{stem}.pt")
    without_source_paths(Path(f"{stem}.pt"))
    write_expected(stem, torch_modules(), [MODULES_SIZES])


def write_costs(made: Path, stem: Path, plan: torchalgo.Plan) -> None:
    """Keeps the database that tuning made, and beside it what must be found there."""
    here = Environment.of()
    with CostStore.open(made) as store:
        row = store.rows()[0]
        refusal = Refusal(
            row.environment, plan.nodes[0].problem, "cpu.pool", "nchw", "nchw",
            here.versions["cpu.pool"], "wrong", "relative L2 2e-05", 1e-5, "", row.measured_at,
        )  # fmt: skip
        store.append([refusal])
        written_by = f"torchalgo {torchalgo.__version__}, torch {torch.__version__}"
        for kind in MEASURED_KINDS:  # without the system's name
            entries = store.all_of(kind)
            store.append([dataclasses.replace(e, provenance=written_by) for e in entries])
        costs = DeviceCosts(store, here).read()
        found = {
            "facts": dict(here.facts),
            "versions": dict(here.versions),
            "costs": [[*key, cost.ticks] for key, cost in sorted(costs.items())],
            "checks": len(store.checks()),
            "verdicts": len(store.all_of(Verdict)),
        }
        Path(f"{stem}.jsonl").write_text("\n".join(store.export_lines()) + "\n")
    Path(f"{stem}.expected.json").write_text(json.dumps(found, indent=1) + "\n")
    with contextlib.closing(sqlite3.connect(made)) as database:
        database.execute("PRAGMA journal_mode = DELETE")  # one file
        database.execute("VACUUM")
    Path(f"{stem}.sqlite3").write_bytes(made.read_bytes())


def write_ops(path: Path) -> None:
    """Keeps the schemas of the ops and the names of the classes that files refer to."""
    found = [str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith("torchalgo::")]
    classes = sorted(set(re.findall(r"__torch__\.torch\.classes\.\S+", " ".join(found))))
    path.write_text("\n".join([*classes, *sorted(found)]) + "\n")


def main() -> int:
    """Write what this version has not written yet."""
    torch.set_num_threads(1)
    os.environ["TORCHALGO_IGNORE_LOAD"] = "1"  # costs are kept however busy the machine is
    version = torchalgo.__version__
    for name, net in NETS.items():
        stem = GOLDEN / f"{name}_{version}"
        costs = GOLDEN / f"costs_{version}"
        if Path(f"{stem}.pt").exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "costs.sqlite3"
            write_net(name, net, stem, made)
            if name == COSTS_OF:
                plan = torchalgo.load_plan(f"{stem}.plan.json")
                write_costs(made, costs, plan)
        print("wrote", stem.name)
    modules = GOLDEN / f"modules_{version}"
    if not Path(f"{modules}.pt").exists():
        write_modules(modules)
    ops = GOLDEN / f"ops_{version}.txt"
    if not ops.exists():
        write_ops(ops)
    size = sum(path.stat().st_size for path in GOLDEN.glob("*.*"))
    print(f"{size >> 10} KiB in {GOLDEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
