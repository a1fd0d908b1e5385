# SPDX-License-Identifier: BSD-3-Clause
"""The snippets and commands of README and of pages for single tasks run as they are printed.

Only models and images are small.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from support.doc_blocks import text_of
from torchalgo._base.compare_outputs import output_error
from torchalgo._cli.demo import randomize_batch_norms
from torchalgo_cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
INSTALL = text_of("install.md")
OVERRIDES = text_of("choosing.md", "Fix some layers of a plan")
PAGES = README + INSTALL + text_of("commands.md") + OVERRIDES
SMALL_IMAGE = (1, 3, 32, 32)


def blocks(language: str) -> list[str]:
    """The fenced blocks of all pages of a language, "" for those without one."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def commands(word: str) -> list[str]:
    """Lines of the pages' shell blocks that start with `word`, without their comments; what a
    command printed is indented, or names itself with a colon."""
    lines = [line.split("#")[0].rstrip() for text in blocks("") for line in text.splitlines()]
    return [line for line in lines if line.startswith(f"{word} ")]


def test_python_snippets_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    randomize_batch_norms(model)
    x = torch.rand(SMALL_IMAGE)
    names: dict[str, Any] = {"model": model, "x": x, "torchvision": torchvision}
    snippets = blocks("python")
    assert len(snippets) >= 5
    for number, snippet in enumerate(snippets, 1):
        exec(compile(snippet, f"python snippet {number}", "exec"), names)

    with torch.no_grad():
        want = model(x)
        assert output_error(names["fast"](x), want) <= 1e-4
    printed = capsys.readouterr().out
    assert "layer1.0.conv2" in printed and "cpu.winograd_f4x4_3x3" in printed

    overridden = {n.name: n.primitive for n in names["forced"].plan.nodes}
    assert overridden["layer1.0.conv2"].startswith("cpu.winograd_f4x4_3x3")
    aten = {n.name: n.primitive for n in names["other"].nodes}
    assert aten["layer1.1.conv1"] == "aten.conv"


def test_shell_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands("torchalgo")
    assert {line.split()[1] for line in lines} >= {"optimize", "bench", "explain"}
    for line in lines:
        small = line.replace("package.module:factory", "support.nets:net_factory")
        small = small.replace("x3x224x224", "x3x40x40")
        status = main(shlex.split(small)[1:])
        out, err = capsys.readouterr()
        assert status == 0, f"{line}: {err}"
        assert out, line


def test_make_targets_exist() -> None:
    inline = re.findall(r"`(make [\w-]+)`", PAGES)
    targets = {line.split()[1] for line in commands("make") + inline}
    assert targets >= {"demo", "test", "deps"}
    makefile = (ROOT / "Makefile").read_text()
    missing = [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)]
    assert not missing


@pytest.mark.parametrize(
    ("page", "order"),
    [
        (README, ["<!-- table: benchmarks/make_tables.py models -->", "<!-- end of table -->"]),
        (INSTALL, ["<!-- demo output -->", "<!-- end of demo output -->"]),
    ],
)
def test_the_markers_of_generated_parts_are_in_place(page: str, order: list[str]) -> None:
    assert [page.count(marker) for marker in order] == [1] * len(order)
    assert sorted(order, key=page.index) == order


def test_readme_fits_on_one_screen() -> None:
    lines = README.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 140
