# SPDX-License-Identifier: BSD-3-Clause
"""docs/gpu-status.md says how each claim of the CUDA half is proven. Its tests must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROOFS = {"cuDNN", "compiler", "fake cuDNN", "fake CUDA", "GPU in software", "not proven"}


def names_of_tests() -> set[str]:
    """Returns the names of Python's tests, and those of GoogleTest as Suite.Name."""
    cpp = [path.read_text("utf-8") for path in (ROOT / "tests/cpp").rglob("*_test.cpp")]
    python = [path.read_text("utf-8") for path in (ROOT / "tests/python").glob("test_*.py")]
    found = {f"{suite}.{name}" for text in cpp for suite, name in re.findall(GTEST, text)}
    return found | {name for text in python for name in re.findall(r"^def (test_\w+)", text, re.M)}


GTEST = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", re.MULTILINE)


def test_every_claim_has_a_proof_and_the_tests_of_it_exist() -> None:
    text = (ROOT / "docs/gpu-status.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    claims = [row for row in rows if len(row) == 3 and row[1] in PROOFS]
    assert len(claims) >= 20
    assert {proof for _, proof, _ in claims} == PROOFS
    known = names_of_tests()
    for claim, proof, tests in claims:
        names = re.findall(r"`(\w+(?:\.\w+)?)`", tests)
        assert names or proof == "not proven", claim
        assert [name for name in names if name not in known] == [], claim
