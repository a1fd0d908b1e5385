# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo optimize`, and its `--training`."""

from __future__ import annotations

import argparse
import json
import sys

import torch
from torch import nn

from torchalgo._api.optimize_training import optimize_training
from torchalgo._base.timings import timings_text
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import (
    end_code,
    loaded,
    optimized_model,
    plans_in,
    print_result,
    tuning_arguments,
)
from torchalgo._ir.plan import plans_to_json, save_plans
from torchalgo._ir.problems import DIRECTION_WORDS
from torchalgo._report.texts import short_report
from torchalgo._train.overrides import DirectionOverrides
from torchalgo._train.plan import TrainingPlan


def run(args: argparse.Namespace) -> int:
    """Plans a model, writes the files, and prints a short report. Returns the exit code."""
    if args.training:
        return _plan_training(args)
    if args.output is None:
        raise Error("TA7201 optimize: the file to write is missing: add -o net.pt")
    plan = None if args.plan is None else plans_in(args.plan)
    optimized = optimized_model(args, args.model, plan)
    plans = list(optimized.plans.values())
    optimized.save(args.output, portable=args.portable)
    if args.plan_out is not None:
        save_plans(plans, args.plan_out)
    if args.report is not None:
        optimized.report(args.report)
    texts = json.loads(plans_to_json(plans))
    what = {"plans": texts["plans"]} if len(plans) > 1 else {"plan": texts}
    data = {"output": str(args.output), "runs": optimized.runs, **what}
    print_result(args, data, short_report(plans, args.output, args.plan).removesuffix("\n"))
    if args.timings:
        print(f"optimize took {timings_text(optimized.timings)}", file=sys.stderr)
    return end_code(optimized.is_interrupted, f"{args.output} runs the costs measured so far")


# ---- --training ----------------------------------------------------------------------------------


def _plan_training(args: argparse.Namespace) -> int:
    """Plans a training step, prints the plan, and writes it to a file if one is given."""
    for flag, value in (
        ("-o", args.output), ("--shapes", args.shapes), ("--portable", args.portable),
        ("--timings", args.timings),
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
    model = trained_model(args, args.model)
    arguments = tuning_arguments(args) | {"overrides": _overrides(args.override)}
    plan = None if args.plan is None else TrainingPlan.load(args.plan)
    planned = optimize_training(model, random_inputs(model, args.input), plan=plan, **arguments)
    if args.plan_out is not None:
        planned.plan.save(args.plan_out)
    if args.report is not None:
        planned.report(args.report)
    texts = [json.loads(plans_to_json([region])) for region in planned.plan.regions]
    print_result(args, {"runs": planned.runs, "regions": texts}, planned.plan)
    return end_code(planned.is_interrupted, "the plan is of the costs measured so far")


def trained_model(args: argparse.Namespace, name: str) -> nn.Module:
    """Loads a model that can be trained, in train mode."""
    model = loaded(args, name)
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
