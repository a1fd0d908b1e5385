# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo.lint`: observes one call of a model, suspects faults, and tries each fix."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchalgo import Error
from torchalgo._base.kept_model import kept_model
from torchalgo._base.processor_load import warn_if_busy
from torchalgo._base.running_layers import in_eval_mode
from torchalgo._base.trees import copied
from torchalgo._lint import copies, groups, repeats
from torchalgo._lint.facts import Call, tensors_in
from torchalgo._lint.observe import Arguments, observe, run_model, same_random
from torchalgo._lint.report import LintReport
from torchalgo._lint.what_if import Lab, time_in_turns

BUDGET_S = 60.0


def lint(
    model: nn.Module,
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    budget_s: float = BUDGET_S,
) -> LintReport:
    """Finds faults of a model that cost time or memory, before any tuning.

    The model runs once while every operation of PyTorch is watched. Each fault that this shows is
    tried: the call runs again as if the fault were fixed. A fault is reported if bytes vanish and
    no time is lost, or if the fix gains 2 % of the call.

        report = torchalgo.lint(model, (torch.rand(1, 3, 224, 224),))
        print(report)

    Args:
        model: a module or a ScriptModule. It is not changed. It runs in eval mode, without
            gradients.
        example_inputs: a tensor, or a sequence of forward's arguments.
        example_kwargs: forward's keyword arguments.
        budget_s: seconds for the trials. Faults for which no time is left are not reported; a
            note says so.

    Returns: the findings, and notes on what could not be seen. docs/lint.md explains each kind of
        finding.
    Raises: torchalgo.Error if the arguments are wrong, or the model fails with them.
    """
    args, kwargs = _checked(model, example_inputs, example_kwargs, budget_s)
    given = tensors_in((args, kwargs))
    own = copied(args), copied(kwargs)
    warn_if_busy(torch.get_num_threads(), None)
    with kept_model(model) as kept, in_eval_mode(model) as was_trained:
        kept.copy_weights()
        call_us = _time_call(model, *own)
        call = observe(model, *own)
        call.us = call_us
        lab = Lab(model, *own, call, budget_s)
        findings = [
            *repeats.find_repeats(lab),
            *copies.find_copies(lab),
            *groups.find_slow_groups(lab),
        ]
    notes = ["the model is in train mode; it was run in eval mode"] * was_trained
    notes += _notes(model, call)
    if not all(map(torch.equal, tensors_in(own), given)):
        notes.append("the model changes its inputs, so most fixes could not be tried")
    if lab.untried:
        notes.append(f"{lab.untried} suspicions were not tried within {budget_s:g} s")
    findings.sort(key=lambda f: (-(f.gain_us or 0.0), -f.bytes, f.layer))
    return LintReport(tuple(findings), call_us, tuple(notes))


def _checked(
    model: Any, example_inputs: Any, example_kwargs: Any, budget_s: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of the call.

    Raises: torchalgo.Error if an argument of lint is wrong.
    """
    if not isinstance(model, nn.Module):
        hint = f"make an instance, {model.__name__}(...)" if isinstance(model, type) else (
            "load or make the model first"
        )  # fmt: skip
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise Error(f"TA1701 lint: model is {given}, expected torch.nn.Module: {hint}")
    is_script = isinstance(model, torch.jit.ScriptModule) and "torchalgo::" in str(
        getattr(model, "graph", "")
    )
    if getattr(model, "is_torchalgo_optimized", False) or is_script:
        raise Error(
            "TA1701 lint: the model is already optimized, expected the original one: pass the model"
            " that optimize was given"
        )
    is_number = isinstance(budget_s, (int, float)) and not isinstance(budget_s, bool)
    if not is_number or not budget_s > 0:
        raise Error(
            f"TA1702 lint: budget_s is {budget_s!r}, expected a number of seconds above 0, such as"
            " 60"
        )
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        raise Error(
            f"TA1206 lint: example_kwargs is {type(example_kwargs).__name__}, expected a dict of"
            " forward's keyword arguments"
        )
    kwargs = dict(example_kwargs or {})
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), kwargs
    if not isinstance(example_inputs, (tuple, list, type(None))) or not (example_inputs or kwargs):
        raise Error(
            f"TA1201 lint: example_inputs is {type(example_inputs).__name__}, expected a tensor or"
            " a non-empty sequence of forward's arguments, such as (torch.rand(1, 3, 224, 224),)"
        )
    return tuple(example_inputs or ()), kwargs


def _time_call(model: nn.Module, args: Arguments, kwargs: dict[str, Any]) -> float:
    """Returns the median time of a call in us.

    Raises: torchalgo.Error if the model fails.
    """
    try:
        with torch.no_grad(), same_random():
            call = functools.partial(run_model, model, args, kwargs)
            (times,) = time_in_turns([call], rounds=9, least=3, most_s=5.0)
    except Exception as problem:
        sizes = ", ".join(str(list(t.shape)) for t in tensors_in((args, kwargs)))
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise Error(
            f"TA1110 lint: the model raises for inputs of sizes {sizes}: {reason}; give inputs that"
            " forward accepts"
        ) from problem
    return statistics.median(times)


def _notes(model: nn.Module, call: Call) -> list[str]:
    notes = []
    if isinstance(model, torch.jit.ScriptModule):
        notes.append(
            "the model is TorchScript: layers and lines of its operations are not known, and the"
            " Python code that made it is not seen"
        )
    elif any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        notes.append("layers and lines inside of TorchScript modules are not known")
    if not call.ops:
        notes.append("the call ran no operation of PyTorch")
    return notes
