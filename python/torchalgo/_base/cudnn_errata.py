# SPDX-License-Identifier: BSD-3-Clause
"""Rules of the user that refuse engines of cuDNN, beside those in csrc/cudnn_algo/errata.cpp."""

from __future__ import annotations

import json
import os
from typing import Any

from torchalgo import _C
from torchalgo._base.read_file import read_file
from torchalgo._C import Error

VARIABLE = "CUDNN_ERRATA_JSON_FILE"
EXAMPLE = '{"version": 1, "rules": [{"rule_id": "a", "operation": "ConvFwd", "engine": 1}]}'


def set_errata() -> None:
    """Refuses the engines in the file that the environment variable names.

    Raises: torchalgo.Error if the file cannot be read, or is not in the format of cuDNN's frontend.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return
    try:
        rules = json.loads(read_file(path, VARIABLE))["rules"]
        _C.set_cudnn_errata([_erratum(rule) for rule in rules])
    except (ValueError, LookupError, TypeError, RecursionError) as problem:
        raise Error(
            f"TA5107 {VARIABLE}: expected cuDNN's errata as JSON, such as {EXAMPLE}, got"
            f" {problem!r} in {path}: correct the file, or unset the variable"
        ) from None


def _erratum(rule: Any) -> _C.Erratum:
    """Converts a rule.

    Other keys, such as knob or shapes, are ignored. So a rule with such a key refuses more than it
    says.
    """
    numbers = [
        rule["engine"],
        rule.get("cudnn_version_start", 0),
        rule.get("cudnn_version_end", -1),
    ]
    if not all(type(number) is int for number in numbers):
        raise TypeError(f"the numbers {numbers}")
    return _C.Erratum(str(rule.get("rule_id", "")), rule["operation"], *numbers)
