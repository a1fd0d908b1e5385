# SPDX-License-Identifier: BSD-3-Clause
"""The site of `make docs` has every page of docs, every public name and every command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchalgo
from torchalgo_cli.parser import build_parser

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "site"))
import check_site
import docstring_text
import draw
import site_pages

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MKDOCS = ROOT / "build" / "docs-venv" / "bin" / "mkdocs"


def nav() -> list[str]:
    """The pages that mkdocs.yml names. A line of a comment names a page that may come."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"^ +- .*: ([\w/-]+\.md)$", text, re.MULTILINE)


def test_the_navigation_has_each_page_once() -> None:
    named = nav()
    assert len(named) == len(set(named))
    written = {path.name for path in DOCS.glob("*.md")}
    assert set(named) == written | set(site_pages.made_pages())


def test_the_list_of_decisions_has_each_decision() -> None:
    listed = re.findall(r"\]\((0[\w-]+\.md)\)", site_pages.decisions())
    assert listed == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))


def test_the_reference_of_commands_has_each_command_and_verb() -> None:
    text = site_pages.complete("commands.md", (DOCS / "commands.md").read_text())
    headings = re.findall(r"^##+ (torchalgo.*)$", text, re.MULTILINE)
    parser = build_parser()
    listed = re.findall(r"^    ([a-z][\w-]+)", parser.format_help(), re.MULTILINE)
    assert len(listed) >= 9
    assert {h.split()[1] for h in headings[1:]} == set(listed)
    assert "torchalgo db merge" in headings
    assert "--weight-limit" in text and site_pages.COMMANDS_MARK not in text


def test_the_reference_of_names_has_each_public_name() -> None:
    text = "".join(text for name, text in site_pages.made_pages().items() if "reference/" in name)
    explained = set(re.findall(r"^::: torchalgo\.(\w+)$", text, re.MULTILINE))
    modules = {"backends", "dynamo", "nn", "pbqp", "tune", "__version__"}
    assert explained == set(torchalgo.__all__) - modules
    for module in ("nn", "dynamo", "pbqp", "tune", "backends"):
        assert f"::: torchalgo.{module}." in text


def test_made_parts_take_the_place_of_their_marks() -> None:
    front = site_pages.complete("index.md", (DOCS / "index.md").read_text())
    assert "](images/models.svg)" in front and site_pages.FIRST_MARK not in front
    errors = site_pages.complete("errors.md", (DOCS / "errors.md").read_text())
    assert '<span id="TA1101">TA1101</span>' in errors


def test_the_check_finds_broken_links_and_what_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="b.html#not">b</a>'
        '<a href="c.html">c</a><a href="https://example.org">followed, not loaded</a>'
        '<script src="https://example.org/x.js"></script><img src="no.svg">'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">B</h2><a href="a.html">a</a>')
    (tmp_path / "c.css").write_text("a { background: url(https://example.org/x.png) }")
    assert check_site.problems(tmp_path) == [
        "a.html: loads https://example.org/x.js",
        "a.html: loads no.svg, which does not exist",
        "a.html: the link b.html#not names no heading",
        "a.html: the link c.html leads nowhere",
        "c.css: loads https://example.org/x.png",
    ]


def test_docstrings_get_the_form_that_the_generator_reads() -> None:
    text = docstring_text.rewrite(
        "Returns the sum. See docs/limits.md.\n\n    y = sum(rows[0][1])\n\nArgs:\n    x: a number."
        "\nReturns: the sum,\n    rows[0][1] included.\nRaises: torchalgo.Error if x is odd.\n"
        "Example:\n    class A:\n        x = 1\n\n        def f(self): ...\n"
    )
    assert text.split("\n\n") == [
        "Returns the sum. See [limits](../limits.html).",
        "```python\ny = sum(rows[0][1])\n```",
        "Args:\n    x: a number.",
        "Returns:\n    the sum, rows[0\\][1] included.",
        "Raises:\n    torchalgo.Error: if x is odd.",
        "**Example:**",
        "```python\nclass A:\n    x = 1",
        "    def f(self): ...\n```",
        "\n",
    ]


def test_the_drawings_are_those_of_the_script() -> None:
    for name, drawing in draw.DRAWINGS.items():
        file = DOCS / "images" / f"drawing_{name}.svg"
        assert file.read_text() == drawing().svg(), "run python scripts/site/draw.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("`make docs` has not installed MkDocs")
    folder = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "build", "--quiet", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings(site: Path) -> None:
    assert check_site.problems(site) == []


def search(site: Path, queries: list[str], *index: Path) -> list[list[str]]:
    """Returns the addresses that the site's own search finds for each query."""
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    ran = subprocess.run(
        ["node", str(ROOT / "scripts" / "site" / "search.js"), str(site), *map(str, index)],
        input="\n".join(queries), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.slow
def test_the_search_finds_100_words_of_glossary_and_names(site: Path) -> None:
    names = re.findall(r"`torchalgo\.(?:\w+\.)*(\w+)", (DOCS / "api.md").read_text())
    terms = re.findall(r"^\| ([a-zA-Z].*?) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    words = {word for term in terms for word in re.findall(r"\w{4,}", term)} - {"word"}
    queries = ["batch", *sorted(words)[:49], *sorted(set(names) - words)[:50]]
    assert len(queries) == 100
    for query, found in zip(queries, search(site, queries), strict=True):
        assert found, query
        assert query.lower() in (site / found[0].partition("#")[0]).read_text().lower(), query


@pytest.mark.slow
def test_the_search_finds_words_that_the_theme_lost(site: Path, tmp_path: Path) -> None:
    """Without the mend of hooks.py, a search for "x" fails with these words."""
    words = " ".join(f"x{i * i * 7919 % 99991}" for i in range(4000))
    index = json.loads((site / "search" / "search_index.json").read_text())
    index["docs"] = [{"location": "page.html", "title": "A page", "text": words}]
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert search(site, ["x"], tmp_path / "index.json") == [["page.html"]]
