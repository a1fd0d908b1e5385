# SPDX-License-Identifier: BSD-3-Clause
"""The notebooks of examples run as they are, with small images, and are stored without outputs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.doc_blocks import small

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NOTEBOOKS = ("optimize_and_inspect", "train")


def cells(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"{name}.ipynb").read_text()
    found: list[dict[str, Any]] = json.loads(text)["cells"]
    return found


def shown_by(name: str) -> Iterator[Any]:
    """Runs the cells of a notebook, and yields the value that each of them shows at its end."""
    names: dict[str, Any] = {}
    for cell in cells(name):
        if cell["cell_type"] == "code":
            *body, last = ast.parse(small("".join(cell["source"]))).body
            is_shown = isinstance(last, ast.Expr)
            exec(compile(ast.Module(body if is_shown else [*body, last], []), name, "exec"), names)
            if is_shown:
                yield eval(compile(ast.Expression(last.value), name, "eval"), names)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stored_without_outputs_and_their_links_lead_somewhere(name: str) -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NOTEBOOKS)
    for cell in cells(name):
        for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
            assert (FOLDER / link).exists(), link
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
        assert all(len(line.rstrip()) <= 140 for line in cell["source"])


@pytest.mark.slow
def test_the_notebook_of_inference_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    plan, error, times, candidates, costs, front, same = shown_by("optimize_and_inspect")
    for shown in (plan, times, candidates, front):
        assert "<pre" in shown._repr_html_() and str(shown).splitlines()[0] in shown._repr_html_()
    assert float(error.split()[-1]) < 1e-5
    assert "features.4.expand3x3" in str(plan) and "in one layer" in costs
    assert same == [True, True]


@pytest.mark.slow
def test_the_notebook_of_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan, is_better, (runs, planned_runs, original_runs), for_inference = shown_by("train")
    assert is_better
    assert "backward filter" in str(plan)
    assert "<pre" in for_inference._repr_html_()
    assert planned_runs >= 30 if runs == "plan" else planned_runs == 0, original_runs
