# SPDX-License-Identifier: BSD-3-Clause
"""Runs the command in this process."""

from __future__ import annotations

import pytest

from torchalgo_cli import main


def run(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    """stdout of a command that ends with `code`, or stderr if it failed and wrote nothing there."""
    capsys.readouterr()
    try:
        got = main([str(arg) for arg in argv])
    except SystemExit as problem:
        got = int(str(problem.code))
    out, err = capsys.readouterr()
    assert got == code, err
    if code == 1 and not out:
        assert err.startswith("torchalgo: ")
        assert err.count("\n") == 1
    return err if code and not out else out
