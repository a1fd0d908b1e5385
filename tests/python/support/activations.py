# SPDX-License-Identifier: BSD-3-Clause
"""All activations, as problems spell them: with numbers, if they have any."""

from __future__ import annotations

import contextlib

from torchalgo import _C


def _spelled(name: str) -> str:
    for numbers in ("", "0.5", "-1x2"):
        with contextlib.suppress(_C.Error):
            return _C.parse_problem(f"{name}{numbers}_f32_n1c1h1w1").partition("_f32_")[0]
    raise AssertionError(name)


ACTIVATIONS = [_spelled(name) for name in _C.activation_names()]
