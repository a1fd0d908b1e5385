# SPDX-License-Identifier: BSD-3-Clause
"""optimize's arguments beside the model and its inputs, and which values they may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.plan import Plan
from torchalgo.progress import Event

MODES = ("tune", "predict")


@dataclass(frozen=True)
class Options:
    """The arguments as one value; optimize tells their meaning."""

    overrides: Mapping[str, str] | None = None
    plan: Plan | None = None
    strict: bool = False
    training: bool = False
    objective: str = "latency"
    mode: str = "tune"
    budget_s: float | None = None
    cost_db: str | Path | Literal[False] | None = None
    workspace_limit_bytes: int = 1 << 30
    weight_limit_bytes: int | None = None
    max_rel_error: float = 1e-5
    progress: bool | Callable[[Event], None] = True


def check_options(options: Options) -> None:
    """Raises Error for what this version does not do, naming what it does."""
    only: dict[str, object] = {
        "training": False,
        "objective": "latency",
    }
    for name, possible in only.items():
        if getattr(options, name) != possible:
            raise Error(
                f"optimize: {name}={getattr(options, name)!r} is not possible in torchalgo"
                f" {_C.version}, which has {name}={possible!r} only"
            )
    if options.mode not in MODES:
        raise Error(
            f"optimize: mode={options.mode!r}, expected one of {', '.join(map(repr, MODES))}"
        )
    if options.mode == "predict" and options.cost_db is False:
        raise Error(
            'optimize: mode="predict" learns from the database of costs, expected a path or None'
            " (the user's own) as cost_db, got False"
        )
    if options.plan is not None and options.overrides:
        raise Error(
            "optimize: plan and overrides exclude each other; use"
            " optimize(model, x, plan=plan.with_overrides(...))"
        )
    is_path = isinstance(options.cost_db, (str, Path))
    if not is_path and options.cost_db is not None and options.cost_db is not False:
        raise Error(
            f"optimize: cost_db={options.cost_db!r}, expected a path, None (the user's own"
            " database) or False (none)"
        )
    if options.plan is not None and not isinstance(options.plan, Plan):
        raise Error(
            f"optimize: plan is {type(options.plan).__name__}, expected torchalgo.Plan, as"
            " torchalgo.load_plan(path) returns it"
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
        raise Error(f"optimize: budget_s={options.budget_s!r}, expected seconds above 0, or None")
    for name in ("workspace_limit_bytes", "weight_limit_bytes"):
        if (getattr(options, name) or 0) < 0:
            raise Error(f"optimize: {name}={getattr(options, name)!r}, expected 0 or more")
