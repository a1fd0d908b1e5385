# SPDX-License-Identifier: BSD-3-Clause
"""Times the ops that a plan leaves to PyTorch, and finds the lines of the model that call them."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.stats import cost_of_samples
from torchalgo._ir.plan import LeftAlone
from torchalgo._ir.problems import OWN_KIND
from torchalgo._refine.binding import Tuned, choices_of

PASSES = 7
LEAST_PASSES = 3
MOST_S = 1.0  # after this time no further pass begins, once LEAST_PASSES were run
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


def time_left_ops(
    tuned: Tuned,
    graph: _C.Graph,
    inputs: tuple[Any, ...],
    now_s: Callable[[], float] = time.monotonic,
) -> dict[str, float] | None:
    """Returns the times in us of the ops of a plan that are left to PyTorch, by node.

    Returns None if the module needs TorchScript's interpreter, which does not time single ops, and
    on a GPU, where an op goes on after its call.
    """
    runner = _C.GraphRunner.make(tuned.scripted._c, [])
    samples: dict[int, list[float]] = {}
    with torch.no_grad():
        if runner is None or runner.time_left_ops(*inputs) is NotImplemented:
            return None
        started = now_s()
        for i in range(PASSES):
            if i >= LEAST_PASSES and now_s() - started > MOST_S:
                break
            for position, ns in runner.time_left_ops(*inputs):
                samples.setdefault(position, []).append(float(ns))
    return left_times(samples, graph, tuned.origins)


def left_times(
    samples: Mapping[int, Sequence[float]], graph: _C.Graph, origins: Sequence[int]
) -> dict[str, float]:
    """Returns the times in us of the nodes that have no problem and read more than a shape.

    A planned node may also be left as PyTorch's own op, because this is its cheapest primitive. An
    op of torchalgo that has no choice, such as attention in f64, is not PyTorch's either.

    Args:
        samples: times in ns, by the position in the graph of the planned module.
    """
    ops_us: dict[str, float] = {}
    for position, ns in samples.items():
        node = graph.nodes[origins[position]] if origins[position] >= 0 else None
        if node is not None and is_left(node):
            us = round(cost_of_samples(ns)[0] / 1000, 3)
            ops_us[node.name] = ops_us.get(node.name, 0.0) + us
    return ops_us


def record_key(graph: _C.Graph, plan: _C.Plan) -> str:
    """Returns the key of the times of a plan's left ops in the database."""
    facts = [graph.structure_hash, choices_of(plan)]
    return "left:" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def times_in_record(text: str | None) -> dict[str, float] | None:
    """Returns the times of a record, by node. Returns None if it is None or damaged."""
    try:
        return {name: float(us) for name, us in json.loads(text or "").items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def is_left(node: _C.Node) -> bool:
    """Returns True if PyTorch runs the node, and the node reads more than a shape."""
    is_own = node.kind.startswith(OWN_KIND)
    return node.problem is None and not node.reads_shape_only and not is_own


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
