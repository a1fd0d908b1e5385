# SPDX-License-Identifier: BSD-3-Clause
"""Satellites import public names only, and the core imports a satellite when it needs it."""

from __future__ import annotations

import re
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


# The modules that `import torchalgo` loads. Other modules take longer, and load at their first use.
AT_ONCE = {
    "_C", "_api", "_base", "_ir", "backends", "dynamo", "functional", "nn", "pbqp", "verify",
}  # fmt: skip
OF_OTHERS = {"torch._dynamo", "torch._inductor", "sympy", "sqlite3", "jinja2", "onnx", "lightgbm"}


def python(program: str) -> list[str]:
    run = [sys.executable, "-c", program]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()


def test_the_import_loads_only_what_every_program_needs() -> None:
    loaded = python("import sys, torchalgo; print(*sys.modules)")
    assert {name.split(".")[1] for name in loaded if name.startswith("torchalgo.")} == AT_ONCE
    of_api = {name for name in loaded if name.startswith("torchalgo._api.")}
    assert of_api == {"torchalgo._api.convert", "torchalgo._api.fallbacks"}
    assert not OF_OTHERS & set(loaded)


def test_each_public_name_can_be_the_first_one_that_is_used() -> None:
    program = """
import os, torchalgo
for names in torchalgo._LATER.values():
    if (child := os.fork()) == 0:
        os._exit(not all(hasattr(torchalgo, name) and name in dir(torchalgo) for name in names))
    print(*names, os.waitpid(child, 0)[1])
"""
    told = python(program)
    assert {"0", "optimize", "load", "lint"} < set(told) < {"0", *torchalgo.__all__}


def test_the_names_of_the_page_are_there_after_the_import_alone() -> None:
    rows = [line.split(" | ")[0] for line in check_includes.API.read_text().splitlines()]
    names = {name for row in rows for name in re.findall(r"`(torchalgo\.[\w.]+)", row)}
    assert len(names) > 60 and "torchalgo.tune.tune" in names
    python(f"import torchalgo; [{', '.join(names)}]")


def test_ops_and_the_backend_are_there_after_the_import_alone() -> None:
    program = """
import torch, torchalgo
print(torch.ops.torchalgo.run_plan.default, "torchalgo" in torch.compiler.list_backends())
conv = torch.nn.Conv2d(3, 4, 3).eval()
with torch.no_grad():
    print(torch.compile(conv, backend=torchalgo.dynamo.backend)(torch.rand(1, 3, 8, 8)).shape[1])
"""
    assert python(program)[-3:] == ["torchalgo.run_plan.default", "True", "4"]


@pytest.mark.parametrize("name", ["lint", "Finding", "LintReport"])
def test_public_names_of_a_satellite_are_there(name: str) -> None:
    assert name in dir(torchalgo)
    public: Callable[..., object] = getattr(torchalgo, name)
    assert public.__module__.startswith("torchalgo._lint.")


def test_a_name_that_is_not_public_is_no_attribute_and_the_nearest_one_is_named() -> None:
    program = "import torchalgo\ntry: torchalgo.optimise\nexcept AttributeError: raise"
    run = [sys.executable, "-c", program]
    told = subprocess.run(run, capture_output=True, text=True, check=False).stderr
    assert "module 'torchalgo' has no attribute 'optimise'. Did you mean: 'optimize'?" in told
