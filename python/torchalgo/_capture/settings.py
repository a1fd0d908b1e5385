# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of optimize beside the model and its inputs, and the check of their values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from torchalgo._base.f32_precision import cpu_precisions
from torchalgo._base.progress import Event, Progress
from torchalgo._C import Error
from torchalgo._capture.freeze import device_of
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.shapes import plan_for
from torchalgo._ir.choices import near
from torchalgo._ir.costs import MAX_ERROR
from torchalgo._ir.overrides import names_type
from torchalgo._ir.plan import OBJECTIVES, Objective, Plan

# The arguments of optimize beside the model, its inputs and the settings.
OF_OPTIMIZE = (
    "example_kwargs", "shapes", "overrides", "plan", "budget_s", "objective", "max_error",
    "validation",
)  # fmt: skip

Mode = Literal["tune", "predict"]
Plans = Sequence[Plan] | Mapping[str, Plan]  # for several shapes, such as the result of load_plans


def plans_of(plan: Plan | Plans | None) -> list[Plan]:
    """Returns one plan or several plans as a list; an empty list for None."""
    if plan is None:
        return []
    if isinstance(plan, Mapping):
        return list(plan.values())
    is_many = isinstance(plan, Sequence) and not isinstance(plan, (str, bytes))
    return list(plan) if is_many else [plan]  # type: ignore[arg-type,list-item]


# These options say how a plan is made. A call that gives a plan must not set them.
OF_TUNING = (
    "objective", "mode", "budget_s", "fresh", "weight_limit_bytes", "memory_limit_bytes",
    "own_kernels",
)  # fmt: skip


# A layer in bf16 or with weights in f16 errs by 2e-4 to 4e-3. With a smaller bound of the outputs,
# few layers could have such types, so none is measured.
LEAST_COARSE_ERROR = 1e-3
# The bound if the caller has allowed bf16 in another way, and gives none.
BF16_ERROR = 1e-2


def allows_coarse_types(max_error: float) -> bool:
    """Returns True if layers may store tensors or weights in coarser types than the model's."""
    return max_error >= LEAST_COARSE_ERROR


def default_error(model: object) -> float:
    """Returns max_error for a call of optimize that gives none."""
    is_allowed = _is_on_cpu(model) and "bf16" in cpu_precisions()
    return BF16_ERROR if is_allowed or in_autocast(model) else MAX_ERROR


def in_autocast(model: object) -> bool:
    """Returns True inside of torch.autocast in bf16, for a model on the CPU."""
    return cpu_autocasts_to_bf16() and _is_on_cpu(model)


def cpu_autocasts_to_bf16() -> bool:
    """Returns True inside of torch.autocast("cpu", dtype=torch.bfloat16)."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def _is_on_cpu(model: object) -> bool:
    return not isinstance(model, nn.Module) or device_of(model, ()).type == "cpu"


_FLAGS = ("strict", "run_untimed", "fresh", "runtime_compiled", "all_knobs", "own_kernels")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The rare options of optimize, optimize_training and torchalgo.tune.tune.

    The command line has a flag for each field. The first sentence on the field is the flag's help.

        settings = torchalgo.Settings(cost_db="costs.db", weight_limit_bytes=100_000_000)
        fast = torchalgo.optimize(model, x, settings=settings)

    Args:
        mode: "tune" measures the candidates that the plan uses; "predict" measures none, and
            predicts the costs that the database lacks from those that it has. See
            docs/predicting.md. In both modes, the chosen primitives are checked against f64, the
            outputs are compared with the model's, and the plan is timed against PyTorch.
        strict: fail if a primitive of the plan cannot run here. False: PyTorch's own algorithm runs
            instead.
        run_untimed: run the plan even if it was not timed against PyTorch, because the budget was
            over or Ctrl-C was pressed. False: the frozen model runs then, and `plan.guard` says
            why. In optimize_training, the plan runs and is not timed at all.
        cost_db: the cost database to read and to append to, by default the user's own, in
            `$TORCHALGO_CACHE_DIR` or the XDG cache. None: the default. False: no database. See
            docs/database.md.
        fresh: ignore costs, checks and times that the database has for this model, device and
            environment; measure them again and replace them there.
        workspace_limit_bytes: exclude primitives that need more bytes of workspace, by default more
            than 1 GiB. Workspace is memory for one call, freed at its end. So a plan's peak is the
            largest workspace of its primitives. With several plans, the limit holds for each.
        runtime_compiled: on a GPU, also measure cuDNN's engines that are compiled when they first
            run, which takes seconds for each. Only these join SiLU or GELU with a convolution.
        all_knobs: on a GPU, also measure the knobs of cuDNN's engines that its heuristics do not
            propose first, which takes several times as long, and gains about 3 %.
        weight_limit_bytes: the most bytes of all packed weights together. Packed weights are copies
            in the order in which a primitive reads them; the model's own weights are not counted.
            The plan is the cheapest one that keeps the limit. None: no limit. With several plans,
            the limit holds for each.
        memory_limit_bytes: with own_kernels, the most bytes that the plan needs as a C++ program:
            tensors between the layers, workspaces and packed weights. Not counted: inputs, outputs,
            the code. The plan is the fastest one that keeps the limit. In training, the most
            bytes that the forward pass keeps for the gradients. If the fastest plan keeps more,
            results of batch norms are computed again in the backward pass, which takes time. If no
            plan keeps the limit, an error tells how much is needed. None: no limit.
        max_componentwise_error: the largest error of a single result of a convolution, relative to
            the sum of the sizes of its terms. It is found on an image with pixels that are 1e4
            times as large as the others. The bound restricts Winograd, FFT and Strassen, which
            spoil results that do not read such a pixel. None: no limit. See docs/limits.md, "Large
            values".
        own_kernels: True plans with torchalgo's own CPU kernels only, and runs that plan also if it
            is slower than PyTorch. `torchalgo.emit` can write such a plan as C++. What the limit
            costs is in `plan.comparisons["without_limits"]`.
        progress: True shows progress on stderr. False shows nothing. A function is called with each
            progress Event.

    Raises: torchalgo.Error if a value is invalid, or if two of them exclude each other.
    """

    mode: Mode = "tune"
    strict: bool = False
    run_untimed: bool = False
    cost_db: str | Path | Literal[False] | None = None
    fresh: bool = False
    workspace_limit_bytes: int = 1 << 30
    runtime_compiled: bool = False
    all_knobs: bool = False
    weight_limit_bytes: int | None = None
    memory_limit_bytes: int | None = None
    max_componentwise_error: float | None = None
    own_kernels: bool = False
    progress: bool | Callable[[Event], None] | Progress = True

    def __post_init__(self) -> None:
        check = functools.partial(_check_value, "Settings", self)
        _check_word("Settings", "mode", self.mode, get_args(Mode))
        for name in _FLAGS:
            check(name, isinstance(getattr(self, name), bool), "True or False")
        is_path = isinstance(self.cost_db, (str, Path)) or self.cost_db is None or not self.cost_db
        check("cost_db", is_path, "a path, None (the user's own database) or False (none)")
        for name in ("workspace_limit_bytes", "weight_limit_bytes", "memory_limit_bytes"):
            value = getattr(self, name)
            may_lack = name != "workspace_limit_bytes" and value is None
            is_size = may_lack or (type(value) is int and value >= 0)
            check(name, is_size, "a number of bytes, 0 or more")
        most = self.max_componentwise_error
        is_above_0 = most is None or (_is_number(most) and most > 0)
        check("max_componentwise_error", is_above_0, "a number above 0, or None")
        is_shown = isinstance(self.progress, (bool, Progress)) or callable(self.progress)
        expected = "True, False, or a function that is called with each progress Event"
        check("progress", is_shown, expected)
        if self.mode == "predict" and self.cost_db is False:
            raise Error(
                'TA1002 Settings: mode="predict" learns from the database of costs and'
                " cost_db=False turns it off: give cost_db a path, or None (the user's own)"
            )
        if self.mode == "predict" and self.fresh:
            raise Error(
                'TA1002 Settings: fresh=True reads nothing from the database, and mode="predict"'
                ' takes all its costs from it: use mode="tune" to measure again'
            )


# A replaced __init__ has its own signature, so that help() and type checkers see the fields.
Settings.__init__ = known_keywords(  # type: ignore[method-assign]
    dict.fromkeys(OF_OPTIMIZE, "is an argument of torchalgo.optimize, not of Settings")
)(Settings.__init__)

# For functions that take settings: where their fields belong.
IN_SETTINGS = {
    name: f"is a field of Settings: pass settings=torchalgo.Settings({name}=...)"
    for name in Settings.__dataclass_fields__
}


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """All arguments of optimize or optimize_training beside the model and its inputs.

    Their docstrings describe them.
    """

    overrides: Mapping[str, Any] | None = None
    plan: Any = None  # Plan, Plans or, if training, TrainingPlan
    training: bool = False  # True: of optimize_training
    budget_s: float | None = None
    objective: Objective = "latency"
    max_error: float = MAX_ERROR
    autocast: bool = False  # for calls inside of torch.autocast in bf16

    @property
    def has_coarse_types(self) -> bool:
        """True if layers may store their tensors or weights in coarser types than the model's."""
        return allows_coarse_types(self.max_error)

    @property
    def names_types(self) -> bool:
        """True if an override names a primitive in a type, so that its layer may have it."""
        is_mapping = isinstance(self.overrides, Mapping)
        return is_mapping and any(map(names_type, (self.overrides or {}).values()))

    @staticmethod
    def of(settings: Settings | None, **arguments: Any) -> Options:
        """Returns the options of a call with `settings` and these other arguments.

        Raises: torchalgo.Error if an argument, or a combination, is not possible.
        """
        settings = Settings() if settings is None else settings
        if not isinstance(settings, Settings):
            caller = _caller(bool(arguments.get("training")))
            raise Error(
                f"TA1001 {caller}: settings is {type(settings).__name__}, expected"
                " torchalgo.Settings(...)"
            )
        own = {name: getattr(settings, name) for name in Settings.__dataclass_fields__}
        options = Options(**own, **arguments)
        _check(options)
        return options


def _check_value(where: str, options: Settings, name: str, is_right: bool, expected: str) -> None:
    if not is_right:
        raise Error(f"TA1001 {where}: {name}={getattr(options, name)!r}, expected {expected}")


def _check_word(where: str, name: str, word: object, words: Sequence[str]) -> None:
    if word not in words:
        expected = ", ".join(map(repr, words))
        raise Error(
            f"TA1001 {where}: {name}={word!r}, expected one of {expected}{near(str(word), words)}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _caller(is_training: bool) -> str:
    return "optimize_training" if is_training else "optimize"


def _check_memory_limit(options: Options) -> None:
    given = f"memory_limit_bytes={options.memory_limit_bytes}"
    if not options.own_kernels:
        raise Error(
            f"TA1003 optimize: {given} limits the memory of a C++ program: add own_kernels=True. To"
            " limit what training keeps for the gradients, use optimize_training"
        )
    if options.weight_limit_bytes is not None:
        raise Error(
            f"TA1003 optimize: {given} and weight_limit_bytes={options.weight_limit_bytes} both"
            " limit packed weights: leave one out"
        )


def _check(options: Options) -> None:
    caller = _caller(options.training)
    if not options.training and options.memory_limit_bytes is not None:
        _check_memory_limit(options)
    _check_word("optimize", "objective", options.objective, OBJECTIVES)
    if options.mode == "predict" and options.objective != "latency":
        raise Error(
            'TA1002 optimize: mode="predict" predicts times only, got'
            f' objective={options.objective!r}: use objective="latency" or mode="tune"'
        )
    if options.plan is not None and options.overrides:
        advice = (
            "" if options.training else ": use optimize(model, x, plan=plan.with_overrides(...))"
        )
        raise Error(f"TA1002 {caller}: got both plan and overrides, expected one of them{advice}")
    for field in dataclasses.fields(options) if options.plan is not None else ():
        value = getattr(options, field.name)
        if field.name in OF_TUNING and value != field.default:
            raise Error(
                f"TA1002 {caller}: plan= is applied as it is, so {field.name}={value!r} has no"
                f" effect: leave {field.name} out, or leave plan= out to make a new plan"
            )
    is_error = _is_number(options.max_error) and 0 < options.max_error < 1
    expected = "a number between 0 and 1, such as 1e-5, or 1e-2 to allow layers in bf16"
    _check_value(caller, options, "max_error", is_error, expected)
    if not options.training and options.plan is not None:
        plans = plans_of(options.plan)
        other = next((type(p).__name__ for p in plans if not isinstance(p, Plan)), "")
        if other or not plans:
            raise Error(
                f"TA1004 optimize: plan {f'is {other}' if other else 'holds no plan'}, expected a"
                " torchalgo.Plan from torchalgo.load_plan(path), or several from"
                " torchalgo.load_plans(path)"
            )
    seconds = options.budget_s
    is_time = seconds is None or (_is_number(seconds) and seconds > 0)
    expected = 'a number of seconds above 0, None (90 s), or float("inf") (no limit)'
    _check_value(caller, options, "budget_s", is_time, expected)


def options_of_each(options: Options, input_sets: Sequence[tuple[Any, ...]]) -> list[Options]:
    """Returns the options for each set of inputs, with the plan that was made for its shapes.

    Raises: torchalgo.Error if there is no plan for a set.
    """
    if options.plan is None or (isinstance(options.plan, Plan) and len(input_sets) == 1):
        return [options] * len(input_sets)
    plans = plans_of(options.plan)
    return [dataclasses.replace(options, plan=plan_for(plans, inputs)) for inputs in input_sets]
