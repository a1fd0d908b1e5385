# SPDX-License-Identifier: BSD-3-Clause
"""The snippets of docs/training.md and docs/choosing.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.doc_blocks import text_of
from support.nets import make_net
from torchalgo._train import optimize as train_optimize

pytestmark = pytest.mark.slow

BY_HAND = text_of("choosing.md").partition("## By hand, in each direction")[2]
TEXT = text_of("training.md") + BY_HAND


def input_of(snippet: str) -> torch.Tensor:
    """What the page calls x: of a layer, or of a model."""
    if "conv, x" in snippet:
        return torch.rand(1, 16, 9, 9)
    return torch.rand(1, 64, 9, 9) if "weight" in snippet else torch.rand(1, 3, 20, 20)


def test_snippets_run_as_printed(
    fast: torchalgo.Optimized,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    # On a busy machine, the plan of such a small model may lose.
    monkeypatch.setattr(train_optimize, "compare_steps", lambda *_: None)
    loader = [(torch.rand(4, 3, 20, 20), torch.randint(10, (4,))) for _ in range(3)]
    conv, weight = torch.nn.Conv2d(16, 16, 3, padding=1), torch.rand(16, 64, 3, 3)
    always = {"torch": torch, "torchalgo": torchalgo, "conv": conv, "weight": weight, "fast": fast}
    always["loader"] = loader
    snippets = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 6
    for number, snippet in enumerate(snippets, 1):
        names: dict[str, Any] = {**always, "x": input_of(snippet), "model": make_net()}
        names["model"].train("optimize_training" in snippet)
        try:
            exec(compile(snippet, f"snippet {number}", "exec"), names)
        finally:
            torchalgo.backends.cudnn.conv_fwd_algo = None
        if "weights.pt" in snippet:
            assert (tmp_path / "weights.pt").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "cpu." in printed and "3 Counter()\n" in printed
