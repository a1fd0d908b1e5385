# SPDX-License-Identifier: BSD-3-Clause
"""docs/versions.md: which versions of plans, databases and files this release reads."""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

import torchalgo
from support.db_samples import old_file
from support.plan_samples import GraphText, Sample
from support.plans import make_plan
from torchalgo import _C
from torchalgo._db import CostStore, cost_file, row
from torchalgo._ir.plan import plan
from torchalgo._run import call_files

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
# The state of a layer in a file: the beginning of an object, and its first number.
STATE = b")\x81(K%cX"


class Pair(NamedTuple):
    y: torch.Tensor
    x: torch.Tensor


class Named(nn.Module):
    """A convolution whose result has a type of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(self.conv(x), x)


def constant(source: str, name: str) -> int:
    """Returns a number of a C++ file that Python cannot read otherwise."""
    found = re.search(rf"\b{name} = (\d+);", (ROOT / "csrc" / source).read_text())
    assert found is not None
    return int(found[1])


def header(source: str) -> int:
    found = re.search(r'kHeader = "[a-z ]+ (\d+)"', (ROOT / "csrc" / source).read_text())
    assert found is not None
    return int(found[1])


def table() -> dict[str, tuple[int, list[int]]]:
    """Returns the number that is written and those that are read, by the name of the file."""
    found = {}
    for line in (ROOT / "docs" / "versions.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[2].isdigit():
            first, last = re.findall(r"\d+", cells[3])[0], re.findall(r"\d+", cells[3])[-1]
            found[cells[0]] = (int(cells[2]), list(range(int(first), int(last) + 1)))
    return found


def test_the_page_has_the_numbers_of_the_code() -> None:
    written = [number for number, _ in table().values()]
    assert written == [
        plan.SCHEMA,
        _C.STRUCTURE_VERSION,
        constant("ops/register.cpp", "kStateVersion"),
        constant("runner/plan_state.cpp", "kVersion"),
        call_files.SCHEMA,
        cost_file.SCHEMA,
        row.SCHEMA,
        header("ir/graph_text.cpp"),
        header("pbqp/text.cpp"),
    ]
    assert all(read[-1] == number for number, read in table().values())


def test_plans_of_the_schemas_on_the_page_are_read_and_others_refused() -> None:
    text = json.loads(make_plan().to_json())
    for number in (0, 1, 2, "1"):
        changed = json.dumps(text | {"schema": number})
        if number in table()["plan, alone or in an optimized file"][1]:
            assert torchalgo.Plan.from_json(changed) == make_plan()
        else:
            with pytest.raises(torchalgo.Error, match=r"^TA2008 "):
                torchalgo.Plan.from_json(changed)


def test_plans_of_the_structure_hashes_on_the_page_are_read_and_later_ones_refused() -> None:
    read = table()["structure hash of a plan"][1]
    for number in read:
        older = make_plan(structure_version=number)
        assert torchalgo.Plan.from_json(older.to_json()) == older
    with pytest.raises(torchalgo.Error, match=r"^TA2008 "):
        torchalgo.Plan.from_json(make_plan(structure_version=read[-1] + 1).to_json())


def with_replaced(source: Path, target: Path, part: str, old: bytes, new: bytes) -> None:
    """Copies a zip archive and changes one part of it."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            if name.endswith(part):
                assert old in data
                data = data.replace(old, new)
            after.writestr(name, data)


def states(path: Path) -> set[int]:
    """Returns the versions of the layers' states in a .pt file."""
    with zipfile.ZipFile(path) as archive:
        parts = [archive.read(n) for n in archive.namelist() if n.endswith("/data.pkl")]
    return {ord(n) for part in parts for n in re.findall(rb"\)\x81\(K(.)X", part, re.DOTALL)}


def test_states_of_layers_on_the_page_are_read_and_later_ones_refused(
    fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    written, read = table()["optimized `.pt`: the state of a layer"]
    old, new, later = (tmp_path / f"{name}.pt" for name in ("old", "new", "later"))
    fast.save(new)
    assert states(new) == {written}
    # test_golden.py loads these and compares their results.
    assert set().union(*(states(path) for path in GOLDEN.glob("*_0.1.0.pt"))) == set(read)
    for number, file in ((0, old), (written + 1, later)):
        with_replaced(new, file, "/data.pkl", STATE % bytes([written]), STATE % bytes([number]))
        with pytest.raises(torchalgo.Error, match=r"TA2008 torchalgo: layer .* formats 1 to"):
            torchalgo.load(file)


def test_plan_objects_on_the_page_are_read_and_later_ones_refused(
    fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path
) -> None:
    written, read = table()["optimized `.pt2`: the plan object"]
    fast.save(tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:
        name = next(n for n in archive.namelist() if n.endswith("/custom_obj_0"))
        (tmp_path / "object").write_bytes(archive.read(name))
    loaded = torch._C._pickle_load_obj((tmp_path / "object").read_bytes())
    assert torch.equal(torch.ops.torchalgo.run_plan([x], loaded)[0], fast(x))
    assert read == [written]
    version = torch.__version__.split("+")[0].encode()
    mark = b"K%cX" + len(version).to_bytes(4, "little") + version
    with_replaced(
        tmp_path / "object", tmp_path / "later", "/data.pkl",
        mark % bytes([written]), mark % bytes([written + 1]),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="TA2008 plan: it was saved in format 2"):
        torch._C._pickle_load_obj((tmp_path / "later").read_bytes())


def test_forms_of_calls_on_the_page_are_read_and_others_refused() -> None:
    written, read = table()["form of calls (`calls.json` in an optimized file)"]
    fast = torchalgo.optimize(
        Named().eval(), (torch.rand(1, 3, 16, 16),), budget_s=1,
        settings=torchalgo.Settings(progress=False),
    )  # fmt: skip
    assert fast._form is not None
    text = call_files.form_to_json(fast._form)
    data = json.loads(text)
    assert data["schema"] == written and read == [written]
    assert call_files.form_to_json(call_files.form_from_json(text, "it")) == text
    for number in (0, written + 1, None):
        with pytest.raises(torchalgo.Error, match=r"^TA2008 it: schema is"):
            call_files.form_from_json(json.dumps(data | {"schema": number}), "it")
    del data["schema"]
    with pytest.raises(torchalgo.Error, match=r"^TA2005 it is damaged"):
        call_files.form_from_json(json.dumps(data), "it")


def test_databases_of_the_schemas_on_the_page_are_read_and_later_ones_stay(tmp_path: Path) -> None:
    written, read = table()["cost database"]
    for number in (*read, written + 1):
        path = tmp_path / f"{number}.sqlite3"
        if number < written:
            old_file(path, number)
        else:
            CostStore.open(path).close()
        with sqlite3.connect(path) as raw:
            raw.execute(f"PRAGMA user_version = {number}")
        raw.close()
        if number in read:
            with CostStore.open(path) as store:
                assert not store.is_in_memory
            with sqlite3.connect(path) as raw:
                assert raw.execute("PRAGMA user_version").fetchone() == (written,)
            raw.close()
        else:
            with pytest.warns(UserWarning, match=f"schema {number}"):
                store = CostStore.open(path)
            assert store.is_in_memory
            store.close()


def test_lines_of_the_schema_on_the_page_are_read_and_others_skipped() -> None:
    written, read = table()["exported costs (`.jsonl`)"]
    line = json.loads((GOLDEN / "costs_0.1.0.jsonl").read_text().splitlines()[0])
    assert row.from_line(json.dumps(line)) is not None
    assert line["schema"] == written and read == [written]
    assert row.from_line(json.dumps(line | {"schema": written + 1})) is None


def test_graphs_and_problems_of_other_numbers_are_refused() -> None:
    sample = Sample(str(GraphText(3, 6)), 3)
    other = sample.text.replace("torchalgo graph 1", "torchalgo graph 2", 1)
    with pytest.raises(torchalgo.Error, match=r"^TA2601 "):
        _C.parse_graph(other)
    torchalgo.check_plan(sample.plan)
    plan = sample.plan | {"proof": sample.plan["proof"] | {"graph": other}}
    with pytest.raises(torchalgo.Error, match=r"^TA2403 check_plan: this is no torchalgo graph 1"):
        torchalgo.check_plan(plan)
    torchalgo.pbqp.Problem.from_text("pbqp 1\nnode 1 2\n")
    with pytest.raises(torchalgo.Error, match=r"^TA8001 "):
        torchalgo.pbqp.Problem.from_text("pbqp 2\nnode 1 2\n")
