# SPDX-License-Identifier: BSD-3-Clause
"""Satellites import public names only, and the core imports a satellite when it needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import torchalgo

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import check_includes


def test_satellites_import_public_names_and_what_decision_55_lists() -> None:
    assert check_includes.satellite_violations() == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from torchalgo import Error", None),
        ("from torchalgo._base.stats import is_faster", None),
        ("from torchalgo._lint.facts import Call", None),
        ("from torchalgo._ir.plan.text_table import ShownAsText", None),
        ("from torchalgo._ir.plan import Plan", "_ir.plan.Plan"),
        ("from torchalgo._C import Error", "_C.Error"),
        ("import torchalgo._plan.find", "_plan.find"),
        ("def f():\n    from .._db import CostStore", "_db.CostStore"),
        ("import torchalgo", ""),
    ],
)
def test_other_imports_are_found(
    text: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torchalgo" / "_lint"
    package.mkdir(parents=True)
    (package / "rule.py").write_text(text)
    monkeypatch.setattr(check_includes, "PYTHON", package.parent)
    monkeypatch.setattr(check_includes, "ROOT", tmp_path)
    line = text.count("\n") + 1
    expected = f"torchalgo/_lint/rule.py:{line}: a satellite may not import torchalgo.{name}"
    found = check_includes.satellite_violations({"_lint": ()}, ())
    assert found == ([] if name is None else [expected])


def test_an_exception_that_nothing_needs_is_found() -> None:
    found = check_includes.satellite_violations({"_lint": ()}, [("_lint", "_plan")])
    assert found == ["EXCEPTIONS: _lint no longer imports _plan"]


def test_no_satellite_is_imported_before_it_is_needed() -> None:
    program = "import sys, torchalgo; print(*sys.modules)"
    run = [sys.executable, "-c", program]
    loaded = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if _is_of_satellite(name)]
    assert "torchalgo._plan" in loaded


def _is_of_satellite(module: str) -> bool:
    return module.startswith("torchalgo.") and module.split(".")[1] in check_includes.SATELLITES


@pytest.mark.parametrize("name", ["lint", "Finding", "LintReport"])
def test_public_names_of_a_satellite_are_there(name: str) -> None:
    assert name in dir(torchalgo)
    public: Callable[..., object] = getattr(torchalgo, name)
    assert public.__module__.startswith("torchalgo._lint.")


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lnt'"):
        _ = torchalgo.lnt  # type: ignore[attr-defined]
