# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of optimize beside the model and its inputs, and the check of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchalgo import _C
from torchalgo._base.progress import Event, Progress
from torchalgo._C import Error
from torchalgo._capture.shapes import plan_for
from torchalgo._ir.choices import near
from torchalgo._ir.plan import OBJECTIVES, Plan

Plans = Sequence[Plan] | Mapping[str, Plan]  # for several shapes, such as the result of load_plans


def plans_of(plan: Plan | Plans | None) -> list[Plan]:
    """Returns one plan or several plans as a list; an empty list for None."""
    if plan is None:
        return []
    if isinstance(plan, Mapping):
        return list(plan.values())
    is_many = isinstance(plan, Sequence) and not isinstance(plan, (str, bytes))
    return list(plan) if is_many else [plan]  # type: ignore[arg-type,list-item]


MODES = ("tune", "predict")
# The arguments that say how a plan is made. A call with a plan must not set them.
OF_TUNING = ("objective", "mode", "budget_s", "fresh", "weight_limit_bytes")


@dataclass(frozen=True)
class Options:
    """The arguments of optimize as one value. Its docstring describes them."""

    overrides: Mapping[str, str] | None = None
    plan: Plan | Plans | None = None
    strict: bool = False
    training: bool = False
    objective: str = "latency"
    mode: str = "tune"
    budget_s: float | None = None
    run_untimed: bool = False
    cost_db: str | Path | Literal[False] | None = None
    fresh: bool = False
    workspace_limit_bytes: int = 1 << 30
    weight_limit_bytes: int | None = None
    max_rel_error: float = 1e-5
    progress: bool | Callable[[Event], None] | Progress = True


def check_options(options: Options) -> None:
    """Raises torchalgo.Error if an argument, or a combination, is not possible in this version."""
    only: dict[str, object] = {
        "training": False,
    }
    for name, possible in only.items():
        if getattr(options, name) != possible:
            raise Error(
                f"optimize: {name}={getattr(options, name)!r} is not possible in torchalgo"
                f" {_C.version}, which has {name}={possible!r} only"
            )
    for name, words in (("objective", OBJECTIVES), ("mode", MODES)):
        if (word := getattr(options, name)) not in words:
            expected = ", ".join(map(repr, words))
            raise Error(
                f"optimize: {name}={word!r}, expected one of {expected}{near(str(word), words)}"
            )
    if options.mode == "predict" and options.cost_db is False:
        raise Error(
            'optimize: mode="predict" learns from the database of costs, expected a path or None'
            " (the user's own) as cost_db, got False"
        )
    if options.mode == "predict" and options.fresh:
        raise Error(
            'optimize: fresh=True reads nothing from the database, and mode="predict" reads all'
            ' from it: use mode="tune" to measure again'
        )
    if options.mode == "predict" and options.objective != "latency":
        raise Error(
            f'optimize: mode="predict" is for objective="latency", got {options.objective!r}:'
            " energies are not predicted"
        )
    if options.plan is not None and options.overrides:
        raise Error(
            "optimize: plan and overrides exclude each other; use"
            " optimize(model, x, plan=plan.with_overrides(...))"
        )
    for field in dataclasses.fields(options) if options.plan is not None else ():
        value = getattr(options, field.name)
        if field.name in OF_TUNING and value != field.default:
            raise Error(
                f"optimize: plan= is applied as it is, so {field.name}={value!r} has no effect:"
                " leave it out, or leave plan= out to make a new plan"
            )
    is_path = isinstance(options.cost_db, (str, Path))
    if not is_path and options.cost_db is not None and options.cost_db is not False:
        raise Error(
            f"optimize: cost_db={options.cost_db!r}, expected a path, None (the user's own"
            " database) or False (none)"
        )
    if not isinstance(options.fresh, bool):
        raise Error(f"optimize: fresh={options.fresh!r}, expected True or False")
    for plan in plans_of(options.plan):
        if not isinstance(plan, Plan):
            raise Error(
                f"optimize: plan is {type(plan).__name__}, expected torchalgo.Plan, as"
                " torchalgo.load_plan(path) returns it, or several, as torchalgo.load_plans(path)"
            )
    for name in ("budget_s", "max_rel_error", "workspace_limit_bytes", "weight_limit_bytes"):
        value = getattr(options, name)
        kinds = int if name.endswith("_bytes") else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        may_lack = name in ("budget_s", "weight_limit_bytes")
        if not is_number and not (may_lack and value is None):
            raise Error(f"optimize: {name}={value!r}, expected a number")
    if not options.max_rel_error > 0:
        raise Error(f"optimize: max_rel_error={options.max_rel_error!r}, expected a number above 0")
    if options.budget_s is not None and not options.budget_s > 0:
        raise Error(
            f"optimize: budget_s={options.budget_s!r}, expected seconds above 0, None (90 s), or"
            ' float("inf") (without end)'
        )
    if not isinstance(options.run_untimed, bool):
        raise Error(f"optimize: run_untimed={options.run_untimed!r}, expected True or False")
    for name in ("workspace_limit_bytes", "weight_limit_bytes"):
        if (getattr(options, name) or 0) < 0:
            raise Error(f"optimize: {name}={getattr(options, name)!r}, expected 0 or more")


def options_of_each(options: Options, input_sets: Sequence[tuple[Any, ...]]) -> list[Options]:
    """Returns the options for each set of inputs, with the plan that was made for its shapes.

    Raises: torchalgo.Error if there is no plan for a set.
    """
    if options.plan is None or (isinstance(options.plan, Plan) and len(input_sets) == 1):
        return [options] * len(input_sets)
    plans = plans_of(options.plan)
    return [dataclasses.replace(options, plan=plan_for(plans, inputs)) for inputs in input_sets]
