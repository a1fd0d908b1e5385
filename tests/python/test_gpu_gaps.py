# SPDX-License-Identifier: BSD-3-Clause
"""Tests the summaries of benchmarks/gpu_gaps.py and gpu_baselines.py. They need no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpu_baselines
import gpu_gaps
from gpu_baselines import INDUCTOR, baselines, compiled_before
from gpu_gaps import fused
from gpu_problems import spell
from gpu_stage import Context

NETWORK = "resnet50 f16 8"


def context(out: Path, earlier: list[Any]) -> Context:
    """The context of a stage that has all of its results from an earlier call."""
    return Context(out, True, 0, lambda: 100.0, earlier=earlier)


def engine(name: str, first_s: float | None, failure: str = "") -> dict[str, Any]:
    return {
        "primitive": f"cudnn9.conv_bias_relu.{name} nhwc->nhwc", "compiled": name == "e49",
        "error": 0.0, "first_s": first_s, "second_s": first_s, "failure": failure,
    }  # fmt: skip


def test_of_fused_engines_only_a_wrong_number_is_a_failure(tmp_path: Path) -> None:
    engines = [
        engine("e49", 0.5), engine("e49", None, "TA5103 cuDNN cannot make this plan"),
        engine("e14", 0.1, "loses a NaN: 2 of 2"), engine("e3", 0.1, "relative L2 0.5"),
    ]  # fmt: skip
    problems = [spell(gpu_gaps.FUSED_LAYERS[0], "f16", 8) + ops for ops in gpu_gaps.FUSED]
    earlier = [{"case": problem, "engines": engines} for problem in problems]
    outcome = fused(context(tmp_path, earlier))
    assert outcome.failures == ["cudnn9.conv_bias_relu.e3: relative L2 0.5"] * len(problems)
    assert outcome.findings == [
        "lose a NaN, so optimize refuses them: cudnn9.conv_bias_relu.e14",
        "cannot be made by cuDNN here, so optimize refuses them: cudnn9.conv_bias_relu.e49",
    ]
    assert outcome.summary.endswith("compile in 0.50 s, at most 0.5 s")


def row(case: str, **us: float) -> dict[str, Any]:
    best = min(us.get(name, 1e9) for name in ("frozen", INDUCTOR))
    return {
        "case": case, "network": NETWORK, "us": {name: [time] for name, time in us.items()},
        "ratios": {"table": best / us["table"]}, "errors": {}, "missing": {},
    }  # fmt: skip


def test_plans_count_without_inductor_and_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_baselines, "free_gpu", lambda: None)
    alone, case = row(NETWORK, frozen=900.0, table=500.0), f"{NETWORK} {INDUCTOR}"
    outcome = baselines(context(tmp_path, [alone, {"begun": case}, {"begun": case}]))
    assert outcome.failures == [] and f"{case}: ended its process 2 times" in outcome.findings
    assert outcome.summary == "1 networks, 0 of them beside Inductor, geomean 1.80x; 0 left"
    beside = row(case, frozen=900.0, table=500.0, **{INDUCTOR: 700.0})
    outcome = baselines(context(tmp_path, [alone, beside]))
    assert outcome.summary == "1 networks, 1 of them beside Inductor, geomean 1.40x; 0 left"


def test_other_stages_know_which_networks_inductor_has_compiled(tmp_path: Path) -> None:
    assert compiled_before(context(tmp_path, [])) == set()
    lines = '{"begun": "a"}\n{"case": "a", "network": "a", "us": {"frozen": [1.0]}}\n'
    beside = '{"case": "b max-autotune", "network": "b", "us": {"max-autotune": [1.0]}}\n'
    (tmp_path / "baselines.jsonl").write_text(lines + beside)
    assert compiled_before(context(tmp_path, [])) == {"b"}
