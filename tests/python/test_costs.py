# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import torchalgo
from torchalgo.costs import Cost, CostFile, Key

KEY = Key("fwd_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1", "aten.conv", "nchw", "nchw")
OTHER = KEY._replace(problem="fwd_f32_n1c3h9w9_k4r3s3_st1x1_pad1x1_dil1x1_g1")


def test_costs_come_back_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    assert CostFile(path).read() == {}
    CostFile(path).append({KEY: Cost(7, 1)})
    CostFile(path).append({KEY: Cost(5, 2), OTHER: Cost(9)})
    assert CostFile(path).read() == {KEY: Cost(5, 2), OTHER: Cost(9)}


def test_costs_of_another_machine_version_or_schema_are_misses(tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    CostFile(path).append({KEY: Cost(7)})
    record = json.loads(path.read_text())
    records = [
        record | {"environment": record["environment"] | {"threads": "99"}},
        record | {"version": 99},
        record | {"schema": 99},
        record | {"ticks": -1},
        {"foreign": True},
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + "[]\nnot json\n\n{")
    assert CostFile(path).read() == {}


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    CostFile(path).append({KEY: Cost(7), OTHER: Cost(9)})
    path.write_bytes(path.read_bytes()[:-20])
    assert CostFile(path).read() == {KEY: Cost(7)}


def test_a_file_that_cannot_be_written_warns_once_and_does_not_fail(tmp_path: Path) -> None:
    file = CostFile(tmp_path / "none" / "costs.jsonl")
    with pytest.warns(UserWarning, match="cannot keep costs"):
        file.append({KEY: Cost(7)})
    file.append({OTHER: Cost(7)})


def test_a_second_run_measures_nothing(tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    model, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)
    first = torchalgo.optimize(model, x, cost_db=path, progress=False)
    written = path.read_bytes()
    second = torchalgo.optimize(model, x, cost_db=path, progress=False)
    assert written
    assert path.read_bytes() == written
    assert second.plan.nodes == first.plan.nodes
