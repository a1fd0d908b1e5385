# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo.lint`: observes one call of a model, suspects faults, and tries each fix."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.freeze import as_inputs, device_of, first_lines, has_own_ops, tensors_in
from torchalgo._lint import convolutions, copies, dtypes, left, modes, norms, repeats
from torchalgo._lint.facts import Call
from torchalgo._lint.observe import observe, run_model, same_random, time_ops
from torchalgo._lint.report import Finding, LintReport
from torchalgo._lint.script_steps import ScriptSteps
from torchalgo._lint.what_if import Lab
from torchalgo._measure.guard import synchronizer
from torchalgo._measure.machine_load import warn_if_busy

PASSES = 3
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

    Returns: the findings, the operations that torchalgo would leave to PyTorch, and notes on what
        could not be seen. docs/lint.md explains each kind of finding.
    Raises: torchalgo.Error if the arguments are wrong, or the model fails with them.
    """
    args, kwargs = _checked(model, example_inputs, example_kwargs, budget_s)
    wait = synchronizer(device_of(model, args))
    own = _detached(args), _detached(dict(kwargs))
    warn_if_busy(torch.get_num_threads(), None)
    with modes.eval_mode(model) as trained:
        call_us = _time_call(model, *own, wait)
        given = model
        if isinstance(model, torch.jit.ScriptModule) and not kwargs:
            model = ScriptSteps.of(model, own[0]) or model
        call = observe(model, *own, wait)
        call.us = call_us
        call.positive_scales = norms.positive_scales(model)
        notes = _notes(model, call, time_ops(call, model, *own, wait, PASSES))
        with same_random():
            imported, reason = left.graph_of(given, args if not kwargs else ())
        if imported is None:
            notes.append(f"operations that torchalgo leaves to PyTorch are not listed: {reason}")
        lab = Lab(model, *own, call, wait, budget_s)
        findings = list(_search(lab, trained, None if imported is None else imported.graph))
        findings += modes.find_input_gradients(call, model, args, kwargs)
    if not all(map(torch.equal, tensors_in(own), tensors_in((args, dict(kwargs))))):
        notes.append("the model changes its inputs, so most fixes could not be tried")
    if lab.untried:
        notes.append(f"{lab.untried} suspicions were not tried within {budget_s:g} s")
    ops = () if imported is None else left.find_left(call, imported)
    return LintReport(_sorted(findings), ops, call_us, tuple(notes))


def _search(lab: Lab, trained: list[str], graph: _C.Graph | None) -> Iterator[Finding]:
    """Yields the findings of all rules."""
    yield from modes.find_train_mode(lab, trained)
    yield from modes.find_dropout(lab)
    yield from modes.find_gradients(lab)
    yield from dtypes.find_float64(lab)
    yield from repeats.find_repeats(lab)
    yield from copies.find_copies(lab)
    yield from copies.find_dropped_layouts(lab)
    yield from copies.find_dtype_round_trips(lab)
    yield from norms.find_unfolded(lab, graph)
    yield from convolutions.find_padding(lab)
    yield from convolutions.find_slow_sizes(lab)
    yield from repeats.find_python_reads(lab)
    yield from repeats.find_duplicates(lab)
    yield from dtypes.find_denormals(lab)


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (-(f.gain_us or 0.0), -f.bytes, f.layer)))


def _checked(
    model: Any, example_inputs: Any, example_kwargs: Any, budget_s: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Returns the arguments of the call.

    Raises: torchalgo.Error if an argument of lint is wrong.
    """
    if not isinstance(model, nn.Module):
        hint = f"make an instance, {model.__name__}(...)" if isinstance(model, type) else (
            "load or make the model first"
        )  # fmt: skip
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise Error(f"TA1701 lint: model is {given}, expected torch.nn.Module: {hint}")
    is_script = isinstance(model, torch.jit.ScriptModule) and has_own_ops(model)
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
    kwargs = example_kwargs or {}
    if kwargs and (example_inputs is None or example_inputs in ((), [])):
        return (), kwargs
    is_inputs = isinstance(example_inputs, (torch.Tensor, tuple, list)) and (
        isinstance(example_inputs, torch.Tensor) or bool(example_inputs)
    )
    if not is_inputs:
        raise Error(
            f"TA1201 lint: example_inputs is {type(example_inputs).__name__}, expected a tensor or"
            " a non-empty sequence of forward's arguments, such as (torch.rand(1, 3, 224, 224),)"
        )
    return as_inputs(example_inputs), kwargs


def _detached(value: Any) -> Any:
    """Returns copies of all tensors, in the layout that they have, without gradients."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _detached(each) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_detached, value))
    return value


def _time_call(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any], wait: Callable[[], None]
) -> float:
    """Returns the median time of a call in us.

    Raises: torchalgo.Error if the model fails.
    """
    times = []
    began = time.monotonic()
    with torch.no_grad(), same_random():
        for i in range(2 + 9):
            before = time.perf_counter_ns()
            try:
                run_model(model, args, kwargs)
            except Exception as problem:
                sizes = ", ".join(str(list(t.shape)) for t in tensors_in((args, dict(kwargs))))
                raise Error(
                    f"TA1110 lint: the model raises for inputs of sizes {sizes}:"
                    f" {first_lines(problem)}; give inputs that forward accepts"
                ) from problem
            wait()
            times.append((time.perf_counter_ns() - before) / 1000)
            if i >= 4 and time.monotonic() - began > 5.0:
                break
    return statistics.median(times[2:])


def _notes(model: nn.Module, call: Call, is_same: bool) -> list[str]:
    notes = []
    if isinstance(model, ScriptSteps):
        notes.append("the model is TorchScript: the Python code that made it is not seen")
    elif isinstance(model, torch.jit.ScriptModule):
        notes.append(
            "the model is TorchScript: layers and lines of its operations are not known, and the"
            " Python code that made it is not seen"
        )
    elif any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        notes.append("layers and lines inside of TorchScript modules are not known")
    if not is_same:
        notes.append("two calls ran different operations, so the times of operations are rough")
    if not call.ops:
        notes.append("the call ran no operation of PyTorch")
    return notes
