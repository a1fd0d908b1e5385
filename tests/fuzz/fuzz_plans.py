# SPDX-License-Identifier: BSD-3-Clause
"""Mutated plan files: refused with torchalgo.Error, or read, printed and written again.

One in 2,000 of the plans that are read is applied: it is refused or computes what the model does.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from typing import Any

import torch

import isolated
import torchalgo
from campaign import FindingError, main
from mutate import VALUES, mutated_bytes, paths_of, with_value
from small_model import PLAN, check_outputs, model
from torchalgo import _C
from torchalgo._ir.plan import Plan

BASE = json.loads(PLAN.read_text())
PATHS = list(paths_of(BASE))
PRIMITIVES = (
    *sorted({name for name, _ in _C.algorithms()}), "", "../../x", "cpu.fft.t999999",
    "cpu.winograd_f4x4_3x3.t0", "cpu.winograd_f4x4_3x3.t-1", "cpu.winograd_f4x4_3x3.t1000000007",
    "cpu.winograd_f4x4_3x3.t28", "cpu.conv1x1.b4",
)  # fmt: skip
APPLIED = 1 / 2000  # of the plans that are read: tuning takes a thousand times as long as reading
LAYOUTS = ("nchw", "nhwc", "nChw16c", "nChw8c", "x", "")
NAMES = (*(node["name"] for node in BASE["nodes"]), "", "zzz")
PROBLEMS = (*(node["problem"] for node in BASE["nodes"]), "", "x" * 1000)
FIELDS: dict[str, tuple[Any, ...]] = {
    "primitive": PRIMITIVES, "src": LAYOUTS, "dst": LAYOUTS, "absorbed_by": NAMES, "name": NAMES,
    "problem": PROBLEMS, "value": NAMES, "producer": NAMES,
    "ticks": (-1, 0, 2**63, 2**64, 1e300, "1", None),
}  # fmt: skip


def mutated_plan(rng: random.Random) -> bytes:
    data = copy.deepcopy(BASE)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        lists = [data["nodes"], data["transforms"]]
        kind, parts = rng.random(), rng.choices(lists, (7, 3))[0]
        if kind < 0.6 and parts:
            part = rng.choice(parts)
            name = rng.choice(list(FIELDS))
            if name in part:
                part[name] = rng.choice(FIELDS[name])
        elif kind < 0.7:
            parts.append(copy.deepcopy(rng.choice(lists[0] + lists[1] or [{}])))
        elif kind < 0.75 and parts:
            parts.pop(rng.randrange(len(parts)))
        elif kind < 0.8:
            rng.shuffle(parts)
        else:
            return json.dumps(with_value(BASE, rng.choice(PATHS), rng.choice(VALUES))).encode()
    text = json.dumps(data).encode()
    if rng.random() < 0.01:
        return b"[" * 100_000
    return mutated_bytes(rng, text) if rng.random() < 0.15 else text


def apply(plan: Plan) -> str:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fast = torchalgo.optimize(
                model(),
                torch.rand(1, 3, 24, 24),
                plan=plan,
                settings=torchalgo.Settings(progress=False, cost_db=False),
            )
        except torchalgo.Error:
            return "not applied"
    check_outputs(fast, (torchalgo.Error,))
    return "applied"


def plans(seed: int) -> list[str]:
    rng = random.Random(seed)
    text = mutated_plan(rng)
    try:
        plan = Plan.from_json(text)
    except torchalgo.Error:
        return ["refused"]
    if not str(plan) or Plan.from_json(plan.to_json()) != plan:
        raise FindingError("the plan is another one when written and read again")
    return [apply(plan) if rng.random() < APPLIED else "read"]


FUZZERS = {"plans": plans}

if __name__ == "__main__":
    main(__doc__, FUZZERS, isolated.results)
