# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo optimize --training`."""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn

from torchalgo._api.optimize_training import optimize_training
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import end_code, on_device, tuning_arguments
from torchalgo._ir.plan import plans_to_json
from torchalgo._ir.problems import DIRECTION_WORDS
from torchalgo._run.model_files import load_model
from torchalgo._train.overrides import DirectionOverrides
from torchalgo._train.plan import TrainingPlan


def optimize_command(args: argparse.Namespace) -> int:
    """Plans a training step, prints the plan, and writes it to a file if one is given."""
    for flag, value in (
        ("-o", args.output), ("--report", args.report), ("--shapes", args.shapes),
        ("--portable", args.portable), ("--timings", args.timings),
    ):  # fmt: skip
        if value:
            raise Error(
                f"TA7201 optimize: --training has no {flag}: a model that is trained stays in"
                " Python. --plan-out writes the plan, and torchalgo.optimize_training(model, (x,),"
                " plan=torchalgo.TrainingPlan.load(path)) runs it"
            )
    if args.objective != "latency":
        raise Error(
            "TA1003 optimize: --training minimizes time only, got --objective"
            f" {args.objective}: leave --objective out"
        )
    model = on_device(args, trained_model(args.model))
    overrides = _overrides(args.override)
    arguments = tuning_arguments(args) | {"overrides": overrides}
    plan = None if args.plan is None else TrainingPlan.load(args.plan)
    inputs = random_inputs(model, args.input)
    planned = optimize_training(model, inputs, plan=plan, **arguments)
    if args.plan_out is not None:
        planned.plan.save(args.plan_out)
    if args.json:
        texts = [json.loads(plans_to_json([region])) for region in planned.plan.regions]
        print(json.dumps({"runs": planned.runs, "regions": texts}, indent=1))
    else:
        print(planned.plan)
    return end_code(planned.is_interrupted, "the plan is of the costs measured so far")


def trained_model(name: str) -> nn.Module:
    """Loads a model that can be trained, in train mode."""
    model = load_model(name)
    if isinstance(model, torch.jit.ScriptModule):
        raise Error(
            f"TA7201 --training: {name} is a TorchScript or an ONNX file, expected"
            " package.module:factory: a training step needs the Python model"
        )
    return model.train()


def _overrides(given: list[tuple[str, str]]) -> DirectionOverrides | None:
    """Converts ("layer1.*:backward_filter", "aten.conv") to {"layer1.*": {...}}."""
    found: dict[str, dict[str, str]] = {}
    for left, primitive in given:
        glob, _, word = left.rpartition(":")
        if not glob or word not in DIRECTION_WORDS:
            raise Error(
                f"TA4201 --override: {left}={primitive}: with --training, expected"
                f" GLOB:DIRECTION=PRIMITIVE, with one of {', '.join(DIRECTION_WORDS)}"
            )
        if glob in found and glob != next(reversed(found)):
            raise Error(
                f"TA4201 --override: {left}={primitive}: {glob} was given before another glob, so"
                " it is not clear which of both wins. Give its directions one after the other"
            )
        found.setdefault(glob, {})[word] = primitive
    return found or None
