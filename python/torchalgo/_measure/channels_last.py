# SPDX-License-Identifier: BSD-3-Clause
"""Says whether a model may run in channels_last in the user's process."""

from __future__ import annotations

from collections.abc import Container

from torchalgo import _C
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.costs import Key, key_of
from torchalgo._ir.problems import has_convolution
from torchalgo._measure.process_bench import ISOLATE, ProcessBench, is_isolated


def why_not_in_channels_last(graph: _C.Graph, known: Container[Key], limit_s: float) -> str:
    """Returns why a model must not run in channels_last in this process; "" if it may.

    A convolution of PyTorch in channels_last ends the process for some sizes. So each one must have
    run before, as the candidate aten.conv in nhwc. Those that are not `known` run here, in the
    worker. Without a worker, or without time, the answer is no.

    Args:
        known: the candidates that were measured.
        limit_s: the most seconds.
    """
    tasks = {}
    for node in graph.nodes:
        if node.problem is None and "conv" in node.kind:
            return f"convolution {node.name!r} has no candidate that could be tried"
        if node.problem is not None and has_convolution(node.problem):
            primitive = _C.Primitive("aten.conv", "nhwc", "nhwc")
            if (key := key_of(node.problem, primitive)) not in known:
                tasks[key] = node.problem, primitive
    if not tasks:
        return ""
    if not is_isolated():
        return f"{ISOLATE}=0 leaves no process in which its convolutions could be tried"
    if limit_s <= 0:
        return "its convolutions were not tried in the worker"
    deadline = Deadline(limit_s)
    deadline.can_break = True
    why = ProcessBench(deadline=deadline).why_not_run(list(tasks.values()))
    return f"a convolution did not run in the worker: {why}" if why else ""
