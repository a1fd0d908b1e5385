# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import pytest

from torchalgo._base.error_code import own_error, plain_error
from torchalgo._C import Error

INTERPRETER = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
/a/model.py(1): forward
RuntimeError: """


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TA5102 cuDNN: it failed (5000)", "TA5102 optimize: cuDNN: it failed (5000)"),
        ("TA4307 torchalgo: the choice fails", "TA4307 optimize: the choice fails"),
    ],
)
def test_an_error_of_our_op_has_its_code_and_no_traceback(text: str, expected: str) -> None:
    found = own_error(RuntimeError(INTERPRETER + text), "optimize")
    assert str(found) == expected and isinstance(found, Error)


def test_an_error_of_torch_is_not_ours() -> None:
    problem = RuntimeError(INTERPRETER + "sizes differ")
    assert own_error(problem, "forward") is None
    assert str(plain_error(problem, "forward")) == "TA1110 forward: sizes differ"
