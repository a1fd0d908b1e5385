# SPDX-License-Identifier: BSD-3-Clause
"""The test cases of the onnx package: load_onnx gives the same results, or an error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from support.onnx_files import node_cases, outcome_of, with_constants


@pytest.mark.slow
def test_each_case_is_equal_or_refused(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for case in node_cases():
        if not case.data_sets or not case.data_sets[0][0]:
            continue
        inputs = list(case.data_sets[0][0])
        try:
            constant = with_constants(case)
        except (TypeError, ValueError, NotImplementedError):  # sequences
            continue
        runs = {"inputs": (case.model, inputs)}
        if len(inputs) > 1:
            runs["constants"] = (constant, inputs[:1])
        for kind, (model, given) in runs.items():
            text = outcome_of(model, case, given, tmp_path / "model.onnx")
            if text.startswith("WRONG"):
                wrong.append(f"{case.name} ({kind}): {text}")
            counts[f"{kind} {'equal' if text == 'equal' else 'refused'}"] += 1
    assert not wrong
    print(dict(counts))
    assert counts["inputs equal"] >= 450 and counts["constants equal"] >= 300
