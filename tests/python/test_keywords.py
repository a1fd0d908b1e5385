# SPDX-License-Identifier: BSD-3-Clause
"""A keyword that a function does not have: the error names the nearest one, or its function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from torchalgo import tune
from torchalgo._api import optimize_training
from torchalgo._capture.settings import OF_OPTIMIZE

X = torch.rand(1, 3, 8, 8)


def optimize(**keywords: Any) -> Any:
    return torchalgo.optimize(nn.Conv2d(3, 8, 3).eval(), X, **keywords)


def train(**keywords: Any) -> Any:
    return torchalgo.optimize_training(nn.Conv2d(3, 8, 3).train(), X, **keywords)


def tuned(**keywords: Any) -> Any:
    return tune.tune(nn.Conv2d(3, 8, 3).eval(), X, None, **keywords)  # type: ignore[arg-type]


def save(**keywords: Any) -> Any:
    return torchalgo.optimize(nn.ReLU().eval(), X, budget_s=1).save("net.pt", **keywords)


WRONG: list[tuple[Callable[..., Any], str, str]] = [
    (optimize, "training", "training is a function of its own: torchalgo.optimize_training"),
    (optimize, "trainig", "no argument trainig; did you mean 'training'? It is a function"),
    (optimize, "budget", "no argument budget; did you mean 'budget_s'?$"),
    (optimize, "shape", "did you mean 'shapes'?$"),
    (optimize, "max_rel_error", "did you mean 'max_error'?$"),
    (optimize, "progress", r"progress is a field of Settings: .*Settings\(progress=...\)$"),
    (optimize, "cost_bd", "did you mean 'cost_db'? It is a field of Settings: "),
    (optimize, "xyzzy", "no argument xyzzy, expected one of model, example_inputs, "),
    (train, "training", "training is always True here"),
    (train, "shapes", "shapes is an argument of torchalgo.optimize, which is for inference$"),
    (train, "overides", "did you mean 'overrides'?$"),
    (train, "memory_limit_bytes", "memory_limit_bytes is a field of Settings: "),
    (tuned, "fresh", "fresh is a field of Settings: "),
    (torchalgo.load, "file", "no argument file, expected one of path$"),
    (torchalgo.load, "map_location", "map_location is an argument of torch.jit.load: the module "),
    (torchalgo.load, "paht", "did you mean 'path'?$"),
    (save, "portabel", "did you mean 'portable'?$"),
    (save, "format", "no argument format, expected one of path, portable$"),
    (save, "_extra_files", "no argument _extra_files, expected one of path, portable$"),
    (torchalgo.Settings, "budget_s", "budget_s is an argument of torchalgo.optimize, not of Set"),
    (torchalgo.Settings, "shape", "did you mean 'shapes'? It is an argument of torchalgo.optimi"),
    (torchalgo.Settings, "prgress", "no argument prgress; did you mean 'progress'?$"),
]


@pytest.mark.parametrize(
    ("function", "word", "text"), WRONG, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_wrong_keyword_names_the_right_one(
    function: Callable[..., Any], word: str, text: str
) -> None:
    callers = {train: "optimize_training", tuned: "tune"}
    caller = callers.get(function, function.__name__)
    pattern = text.replace("?", r"\?")
    with pytest.raises(torchalgo.Error, match=f"^TA1005 {caller}: .*{pattern}"):
        function(**{word: 1})


def test_the_tables_name_arguments_that_exist() -> None:
    own = {*inspect.signature(torchalgo.optimize).parameters}
    assert own == {"model", "example_inputs", "settings", *OF_OPTIMIZE}
    of_training = {*inspect.signature(torchalgo.optimize_training).parameters}
    assert own - of_training == {*optimize_training.OF_INFERENCE}
    assert not own & torchalgo.Settings.__dataclass_fields__.keys()


def test_signatures_and_copies_stay_as_they_were() -> None:
    settings = torchalgo.Settings(progress=False)
    assert not dataclasses.replace(settings, fresh=True).progress
    assert next(iter(inspect.signature(torchalgo.Settings).parameters)) == "mode"
    assert inspect.signature(torchalgo.optimize).parameters["settings"].default is None
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        torchalgo.optimize()  # type: ignore[call-arg]
