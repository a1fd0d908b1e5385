# SPDX-License-Identifier: BSD-3-Clause
"""Tests that the links, commands, scripts and tests that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        if ":" in name:
            continue
        target = page.parent / name if name else page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_of_make_and_scripts_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= targets
    named = re.findall(r"\b((?:scripts|tests/(?:python|fuzz|golden))/[\w/]+\.(?:py|sh))\b", text)
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/versions.md"])
def test_the_tests_that_a_promise_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert (ROOT / "tests" / "python" / name).exists(), name
    sources = "".join(p.read_text() for p in (ROOT / "tests" / "python").glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in sources, name
