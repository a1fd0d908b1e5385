# SPDX-License-Identifier: BSD-3-Clause
"""Makes the parts of the site that come from sources other than docs.

These are the reference of the Python names, the help of each command, the list of decisions, the
first lines of README, and the pages of the repository's top folder. Nothing here needs torch or
MkDocs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOP_PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
RECORDS = ("benchmarks.md", "board.md", "layers.md", "changelog.md", "decisions/", "records/")
COMMANDS_MARK = "<!-- made by `make docs`: the help of each command -->"
FIRST_MARK = "<!-- made by `make docs`: the first lines of README -->"
FIRST = re.compile(r"<!-- table: [^>]*-->\n(.*?)<!-- end of table -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CUDNN = "torchalgo.backends.cudnn"
NAME = re.compile(r"`(torchalgo\.[\w.]+)")


def anchor(heading: str, separator: str = "-") -> str:
    """Returns the name of a heading in links, as code hosts and the tests spell it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def made_pages() -> dict[str, str]:
    """Returns the pages without a file in docs: their names and texts."""
    made = {name: top_page(source) for name, source in TOP_PAGES.items()}
    made["decisions/index.md"] = decisions()
    for title, names in reference_sections():
        made[reference_page(title)] = reference(title, names)
    return made


def complete(name: str, text: str) -> str:
    """Returns the text of the page `name` with its made parts and with links inside of the site."""
    if name == "commands.md":
        text = text.replace(COMMANDS_MARK, "\n".join(command_sections()))
    if name == "index.md":
        text = text.replace(FIRST_MARK, first_lines())
    if name == "api.md":
        text = "\n".join(link_names(line) for line in text.split("\n"))
    if name == "errors.md":
        text = re.sub(r"^\| (TA\d{4}) \|", r'| <span id="\1">\1</span> |', text, flags=re.MULTILINE)
    for made, source in TOP_PAGES.items():
        text = text.replace(f"](../{source})", f"]({made})")
    return re.sub(r"\[[\w./-]+\.md\]\(([\w./-]+\.md)(#[^)]*)?\)", with_title(name), text)


def with_title(name: str) -> Callable[[re.Match[str]], str]:
    """Returns the function that names a link on the page `name` as the page that it leads to."""

    def named(link: re.Match[str]) -> str:
        target = (DOCS / name).parent / link[1]
        if not target.exists():
            return link[0]  # a page that is made
        title = re.search(r"^# (.*)$", target.read_text(), re.MULTILINE)
        words = title[1].partition(":")[0] if title else link[1]
        return f"[{words}]({link[1]}{link[2] or ''})"

    return named


def top_page(source: str) -> str:
    """Returns a page of the top folder."""
    return inside_the_site((ROOT / source).read_text())


def inside_the_site(text: str) -> str:
    """Returns a text of the top folder with its links as they are inside of the site.

    A link to a folder that is not a part of the site becomes plain code.
    """

    def inside(match: re.Match[str]) -> str:
        target = match[1]
        for made, name in TOP_PAGES.items():
            target = target.replace(name, made)
        if target.rstrip("/") == "docs/decisions":
            return "](decisions/index.md)"
        return f"]({target.removeprefix('docs/')})"

    text = re.sub(r"\[([^]]*)\]\(benchmarks/[^)]*\)", r"`\1`", text)
    return LINK.sub(inside, text)


def decisions() -> str:
    """Returns the list of decisions."""
    lines = ["# Decisions", "", "Each page gives the reason for a choice that is not obvious.", ""]
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        number, title = re.match(r"# (\d+)\. (.*)", path.read_text()).groups()  # type: ignore[union-attr]
        lines.append(f"{number}. [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def first_lines() -> str:
    """Returns what README says first, with its picture."""
    found = FIRST.search((ROOT / "README.md").read_text())
    assert found is not None
    return inside_the_site(found[1])


# ---- Python ------------------------------------------------------------------------------------


def reference_sections() -> Iterator[tuple[str, list[str]]]:
    """Yields the sections of api.md: the title, and the names in the first columns of its table."""
    for section in (DOCS / "api.md").read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
        yield title, [name for cell in cells for name in NAME.findall(cell)]


def reference_page(title: str) -> str:
    return f"reference/{anchor(title)}.md"


def reference(title: str, names: list[str]) -> str:
    """Returns a page that mkdocstrings fills with the docstrings of `names`."""
    lines = [f"# {title}", "", "This page is made from the docstrings.", ""]
    for name in dict.fromkeys(map(documented_at, names)):
        lines += [f"::: {name}", ""] if name else []
        if name == CUDNN:
            lines[-1:] = ["    options: { members: false }", ""]
    return "\n".join(lines)


def documented_at(name: str) -> str:
    """Returns the name whose docstring explains `name`; "" if there is none."""
    if name == "torchalgo.__version__":  # a text
        return ""
    return CUDNN if name.startswith(f"{CUDNN}.conv_") else name


def link_names(line: str) -> str:
    """Returns a row of api.md whose names lead to their docstrings."""
    if not line.startswith("| "):
        return line
    first, bar, rest = line.partition(" | ")

    def linked(match: re.Match[str]) -> str:
        name = NAME.match(match[0])
        target = documented_at(name[1]) if name is not None else ""
        return f"[{match[0]}][{target}]" if target else match[0]

    return re.sub(r"`[^`]+`", linked, first) + bar + rest


# ---- commands ----------------------------------------------------------------------------------


def command_sections() -> Iterator[str]:
    """Yields a section for each command and each verb, with what `--help` prints."""
    for words, parser in parsers():
        yield f"{'###' if len(words) > 2 else '##'} {' '.join(words)}\n"
        yield f"```text\n{parser.format_help().rstrip()}\n```\n"


def parsers() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Yields the parsers of all commands and verbs, with their words."""
    os.environ["COLUMNS"] = "88"  # the width of the help
    sys.path.insert(0, str(ROOT / "python"))
    from torchalgo_cli.parser import build_parser

    yield from _with_verbs(["torchalgo"], build_parser())


def _with_verbs(
    words: list[str], parser: argparse.ArgumentParser
) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs: dict[str, Any] = action.choices
            for verb, inner in verbs.items():
                yield from _with_verbs([*words, verb], inner)
