# SPDX-License-Identifier: BSD-3-Clause
"""Times the ops that a plan leaves to PyTorch, and finds the lines of the model that call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.stats import cost_of_samples
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.plan import LeftAlone
from torchalgo._ir.problems import OWN_KIND
from torchalgo._refine.binding import Tuned
from torchalgo._refine.net_times import NetTimes, time_in_net

PASSES = 7
LEAST_PASSES = 3
WARMUP = 1
LEAST_US = 1.0  # ops that take less are listed only if their kind can be planned
# These mostly move no data.
VIEWS = {
    f"aten::{name}"
    for name in (
        "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as",
        "permute", "transpose", "t", "select", "slice", "narrow", "split", "chunk", "unbind",
        "split_with_sizes", "detach", "alias", "contiguous", "dropout", "to",
    )
}  # fmt: skip

_CALL = re.compile(r"(.+)\((\d+)\): (.+)")
_TORCH, _OWN = (str(Path(file).parent) for file in (torch.__file__, _C.__file__))


@dataclass(frozen=True)
class LeftTimes:
    """The times in us of a whole call, and of each node that is left to PyTorch."""

    call_us: float
    ops_us: Mapping[str, float]


def has_time(call_us: float, limit_s: float, deadline: Deadline) -> bool:
    """Returns True if a module with calls of `call_us` may be timed: without a deadline, always."""
    calls = 1 + WARMUP + LEAST_PASSES  # the first one finds out whether the runner can run it
    return not deadline.has_end or calls * call_us / 1e6 <= limit_s


def time_left_ops(
    tuned: Tuned,
    graph: _C.Graph,
    inputs: tuple[Any, ...],
    *,
    budget_s: float,
    timer: Callable[..., dict[str, NetTimes]] = time_in_net,
) -> LeftTimes | None:
    """Times the ops of a plan that are left to PyTorch, in calls of a GraphRunner.

    Returns None if the module needs TorchScript's interpreter, which does not time single ops.

    Args:
        budget_s: after this many seconds no further pass begins, once LEAST_PASSES were run.
    """
    runner = _C.GraphRunner.make(tuned.scripted._c, [])
    with torch.no_grad():
        if runner is None or runner.run(*inputs) is NotImplemented:
            return None
    calls = {"run": lambda: runner.run(*inputs)}
    times = timer(calls, passes=PASSES, budget_s=budget_s, least=LEAST_PASSES, warmup=WARMUP)["run"]
    return left_times(times, graph, tuned.origins)


def left_times(times: NetTimes, graph: _C.Graph, origins: Sequence[int]) -> LeftTimes:
    """Returns the times of the nodes that have no problem and read more than a shape.

    A planned node may also be left as PyTorch's own op, because this is its cheapest primitive. An
    op of torchalgo that has no choice, such as attention in f64, is not PyTorch's either.
    """
    ops_us: dict[str, float] = {}
    for position, samples in times.left.items():
        node = graph.nodes[origins[position]] if origins[position] >= 0 else None
        if node is not None and is_left(node):
            ops_us[node.name] = ops_us.get(node.name, 0.0) + _us(samples)
    return LeftTimes(_us(times.call), ops_us)


def is_left(node: _C.Node) -> bool:
    """Returns True if PyTorch runs the node, and the node reads more than a shape."""
    is_own = node.kind.startswith(OWN_KIND)
    return node.problem is None and not node.reads_shape_only and not is_own


def _us(samples: Sequence[float]) -> float:
    return round(cost_of_samples(samples)[0] / 1000, 3)


def left_nodes(imported: _C.Imported, ops_us: Mapping[str, float] | None) -> list[LeftAlone]:
    """Returns the nodes that are left to PyTorch, with their times and lines.

    If the nodes were not timed (`ops_us` is None), all are listed except views.
    """
    found = []
    for i, node in enumerate(imported.graph.nodes):
        if ops_us is None:
            is_listed = is_left(node) and node.kind not in VIEWS
        else:
            is_listed = ops_us.get(node.name, 0.0) >= LEAST_US
        if node.note or is_listed:
            note = node.note or f"torchalgo does not plan {node.kind}"
            line = source_line(imported.source_calls(i))
            found.append(LeftAlone(node.name, note, (ops_us or {}).get(node.name), line))
    return found


def source_line(calls: Sequence[str]) -> str:
    """Returns the innermost call outside of torch, such as "net.py:12 forward".

    Returns "" if there is none. The name of the file has no folders: a plan holds no paths.

    Args:
        calls: "file(line): function", the innermost first.
    """
    for call in calls:
        match = _CALL.fullmatch(call)
        # Code without a file has a name such as "<string>".
        if match is None or match[1].startswith("<") or _is_below(_TORCH, match[1]):
            continue
        if _is_below(_OWN, match[1]):
            return ""
        return f"{PurePath(match[1]).name}:{match[2]} {match[3]}"
    return ""


def _is_below(folder: str, file: str) -> bool:
    return PurePath(file).is_relative_to(folder)
