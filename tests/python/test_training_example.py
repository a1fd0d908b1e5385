# SPDX-License-Identifier: BSD-3-Clause
"""examples/training/train.py runs, and both of its runs have the same losses."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

import torchalgo

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "training" / "train.py"


def test_the_example_trains_with_the_losses_of_eager(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("train", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train", script)
    spec.loader.exec_module(script)
    # Beside other tests, the guard may choose eager.
    settings = torchalgo.Settings(run_untimed=True)
    untimed = functools.partial(torchalgo.optimize_training, settings=settings)
    monkeypatch.setattr(torchalgo, "optimize_training", untimed)
    eager, planned = script.main(["--steps", "12", "--batch", "8", "--width", "8", "--budget", "5"])
    # Rounding grows from step to step.
    assert planned.losses[:6] == pytest.approx(eager.losses[:6], rel=1e-3)
    assert planned.losses == pytest.approx(eager.losses, rel=0.1)
    assert min(planned.losses[-3:]) < planned.losses[0]
    printed = capsys.readouterr().out
    assert "planned: " in printed and "images/s" in printed
    assert "12 runs of plans, 0 of PyTorch" in printed
