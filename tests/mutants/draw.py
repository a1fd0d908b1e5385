# SPDX-License-Identifier: BSD-3-Clause
"""Draws mutants: small faults in lines of csrc and python/torchalgo that a seed picks.

    python tests/mutants/draw.py --commit 4897c143 --draws 3          # prints draws of each part
    python tests/mutants/draw.py --commit 4897c143 --write 3 ir 0     # writes 03_*.patch

The lines are those of the commit, so a draw gives the same mutant after later changes. A part is
one folder, or several small ones. Each part has its own sequence of draws.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEED = 20261126
PARTS = {
    **{name: f"csrc/{name}/*.cpp" for name in (
        "ir", "planner", "pbqp", "rewrite", "ops", "runner", "training", "standalone",
        "provider", "profiler", "cudnn_algo", "aten_algo",
    )},
    "base_cuda": "csrc/base/*.* csrc/cuda/*.*",
    "import": "csrc/import/*.cpp csrc/torchscript/*.cpp",
    "layout_view": "csrc/layout_algo/*.cpp csrc/view_algo/*.cpp",
    **{f"py{name}": f"python/torchalgo/{name}/*.py" for name in (
        "_capture", "_measure", "_plan", "_run", "_train", "_db", "_onnx", "_report", "_lint",
    )},
    "py_predict_refine": "python/torchalgo/_predict/*.py python/torchalgo/_refine/*.py",
    "py_dynamo_ir": "python/torchalgo/_dynamo/*.py python/torchalgo/_ir/*.py",
    "py_cli_api": "python/torchalgo/_cli/*.py python/torchalgo/_api/*.py",
    "py_base_verify": "python/torchalgo/_base/*.py python/torchalgo/verify/*.py",
}  # fmt: skip
STRICTER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
BOUNDS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


@dataclass(frozen=True)
class Mutant:
    """A fault: lines `first` to `last` of `path`, counted from 1, become `after`."""

    path: str
    kind: str
    first: int
    last: int
    after: tuple[str, ...]


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Returns the mutants of a file."""
    lines = text.splitlines()
    if path.endswith(".py"):
        for kind, number, begin, end, new in python_edits(text):
            line = lines[number - 1]
            yield Mutant(path, kind, number, number, (line[:begin] + new + line[end:],))
        return
    for number, line in enumerate(lines, start=1):
        code = blank(line)
        for kind, begin, end, new in cpp_edits(code):
            yield Mutant(path, kind, number, number, (line[:begin] + new + line[end:],))
        if re.match(r"\s*TORCHALGO_CHECK\(", code):
            last = next(i for i in range(number, len(lines) + 1) if lines[i - 1].endswith(");"))
            yield Mutant(path, "check", number, last, ())
        if re.match(r"\s*if \(.*\) (return|continue|throw)\b.*;$", code):
            yield Mutant(path, "check", number, number, ())


def blank(line: str) -> str:
    """Returns the line of C++ with the text of strings and comments replaced by blanks."""
    if line.lstrip().startswith("#"):
        return ""
    line = re.sub(r'"(\\.|[^"\\])*"', lambda m: '"' + "\0" * (len(m[0]) - 2) + '"', line)
    return line.split("//")[0].rstrip()


def cpp_edits(code: str) -> Iterator[tuple[str, int, int, str]]:
    """Returns (kind, begin, end, new text) of the faults within a line."""
    for m in re.finditer(r" (<=?|>=?|==|!=) ", code):
        yield "bound", m.start(1), m.end(1), STRICTER[m[1]]
    for m in re.finditer(r"(?<![\w.'])\d+(?![\w.'])", code):
        yield "number", m.start(), m.end(), str(int(m[0]) + 1)
    for m in re.finditer(r"\b(true|false)\b", code):
        yield "flag", m.start(), m.end(), "false" if m[0] == "true" else "true"
    for m in re.finditer(r"\w\(([\w.>-]+), ([\w.>-]+)(?=[,)])", code):
        yield "argument", m.start(1), m.end(2), f"{m[2]}, {m[1]}"
    for m in re.finditer(r" (&&|\|\|) ", code):
        end = end_of_clause(code, m.end())
        yield "clause", m.start(), end, ""


def end_of_clause(code: str, begin: int) -> int:
    """Returns where the operand of && or || that starts at `begin` ends."""
    depth = 0
    for i in range(begin, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth < 0 or (depth == 0 and re.match(r" (&&|\|\||\?) ?|;|,", code[i:])):
            return i
    return len(code)


def python_edits(text: str) -> Iterator[tuple[str, int, int, int, str]]:
    """Returns (kind, line, begin, end, new text) of the faults in a file of Python."""
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if line == 0 or line != getattr(node, "end_lineno", None):
            if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
                yield from whole(node.test, "check", "False")
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
            kind = "flag" if isinstance(node.value, bool) else "number"
            new = str(not node.value if kind == "flag" else node.value + 1)
            yield from whole(node, kind, new)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS:
            old = BOUNDS[type(node.ops[0])]
            begin, end = node.left.end_col_offset or 0, node.comparators[0].col_offset
            at = text.splitlines()[line - 1].find(old, begin, end)
            yield "bound", line, at, at + len(old), STRICTER[old]
        if isinstance(node, ast.Call) and len(node.args) > 1:
            for a, b in itertools.pairwise(node.args):
                source = text.splitlines()[line - 1]
                cut = [source[x.col_offset : x.end_col_offset] for x in (a, b)]
                if cut[0] != cut[1] and not isinstance(a, ast.Starred):
                    yield (
                        "argument",
                        line,
                        a.col_offset,
                        b.end_col_offset or 0,
                        ", ".join(cut[::-1]),
                    )
        if isinstance(node, ast.BoolOp):
            for a, b in itertools.pairwise(node.values):
                yield "clause", line, a.end_col_offset or 0, b.end_col_offset or 0, ""


def whole(node: ast.expr, kind: str, new: str) -> Iterator[tuple[str, int, int, int, str]]:
    if node.lineno == node.end_lineno:
        yield kind, node.lineno, node.col_offset, node.end_col_offset or 0, new


class Tree:
    """The files of a commit."""

    def __init__(self, commit: str) -> None:
        self.commit = commit

    def read(self, path: str) -> str:
        return self.git("show", f"{self.commit}:{path}")

    def files(self, patterns: str) -> list[str]:
        names = self.git("ls-tree", "-r", "--name-only", self.commit).splitlines()
        return [name for name in names if any(fits(name, p) for p in patterns.split())]

    def git(self, *command: str) -> str:
        return subprocess.run(
            ["git", *command], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout


def fits(name: str, pattern: str) -> bool:
    return Path(name).match(pattern) and Path(name).suffix != ".txt"


def draw(tree: Tree, part: str) -> Iterator[Mutant]:
    """Returns an endless sequence of draws: a kind of fault, then one of its mutants."""
    by_kind: dict[str, list[Mutant]] = {}
    for path in tree.files(PARTS[part]):
        for mutant in mutants_of(path, tree.read(path)):
            by_kind.setdefault(mutant.kind, []).append(mutant)
    generator = random.Random(f"{SEED} {part}")
    while True:
        mutant = generator.choice(by_kind[generator.choice(sorted(by_kind))])
        if parses(tree, mutant):
            yield mutant


def parses(tree: Tree, mutant: Mutant) -> bool:
    """False for a file of Python with a syntax error. Other files are for the compiler."""
    try:
        return not mutant.path.endswith(".py") or bool(ast.parse("".join(mutated(tree, mutant))))
    except SyntaxError:
        return False


def mutated(tree: Tree, mutant: Mutant) -> list[str]:
    """Returns the lines of the file with the fault."""
    lines = tree.read(mutant.path).splitlines(keepends=True)
    return [*lines[: mutant.first - 1], *(f"{x}\n" for x in mutant.after), *lines[mutant.last :]]


def patch_of(tree: Tree, mutant: Mutant) -> str:
    """Returns the unified diff. It has one line of context, or more if this is not unique."""
    before = tree.read(mutant.path).splitlines(keepends=True)
    names = (f"a/{mutant.path}", f"b/{mutant.path}")
    for context in (1, 2, 3):
        block = before[mutant.first - 1 - context : mutant.last + context]
        if "".join(before).count("".join(block)) == 1:
            break
    return "".join(difflib.unified_diff(before, mutated(tree, mutant), *names, n=context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--draws", type=int, default=1, help="the number of draws to print")
    parser.add_argument("--write", nargs=3, metavar=("NN", "PART", "DRAW"))
    given = parser.parse_args()
    tree = Tree(given.commit)
    if given.write:
        number, part, index = int(given.write[0]), given.write[1], int(given.write[2])
        sequence = draw(tree, part)
        mutant = [next(sequence) for _ in range(index + 1)][index]
        name = f"{number:02}_{part}_{Path(mutant.path).stem}.patch"
        head = f"Draw: {part} {index}, {mutant.kind}\n"
        (Path(__file__).parent / name).write_text(head + patch_of(tree, mutant))
        return
    for part in PARTS:
        sequence = draw(tree, part)
        for index in range(given.draws):
            mutant = next(sequence)
            print(f"{part} {index} {mutant.kind}\n{patch_of(tree, mutant)}")


if __name__ == "__main__":
    main()
