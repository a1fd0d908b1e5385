# SPDX-License-Identifier: BSD-3-Clause
"""What the code knows of an algorithm stands in its Algorithm, and not in its name."""

from __future__ import annotations

import re
from pathlib import Path

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
