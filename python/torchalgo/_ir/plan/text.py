# SPDX-License-Identifier: BSD-3-Clause
"""The text of a plan: what print(plan) shows, and single lines of it."""

from __future__ import annotations

import collections
import re
import textwrap
import typing
from collections.abc import Iterator, Sequence

from .parts import OF_OTHERS, GuardVerdict, LeftAlone, PlanNode, PlanTransform, Quarantined
from .text_table import text_table
from .units import (
    cost_of,
    format_bytes,
    format_value,
    gap_of,
    in_mj,
    in_ms,
    regret_of,
    unit_of,
    value_of,
)

if typing.TYPE_CHECKING:
    from .plan import Plan

MAX_COLUMNS = 120
LEFT_SHARE = 0.01  # of a call; the outcome does not tell of less time that is left to PyTorch
MOST_SHARES = 3  # the most calls that are listed with the errors that they cause
MOST_LEFT = 5  # the most ops of those left to PyTorch that are listed with their times
_HEAD = ("layer", "primitive", "layout", "fused", "{unit}", "runner-up", "regret {unit}")
_NUMERIC = (4, 6)
# Least widths of the columns that are cut, by column. The second dict applies if the first is not
# enough.
_SHRINK = ({0: 22, 1: 26, 5: 20, 3: 10}, {0: 12, 1: 18, 5: 10, 3: 6})


def plan_text(plan: Plan) -> str:
    """Returns the table of a plan's layers, and the lines of the facts about it."""
    return "\n".join([*_table(plan), "", *map(_wrapped, _summary(plan))])


def plan_line(plan: Plan) -> str:
    """Returns the facts about a plan that tell it from others, in a few words."""
    inputs = ", ".join("x".join(map(str, each.shape)) for each in plan.inputs)
    return f"{len(plan.nodes)} operations for {inputs}, {_predicted(plan)} predicted, {plan.status}"


def _predicted(plan: Plan) -> str:
    """Formats the plan's predicted time, and its energy if the objective counts energy."""
    if plan.energy is None:
        return in_ms(plan.cost_us)
    watts = f" ({plan.energy.cost_uj / plan.cost_us:.3g} W)" if plan.cost_us else ""
    return f"{in_mj(plan.energy.cost_uj)} in {in_ms(plan.cost_us)}{watts} by {plan.energy.meter}"


def layouts_text(src: str, dst: str) -> str:
    return src if src == dst else f"{src}>{dst}"


def runner_up_text(node: PlanNode) -> str:
    """Returns the runner-up, such as "aten.conv nchw>nhwc", with one layout if both are equal."""
    name, _, pair = node.runner_up.partition(" ")
    src, arrow, dst = pair.partition("->")
    return f"{name} {layouts_text(src, dst)}" if arrow else node.runner_up


def in_order(plan: Plan) -> Iterator[PlanNode | PlanTransform]:
    """Yields the nodes, and each layout change behind the node that makes its value.

    Layout changes of inputs come first, and those of values that PyTorch makes come last.
    """
    after: dict[str, list[PlanTransform]] = {}
    for transform in plan.transforms:
        after.setdefault(transform.producer, []).append(transform)
    yield from after.pop("", [])
    for node in plan.nodes:
        yield node
        yield from after.pop(node.name, [])
    for rest in after.values():
        yield from rest


def _fused(problem: str) -> str:
    """Returns the steps of a call after its first operation, such as "+bias+relu > 3x3+bias"."""
    _, *more = problem.split("_k") if problem.startswith("chain_") else ["", problem]
    parts = []
    for i, filters in enumerate(more):
        size, plus, ops = filters.partition("+")
        window = re.search(r"r(\d+)s(\d+)", size) if i else None
        parts.append((f" > {window[1]}x{window[2]}" if window else "") + plus + ops)
    return "".join(parts)


def _is_predicted(part: PlanNode | PlanTransform) -> bool:
    """Returns True if the time of a call was predicted, and not measured."""
    if isinstance(part, PlanTransform):
        return part.cost_source != "measured"
    return bool(part.primitive) and part.cost_source in ("bound", "model")


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    names = {"", *(node.name for node in plan.nodes)}
    for part in in_order(plan):
        cost, layouts = f"{cost_of(part, plan):.1f}", layouts_text(part.src, part.dst)
        if isinstance(part, PlanTransform):
            of = "" if part.producer in names else f" of {part.producer}"
            cost += "?" * _is_predicted(part)
            yield f"  > {part.dst}{of}", part.primitive, layouts, "", cost, "", ""
        elif part.primitive:
            more = regret_of(part, plan)
            regret = "" if more is None else f"{more:.1f}"
            cost += "?" * _is_predicted(part)
            rival = runner_up_text(part)
            yield part.name, part.primitive, layouts, _fused(part.problem), cost, rival, regret


def _table(plan: Plan) -> list[str]:
    rows = [tuple(title.format(unit=unit_of(plan)) for title in _HEAD), *_rows(plan)]
    head, *lines = text_table(rows, right=_NUMERIC, columns=MAX_COLUMNS, shrink=_SHRINK)
    return [head, "-" * max(map(len, [head, *lines])), *lines]


def _summary(plan: Plan) -> list[str]:
    convs = sum(
        n.problem.startswith(("fwd_", "bwd_data_", "bwd_filter_", "chain_")) for n in plan.nodes
    )
    fused = sum(bool(n.absorbed_by) for n in plan.nodes)
    lines = [
        f"{convs} convolutions, {len(plan.nodes) - convs} other planned nodes ({fused} absorbed),"
        f" {len(plan.transforms)} layout changes",
        _proof(plan),
        f"tuning: {plan.method}",
    ]
    if any(map(_is_predicted, in_order(plan))):
        lines.append("? marks a time that was predicted, not measured")
    if plan.weight_bytes is not None:
        lines.append(f"memory: {memory_text([plan])}")
    lines += [f"limit: {name} of {text}" for name, text in limit_texts(plan).items()]
    if plan.comparisons:
        lines.append("other plans at the same costs:")
        own = value_of(plan)
        for name, value in plan.comparisons.items():
            gain = f" ({value / own:.3f}x this plan)" if own else ""
            if value < 0.999 * own:  # they exceed a limit, or no time was left to check them
                gain += ", with candidates that this plan may not use"
            text = format_value(plan.objective, value)
            lines.append(f"  {name.replace('_', ' '):24} {text}{gain}")
    if plan.guard is not None:
        lines.append(guard_line(plan.guard))
    if plan.rel_error is not None:
        text = f"outputs: relative L2 error {plan.rel_error:.1e}, compared with the given model"
        if plan.predicted_error is not None and plan.max_error is not None:
            text += f" (predicted {plan.predicted_error:.1e}, at most {plan.max_error:.1e} allowed)"
        if plan.worst_error is not None:
            text += f"; worst single output {plan.worst_error:.1e}"
        if plan.capture_error is not None:
            text += f" ({plan.capture_error:.1e} before planning)"
        lines.append(text)
    if plan.validation_error is not None:
        lines.append(f"validation inputs: relative L2 error at most {plan.validation_error:.1e}")
    lines += _type_lines(plan)
    lines += _listed("quarantined", [(_candidate(q), q.reason) for q in plan.quarantined])
    lines += [f"note: {note}" for note in plan.notes]
    lines += _left_lines(plan)
    where = ", ".join(f"{key} {value}" for key, value in plan.environment.items())
    return [*lines, where] if where else lines


def coarse_type(node: PlanNode) -> str:
    """Returns the type of a call's tensors or packed weights if it is coarser than the model's."""
    found = re.search(r"\.w?(bf16|f16)\b", f"{node.src} {node.dst} {node.primitive}")
    return found[1] if found else ""


def _type_lines(plan: Plan) -> list[str]:
    """Tells how many calls have which types, and which of them err most in the outputs."""
    if plan.max_error is None:
        return []
    text, shares = type_counts(plan), error_shares(plan)
    return [f"types: {text}" + (f"; largest errors of the outputs by: {shares}" if shares else "")]


def type_counts(plan: Plan) -> str:
    """Returns how many calls have which types, such as "3 in bf16, 2 in the model's type"."""
    types = (coarse_type(node) or "the model's type" for node in plan.nodes if node.primitive)
    return ", ".join(f"{n} in {name}" for name, n in sorted(collections.Counter(types).items()))


def error_shares(plan: Plan) -> str:
    """Returns the calls that err most in the outputs, with these errors; "" if none is known."""
    worst = sorted(plan.nodes, key=lambda node: -(node.output_error or 0.0))[:MOST_SHARES]
    return ", ".join(f"{n.name} {n.output_error:.1e}" for n in worst if n.output_error)


def _wrapped(line: str) -> str:
    indent = " " * (4 if line.startswith(" ") else 2)
    return textwrap.fill(line, MAX_COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def _proof(plan: Plan) -> str:
    measured = ""
    if plan.guard is not None and plan.guard.rounds:
        measured = f", measured {in_ms(plan.guard.plan_us)}"
    ties = f"; {plan.ties} layer{'s' * (plan.ties != 1)} tied within noise"
    kind = "partly predicted" if plan.unmeasured else "measured"
    if plan.unmeasured == len(plan.nodes) + len(plan.transforms):
        kind = "predicted"  # nothing was measured
    if plan.unproven:
        found = "the best found for" if plan.status == "optimal" else _above(plan, "best bound of")
        head = f"not proven: {plan.unproven}; {found} these {kind}, additive costs"
    elif plan.status == "optimal":
        head = f"optimal for these {kind}, additive costs"
    else:
        head = f"feasible, {_above(plan, 'optimum of')} these costs"
    return f"{head}: predicted {_predicted(plan)}{measured}{ties}"


def _above(plan: Plan, what: str) -> str:
    return f"at most {gap_of(plan):.2f} % above the {what}"


def _left_time(plan: Plan, least: float = 0.0) -> str:
    """Returns the time of the ops that are left to PyTorch, beside that of the whole call.

    Returns "" if the ops or the call were not timed, or if the ops take no more than this part of
    the call. They are timed in the plan with the cheapest sum. The guard times the whole call.
    """
    call_us = plan.guard.plan_us if plan.guard is not None else 0.0
    left_us = sum(a.measured_us or 0.0 for a in plan.left_alone)
    if not call_us or left_us <= least * call_us:
        return ""
    return f"{in_ms(left_us)} of {in_ms(call_us)}"


def _left_lines(plan: Plan) -> list[str]:
    """Lists the ops that are left to PyTorch, the most expensive first if they were timed."""
    time = _left_time(plan)
    if not time:
        return _listed("left to PyTorch", [(a.name, _why(a)) for a in plan.left_alone])
    notes = [item for item in plan.left_alone if not item.name]
    ops = [item for item in plan.left_alone if item.name]
    ops.sort(key=lambda item: -(item.measured_us or 0.0))
    lines = [f"left to PyTorch: {time}", *(f"  the model: {item.note}" for item in notes)]
    lines += [f"  {item.name}: {_why(item)}" for item in ops[:MOST_LEFT]]
    return [*lines, f"  and {len(ops) - MOST_LEFT} more"] if len(ops) > MOST_LEFT else lines


def _why(item: LeftAlone) -> str:
    """Returns why an op is left to PyTorch, with its time and its line in the model if known."""
    time = "" if item.measured_us is None else f"{in_ms(item.measured_us)}, "
    return f"{time}{item.note}" + (f" ({item.source})" if item.source else "")


def memory_text(plans: Sequence[Plan]) -> str:
    """Returns a text on the memory of plans: the most of each kind that one of them needs."""

    def most(name: str) -> int | None:
        return max((n for n in (getattr(p, name) for p in plans) if n is not None), default=None)

    text = f"{format_bytes(most('weight_bytes') or 0)} of packed weights"
    if (own := most("plain_weight_bytes")) is not None:
        text += f" beside {format_bytes(own)} of the model's own"
    if (workspace := most("workspace_bytes")) is not None:
        text += f"; workspace of one primitive at most {format_bytes(workspace)}"
    if (program := most("memory_bytes")) is not None:
        text += f"; as a C++ program {program} bytes in all"
    return text


def limit_texts(plan: Plan) -> dict[str, str]:
    """Returns a text for each limit of a plan. Bytes are told exactly."""
    return {
        name: f"at most {limit:.0f}" if "bytes" in name else f"at most {limit:g}"
        for name, limit in plan.limits.items()
    }


def runs_text(guard: GuardVerdict) -> str:
    """Returns a text that names what runs, such as "the plan runs"."""
    return f"the {guard.runs.replace('single_layout', 'plan in one layout')} runs"


def when_timed(guard: GuardVerdict) -> str:
    """Returns a note for a verdict that is stored or disturbed; empty for a new one."""
    if guard.timed_on:
        return f"; timed on {guard.timed_on}, Settings(fresh=True) or --fresh times it again"
    if guard.is_disturbed:
        return f"; other programs ran {guard.waited:.0%} of the time, so this result is not stored"
    return ""


def guard_line(guard: GuardVerdict) -> str:
    if not guard.rounds:
        return f"guard: {guard.reason or guard.verdict}; {runs_text(guard)}"
    plan, baseline = in_ms(guard.plan_us), in_ms(guard.baseline_us)
    words, head = {"faster": "faster than", "slower": "slower than"}, "steps: " * guard.is_of_step
    if guard.plan_uj is not None and guard.baseline_uj is not None:
        words, head = {"faster": "less than", "slower": "more than"}, f"{guard.objective} "
        plan, baseline = (
            f"{in_mj(uj)} in {us}"
            for uj, us in ((guard.plan_uj, plan), (guard.baseline_uj, baseline))
        )
    text = (
        f"guard: {head}{words.get(guard.verdict, 'no clear difference from')}"
        f" {'' if guard.is_of_step else 'baseline '}{guard.baseline}: {plan} against {baseline},"
        f" ratio {guard.ratio:.3f} [95 %: {guard.low:.3f} to {guard.high:.3f}]"
        f" in {guard.rounds} rounds; {runs_text(guard)}{when_timed(guard)}"
    )
    if guard.second_us is not None:
        other = "plan" if guard.runs == "single_layout" else "best plan in one layout"
        text += f"; the {other} took {in_ms(guard.second_us)}"
    return f"{text} ({guard.reason})" if guard.reason else text


def unclear_text(guard: GuardVerdict) -> str:
    """Returns why a ratio is no verdict; empty if it is one."""
    if guard.verdict != "unclear":
        return ""
    is_apart = not guard.low <= 1 <= guard.high
    return f"in {guard.rounds} rounds, too few to be sure" if is_apart else "no clear difference"


def outcome_lines(plan: Plan) -> list[str]:
    """Returns the lines that a user should see at once: what runs, and what was left alone."""
    lines = []
    if plan.guard is not None and plan.guard.objective != "latency":
        lines.append(guard_line(plan.guard))
    elif plan.guard is not None and plan.guard.rounds:
        speedup = 1 / plan.guard.ratio  # of pairs of runs, as in the report
        note = f" ({why})" if (why := unclear_text(plan.guard)) else ""
        lines.append(
            f"{plan.guard.plan_us / 1000:.2f} ms, {speedup:.2f}x as fast as the"
            f" baseline {plan.guard.baseline}{note}; {runs_text(plan.guard)}"
            f"{when_timed(plan.guard)}"
        )
    elif plan.guard is not None:
        lines.append(f"{plan.guard.reason}; {runs_text(plan.guard)}")
    if time := _left_time(plan, LEFT_SHARE):
        lines.append(f"left to PyTorch: {time}; print(plan) lists the operations")
    elif plan.nodes and plan.left_alone and not _left_time(plan):
        names = ", ".join(item.name or item.note for item in plan.left_alone[:3])
        more = f" and {len(plan.left_alone) - 3} more" if len(plan.left_alone) > 3 else ""
        who = "left to PyTorch here, emit computes or refuses" if OF_OTHERS in plan.limits else ""
        lines.append(f"{who or 'left to PyTorch'}: {names}{more}; print(plan) says why")
    return [*lines, *(f"note: {note}" for note in plan.notes)]


def _candidate(q: Quarantined) -> str:
    return f"{q.primitive} {layouts_text(q.src, q.dst)} {q.problem}"


def _listed(title: str, items: list[tuple[str, str]]) -> list[str]:
    if not items:
        return []
    lines = [f"{title}: {len(items)}"]
    lines += [f"  {name or 'the model'}: {note}" for name, note in items[:8]]
    return [*lines, f"  and {len(items) - 8} more"] if len(items) > 8 else lines
