# SPDX-License-Identifier: BSD-3-Clause
"""What the code knows of an algorithm stands in its Algorithm, and not in its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "python" / "torchalgo"
CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMMENT = re.compile(r"//.*")
NAME = re.compile(r'"(aten|cpu|cudnn\w*|layout|view)\.')  # a literal that begins as a name does
# Where no Algorithm is at hand, with the reason.
EXCEPTIONS = {
    "base/usable_threads.cpp": "files of control groups are named so: cpu.max",
    "ir/view.h": "views are ops of their own in a rewritten graph, whatever provides them",
    "ops/fallback.cpp": "no algorithm runs a layout change that none offers: ATen's copy does",
    "ops/choice.cpp": "a name belongs to its device even where this build lacks the algorithm",
    "rewrite/rewrite.cpp": "the rewriter leaves torch's own op where a plan chose ATen in nchw",
}


def test_nothing_outside_the_providers_knows_a_name() -> None:
    found = {
        str(path.relative_to(CSRC))
        for path in [*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")]
        if not path.relative_to(CSRC).parts[0].endswith("_algo")
        and NAME.search(COMMENT.sub("", path.read_text()))
    }
    assert found == set(EXCEPTIONS)


# The start of a name of a primitive or a problem.
START = re.compile(
    r"(aten|cpu|cudnn\w*|layout|view)\.|(fwd|bwd_data|bwd_filter|chain|linear|transform)_"
)
SIZES = re.compile(r"[nchwkrspqgx]\(?\\d|_(f64|st|pad|dil)")
SEPARATORS = ("+", "{", "@")
TAKE_APART = (
    "startswith",
    "endswith",
    "removeprefix",
    "partition",
    "split",
    "rpartition",
    "rsplit",
)
# Code outside of _ir that takes names apart, with the reason.
PYTHON_EXCEPTIONS = {
    "verify/check_claims.py": "it runs alone, also without torch, so it reads plans itself",
    "_predict/features.py": "it makes the numbers that describe a candidate from all of its name",
    "_measure/similar.py": "it compares all numbers of two problems",
}
# Their names are those of torch's operators, not of primitives.
OPERATORS = ("_lint", "_onnx", "_onnx_ops", "_caffe")


def takes_names_apart(source: str) -> bool:
    """Looks for prefix tests, and for parts at the characters that names have."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        texts = [n.value for a in node.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
        names = [text for text in texts if isinstance(text, str)]
        if node.func.attr in TAKE_APART and any(
            START.match(text) or text in SEPARATORS for text in names
        ):
            return True
        # A regular expression on a problem has groups of digits after letters of sizes.
        is_expression = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
        if is_expression and any(SIZES.search(text) for text in names):
            return True
    return False


def test_no_python_but_the_nouns_takes_a_name_apart() -> None:
    found = {
        str(path.relative_to(PYTHON))
        for path in PYTHON.rglob("*.py")
        if path.relative_to(PYTHON).parts[0] not in ("_ir", "include", *OPERATORS)
        and takes_names_apart(path.read_text())
    }
    assert found == set(PYTHON_EXCEPTIONS)


def test_what_takes_a_name_apart_is_found() -> None:
    for line in (
        'name.startswith(("aten.", "x"))', 'problem.split("+")[1:]', 'name.partition("{")',
        r're.search(r"r(\d+)s(\d+)", head)', 're.compile("_(?:f64|f32)_")',
    ):  # fmt: skip
        assert takes_names_apart(line) == (not line.startswith("re.compile")), line
    assert not takes_names_apart('text.split(",")')
