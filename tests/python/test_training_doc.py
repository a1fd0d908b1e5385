# SPDX-License-Identifier: BSD-3-Clause
"""The snippets of docs/training.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.nets import make_net

DOC = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def input_of(snippet: str) -> torch.Tensor:
    """What the page calls x: of a layer, or of a model."""
    if "conv, x" in snippet:
        return torch.rand(1, 16, 9, 9)
    return torch.rand(1, 64, 9, 9) if "weight" in snippet else torch.rand(1, 3, 20, 20)


def test_snippets_run_as_printed(
    fast: torchalgo.Optimized, capsys: pytest.CaptureFixture[str]
) -> None:
    conv, weight = torch.nn.Conv2d(16, 16, 3, padding=1), torch.rand(16, 64, 3, 3)
    always = {"torch": torch, "torchalgo": torchalgo, "conv": conv, "weight": weight, "fast": fast}
    snippets = re.findall(r"^```python\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 6
    for number, snippet in enumerate(snippets, 1):
        names: dict[str, Any] = {**always, "x": input_of(snippet), "model": make_net()}
        try:
            exec(compile(snippet, f"training.md, snippet {number}", "exec"), names)
        finally:
            torchalgo.backends.cudnn.conv_fwd_algo = None
    assert "cpu." in capsys.readouterr().out
