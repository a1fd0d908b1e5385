# SPDX-License-Identifier: BSD-3-Clause
"""Fails if the text of a torchalgo.Error does not begin with a code of docs/errors.md.

Each `Error(...)` of the Python packages is read, and each TORCHALGO_CHECK, `throw Error`, `NoPlan`
and `NotInTime` of csrc. A text that wraps another error's text is with_inner_code("TA1234 ...").
Each code of the page must be used, and stand in it once.

    python scripts/check_errors.py
"""

from __future__ import annotations

import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = ROOT / "docs" / "errors.md"
PYTHON = (ROOT / "python" / "torchalgo", ROOT / "python" / "torchalgo_cli")
CSRC = ROOT / "csrc"
CODE = re.compile(r"TA\d{4}(?= )")
ROW = re.compile(r"^\| (TA\d{4}) \| \S.* \| \S.* \|$", re.MULTILINE)
CLASSES = ("Error", "LostError", "FileError", "InstallError")
WRAPPER = "with_inner_code"
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
CXX_SITE = re.compile(
    r"\b(TORCHALGO_CHECK|throw\s+(?:[\w:]*::)?(?:Error|NoPlan|NotInTime|StatusError)|NoPlan\s+\w+)\s*\("
)
Site = tuple[int, str]  # the line of an error, and the beginning of its text or ""


def registered(text: str) -> tuple[list[str], list[str]]:
    """Returns the codes of a registry, and those that it has more than once."""
    codes = ROW.findall(text)
    return codes, [code for code, count in collections.Counter(codes).items() if count > 1]


def text_of(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """Returns how the text of an expression begins; empty if that cannot be read.

    Args:
        constants: the module's own names and their values.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and node.values:
        return text_of(node.values[0], constants)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return text_of(constants[node.id], {})
    if isinstance(node, ast.BinOp):
        return text_of(node.left, constants)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == WRAPPER:
            return text_of(node.args[0], constants)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            return text_of(node.func.value, constants)
    return ""


def python_sites(source: str) -> Iterator[Site]:
    """Yields the errors that Python code makes."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in CLASSES:
            yield node.lineno, text_of(node.args[0], constants) if node.args else ""


def skip_argument(source: str, at: int) -> int:
    """Returns where the argument at position `at` of C++ code ends: at its comma or bracket."""
    depth = 0
    while at < len(source):
        if match := STRING.match(source, at):
            at = match.end()
            continue
        if match := re.compile(r"'(?:[^'\\]|\\.)'").match(source, at):
            at = match.end()
            continue
        if (source[at] in ")]}" and depth == 0) or (source[at] == "," and depth == 0):
            return at
        depth += (source[at] in "([{") - (source[at] in ")]}")
        at += 1
    return at


def cxx_sites(source: str) -> Iterator[Site]:
    """Yields the errors that C++ code throws."""
    for match in CXX_SITE.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        at = match.end()
        if source[source.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith("#define"):
            continue
        if match[1] == "TORCHALGO_CHECK":
            at = skip_argument(source, at) + 1
        elif "StatusError" in match[1]:
            at = skip_argument(source, at) + 1  # the status comes before the text
        text = STRING.search(source, at, skip_argument(source, at))
        yield line, text[1] if text else ""


def violations(sites: Iterator[Site], name: str, codes: set[str], used: set[str]) -> list[str]:
    """Returns a line for each error without a registered code, and adds the others' to `used`."""
    found = []
    for line, text in sites:
        code = CODE.match(text)
        if code is None:
            found.append(f"{name}:{line}: the error's text begins with no code: {text[:60]!r}")
        elif code[0] not in codes:
            found.append(f"{name}:{line}: {code[0]} is not in docs/errors.md")
        else:
            used.add(code[0])
    return found


def main() -> int:
    """Prints the violations; the exit status is 1 if there are any."""
    known, twice = registered(REGISTRY.read_text())
    found = [f"docs/errors.md: {code} is there more than once" for code in twice]
    codes, used = set(known), set[str]()
    count = 0
    for folder in (*PYTHON, CSRC):
        for path in sorted(folder.rglob("*.*")):
            if "share" in path.parts:  # copies of csrc
                continue
            if path.suffix not in (".py", ".cpp", ".h", ".cu") or path == CSRC / "base" / "error.h":
                continue
            source = path.read_text()
            sites = list((python_sites if path.suffix == ".py" else cxx_sites)(source))
            count += len(sites)
            name = path.relative_to(ROOT).as_posix()
            found += violations(iter(sites), name, codes, used)
    found += [f"docs/errors.md: nothing raises {code}" for code in known if code not in used]
    print("\n".join(found) if found else f"codes of errors: ok, {len(known)} codes, {count} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
