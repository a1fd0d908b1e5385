# SPDX-License-Identifier: BSD-3-Clause
"""The scripts of benchmarks/: what they say of themselves, and what documents say of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [p for p in sorted(ROOT.glob("benchmarks/*.py")) if "__main__" in p.read_text()]
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]


def test_there_are_few_scripts_and_no_long_file() -> None:
    assert len(SCRIPTS) <= 31
    long = [p.name for p in ROOT.glob("benchmarks/*.py") if len(p.read_text().splitlines()) > 450]
    assert not long


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_does_how_long_it_takes_and_what_it_writes(script: Path) -> None:
    text = script.read_text()
    said = ast.get_docstring(ast.parse(text)) or ""
    assert f"python benchmarks/{script.name} " in f"{said} ".replace("\n", " ")
    assert re.search(r"[Tt]akes|minutes", said)
    assert re.search(r"[Aa]ppends? |[Ww]rites |written|nothing is", said)
    assert "make_parser(__doc__" in text  # --help prints it
    assert "run_script(main)" in text  # Ctrl-C is no traceback


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: path.stem)
def test_documents_name_scripts_that_exist(page: Path) -> None:
    named = set(re.findall(r"benchmarks/(\w+\.(?:py|jsonl|md))\b", page.read_text()))
    named |= set(re.findall(r"`(?:python )?(bench_\w+\.py)\b", page.read_text()))
    assert not [name for name in named if not (ROOT / "benchmarks" / name).exists()]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: path.stem)
def test_commands_in_documents_have_options_that_exist(page: Path) -> None:
    for name, rest in re.findall(r"benchmarks/(\w+)\.py((?: [\w./*'-]+)*)", page.read_text()):
        text = (ROOT / "benchmarks" / f"{name}.py").read_text()
        options = re.findall(r"--[\w-]+", rest)
        missing = [
            o for o in options if f'"{o}"' not in text and o not in ("--help", "--out", "--resume")
        ]
        assert not missing, f"{name}.py has no {missing}"
