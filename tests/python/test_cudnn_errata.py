# SPDX-License-Identifier: BSD-3-Clause
"""The file of CUDNN_ERRATA_JSON_FILE, with rules of the user that refuse engines of cuDNN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import test_cudnn_golden as golden
import torchalgo
from torchalgo import _C
from torchalgo._base.cudnn_errata import VARIABLE, set_errata

PROBLEM = next(problem for problem in golden.PROBLEMS if problem.startswith("fwd_f16"))
RULE = {"rule_id": "mine", "operation": "ConvFwd", "engine": 0}


@pytest.fixture(autouse=True)
def _no_rules() -> Iterator[None]:
    yield
    _C.set_cudnn_errata([])


def set_from(text: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = path / "errata.json"
    file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    set_errata()


# In a process of its own: what cuDNN has answered before a rule came is kept.
REFUSAL = """
import sys
from torchalgo import _C
from torchalgo._ir.devices import named_device

primitive = _C.Primitive("cudnn9.conv.e0", "nchw", "nchw")
print(_C.offer_one(sys.argv[1], primitive, named_device("h100"))[2])
"""


@pytest.mark.skipif(golden.VERSION is None, reason=_C.cudnn_absence())
@pytest.mark.parametrize(
    ("more", "is_refused"),
    [
        ({}, True),
        ({"operation": ""}, True),
        ({"operation": "ConvBwdData"}, False),
        ({"engine": 1}, False),
        ({"cudnn_version_start": 80000, "cudnn_version_end": -1, "knob": ["k2=1"]}, True),
        ({"cudnn_version_start": 990000}, False),
        ({"cudnn_version_end": 80000}, False),
    ],
)
def test_a_rule_refuses_an_engine(more: dict[str, Any], is_refused: bool, tmp_path: Path) -> None:
    file = tmp_path / "errata.json"
    file.write_text(json.dumps({"version": 1, "rules": [{**RULE, **more}]}))
    printed = subprocess.run(
        [sys.executable, "-c", REFUSAL, PROBLEM], env=os.environ | {VARIABLE: str(file)},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert printed.startswith("the rule 'mine' of CUDNN_ERRATA_JSON_FILE") == is_refused


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"rules": 1}', '{"rules": [1]}', '{"rules": []} x', "[" * 9999,
        '{"rules": [{"engine": 1}]}', '{"rules": [{"operation": "ConvFwd"}]}',
        '{"rules": [{"operation": 1, "engine": 1}]}',
        '{"rules": [{"operation": "", "engine": 1e99}]}',
        '{"rules": [{"operation": "ConvFwd", "engine": "1"}]}',
        '{"rules": [{"operation": "ConvFwd", "engine": 99999999999999999999}]}',
    ],
)  # fmt: skip
def test_any_other_text_is_an_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(torchalgo.Error, match="TA5107 CUDNN_ERRATA_JSON_FILE: expected"):
        set_from(text, tmp_path, monkeypatch)


def test_the_file_is_read_when_torchalgo_is_imported(tmp_path: Path) -> None:
    environment = {**os.environ, VARIABLE: str(tmp_path / "absent.json")}
    run = subprocess.run(
        [sys.executable, "-c", "import torchalgo"], env=environment, capture_output=True, text=True
    )
    assert run.returncode != 0 and "TA2004 CUDNN_ERRATA_JSON_FILE: cannot read" in run.stderr
