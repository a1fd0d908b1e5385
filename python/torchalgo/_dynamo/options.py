# SPDX-License-Identifier: BSD-3-Clause
"""The options of the backend of torch.compile, which are those of optimize and one more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from torchalgo._C import Error
from torchalgo._capture.settings import Settings

NewShapes = Literal["nearest", "predict", "tune"]
OF_OPTIMIZE = ("overrides", "plan", "budget_s", "objective", "max_error")
MODES = {None: "", "default": "", "max-autotune": "tune"}  # of torch.compile


@dataclass(frozen=True)
class BackendOptions:
    """Options of the backend, as the user of torch.compile gave them.

    Args:
        arguments: keyword arguments of optimize, without settings.
        settings: those of optimize.
        is_mode_free: True if neither a mode nor settings say whether to measure or to predict.
        new_shapes: what runs inputs of other sizes: the "nearest" plan, or a new one that is made
            as by mode "predict" or "tune".
    """

    arguments: Mapping[str, Any]
    settings: Settings
    is_mode_free: bool
    new_shapes: NewShapes


def read_options(mode: str | None, options: Mapping[str, Any] | None) -> BackendOptions:
    """Returns the options of a call of torch.compile.

    Raises: torchalgo.Error if the mode or an option is unknown, or if a value is not allowed.
    """
    if mode not in MODES:
        raise Error(
            f"TA1001 torch.compile: mode={mode!r}, expected 'default', which predicts costs if the"
            " database has enough of them, or 'max-autotune', which measures"
        )
    given = dict(options or {})
    known = {*(field.name for field in fields(Settings)), *OF_OPTIMIZE, "new_shapes"}
    for name in given:
        if name not in known:
            raise Error(
                f"TA1001 torch.compile: options[{name!r}] is unknown, expected one of"
                f" {', '.join(sorted(known))}"
            )
    new_shapes = given.pop("new_shapes", "nearest")
    if new_shapes not in get_args(NewShapes):
        raise Error(
            f"TA1001 torch.compile: options['new_shapes'] is {new_shapes!r}, expected one of"
            f" {', '.join(map(repr, get_args(NewShapes)))}"
        )
    arguments = {name: given.pop(name) for name in OF_OPTIMIZE if name in given}
    is_mode_free = not MODES[mode] and "mode" not in given and "plan" not in arguments
    if MODES[mode]:
        given.setdefault("mode", MODES[mode])
    settings = Settings(**{"progress": False, **given})
    return BackendOptions(arguments, settings, is_mode_free, new_shapes)
