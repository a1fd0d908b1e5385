# SPDX-License-Identifier: BSD-3-Clause
"""Says what a plan gains, what is proven about it, and other facts that a reader needs first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchalgo import Error, check_plan
from torchalgo._ir.plan import GuardVerdict, Plan, format_bytes
from torchalgo._ir.plan.text import error_shares, limit_texts, type_counts
from torchalgo._ir.plan.units import gap_of, in_ms
from torchalgo._report.subject import is_of_training
from torchalgo._report.texts import baseline_text, speed_line

NOT_CHECKED = (
    "This report did not check the proof, because the plan has none with it. Save the plan with"
    " plan.with_proof().save(path) in Python; then `torchalgo check` checks it."
)

UNPROVEN = (
    "not checked: everything else that the plan says, such as times of the whole model, errors and"
    " the machine"
)
FAR_APART = 1.3  # the measured time, divided by the predicted one


@dataclass(frozen=True)
class Speed:
    """The measured speed of what runs, and the picture of before and after if it was timed."""

    headline: str
    sentence: str
    before: Mapping[str, Any] | None = None  # a label, a text, and a length in percent
    after: Mapping[str, Any] | None = None
    low: float = 0.0  # ends of the interval of `after`, in percent
    high: float = 0.0
    interval: str = ""


@dataclass(frozen=True)
class Proof:
    """Sentences about what is proven of a plan, and the lines that `check_plan` has printed."""

    headline: str
    sentences: tuple[str, ...]
    checked: tuple[str, ...]
    is_false: bool = False


def speed_of(plan: Plan) -> Speed:
    """Returns the guard's verdict. Without one, the speed is not known."""
    guard = plan.guard
    if guard is None:
        what, how = "the whole model", "optimize(model, inputs)"
        if is_of_training(plan):
            what, how = "whole steps", "optimize_training(model, inputs)"
        why = f"There are no times of {what}. torchalgo.{how} takes them."
        return Speed("Not compared with PyTorch", why)
    if guard.rounds and guard.plan_uj is None:
        return _timed(guard)
    return Speed(_headline(guard), _sentence(speed_line(guard)))


def _timed(guard: GuardVerdict) -> Speed:
    longest = max(guard.baseline_us, guard.plan_us, guard.baseline_us * guard.high)
    unit = 100 / longest if longest else 0.0
    interval = f"{1 / guard.high:.2f}x to {1 / guard.low:.2f}x"
    name = "the best plan in one layout" if guard.runs == "single_layout" else "the plan"
    return Speed(
        headline=_headline(guard),
        sentence=_sentence(speed_line(guard)),
        before={
            "label": f"before: {baseline_text(guard)}",
            "text": in_ms(guard.baseline_us), "percent": unit * guard.baseline_us,
        },
        after={
            "label": f"after: {name}",
            "text": in_ms(guard.plan_us), "percent": unit * guard.plan_us,
        },
        low=unit * guard.baseline_us * guard.low,
        high=unit * guard.baseline_us * guard.high,
        interval=f"95 % interval of the speed-up: {interval}, {guard.rounds} paired rounds",
    )  # fmt: skip


def _headline(guard: GuardVerdict) -> str:
    if not guard.rounds:
        return "Not compared with PyTorch"
    if guard.runs == "baseline":
        return f"No gain: {baseline_text(guard)} runs"
    if guard.verdict != "faster":
        return f"No clear difference from {guard.baseline}"
    if guard.plan_uj is not None:
        return f"{1 - guard.ratio:.0%} less {guard.objective} than PyTorch"
    return f"{1 / guard.ratio:.2f}x as fast as PyTorch"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


# ---- proof ---------------------------------------------------------------------------------------


def proof_of(plan: Plan) -> Proof:
    """Returns what is proven. A plan with its proof, or with its costs, is checked here."""
    if not plan.nodes:
        return Proof("Nothing to choose", ("The model has no operations that are planned.",), ())
    sentences = [
        "The plan's cost is a sum of measured times of single operations and layout changes."
        " The proof is about this sum, not about the time of the whole model.",
        *_beside_measured(plan),
    ]
    if plan.unmeasured:
        sentences.append("Some of these times were not measured but predicted.")
    lines, is_false = _check(plan)
    return Proof(_status(plan), tuple(sentences), lines, is_false)


def _beside_measured(plan: Plan) -> list[str]:
    """Returns a sentence on the predicted time and the measured one, if there is one."""
    if plan.guard is None or not plan.guard.rounds or not plan.cost_us:
        return []
    whole = in_ms(plan.guard.plan_us)
    if plan.guard.is_of_step:
        return [f"The sum is {in_ms(plan.cost_us)}, and a step of the whole model took {whole}."]
    left_us = sum(op.measured_us or 0.0 for op in plan.left_alone)
    ratio = plan.guard.plan_us / (plan.cost_us + left_us)
    of_torch = f", PyTorch's part takes {in_ms(left_us)}" if left_us > 0 else ""
    text = (
        f"The sum is {in_ms(plan.cost_us)}{of_torch}, and the whole model took"
        f" {whole} ({ratio:.2f}x)."
    )
    if ratio > FAR_APART:
        text += " They are far apart: other programs may have run during one of the measurements."
    return [text]


def _status(plan: Plan) -> str:
    gap = gap_of(plan)
    if plan.unproven:
        return f"Not proven optimal: {plan.unproven}, and there is no certificate for such plans"
    if plan.status == "optimal":
        return f"Proven optimal: no other choice has a lower sum of these costs (gap {gap:.2g} %)"
    return f"Not proven optimal: at most {gap:.2f} % above the optimum of these costs"


def _check(plan: Plan) -> tuple[tuple[str, ...], bool]:
    """Returns the lines of check_plan, and True if the check failed."""
    try:
        proven = plan if plan.proof is not None or plan.prove is None else plan.with_proof()
    except Error as problem:
        return (f"There is no certificate to check: {problem}",), False
    if proven.proof is None:
        return (NOT_CHECKED,), False
    try:
        *lines, _ = str(check_plan(proven)).splitlines()
        return (*lines, UNPROVEN), False
    except Error as problem:
        return (f"The check of the proof FAILS: {problem}",), True


# ---- other facts ---------------------------------------------------------------------------------


def facts_lines(plan: Plan) -> list[tuple[str, str]]:
    """Returns names and texts of the facts about a plan; "not known" where a file lacks them."""
    lines = [("predicted", in_ms(plan.cost_us)), ("tuning", plan.method or "not known")]
    lines.append(("tied layers", f"{plan.ties}: the runner-up may be as good, within noise"))
    lines.append(("packed weights", _bytes(plan.weight_bytes)))
    lines.append(("model's own weights", _bytes(plan.plain_weight_bytes)))
    lines.append(("largest workspace", _bytes(plan.workspace_bytes)))
    return lines + [(f"limit of {name}", text) for name, text in limit_texts(plan).items()]


def _bytes(count: int | None) -> str:
    return "not known" if count is None else format_bytes(count)


# ---- types and errors ----------------------------------------------------------------------------


def errors_lines(plan: Plan) -> list[tuple[str, str]]:
    """Returns names and texts of the facts about types and errors, as far as they are known."""
    compared = "compared with the given model"
    known = [
        ("error of the outputs", plan.rel_error, "relative L2 {:.1e}, " + compared),
        ("worst single output", plan.worst_error, "{:.1e} of its size and the median size"),
        ("error before planning", plan.capture_error, "relative L2 {:.1e}"),
        ("predicted error", plan.predicted_error, "relative L2 {:.1e}"),
        ("largest error that is allowed", plan.max_error, "relative L2 {:.1e}"),
        ("validation inputs", plan.validation_error, "relative L2 at most {:.1e}"),
    ]
    lines = [("types of the calls", type_counts(plan))]
    lines += [(name, text.format(error)) for name, error, text in known if error is not None]
    if plan.rel_error is None:
        lines.append(("error of the outputs", f"not {compared}"))
    if shares := error_shares(plan):
        lines.append(("largest errors of the outputs by", shares))
    return lines
