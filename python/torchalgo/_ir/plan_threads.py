# SPDX-License-Identifier: BSD-3-Clause
"""Compares the number of threads for which a plan was measured with torch's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchalgo._ir.plan import Plan


def nearest_by_threads(plans: Sequence[Plan]) -> Plan:
    """Returns the plan measured with the number of threads that is nearest to torch's.

    The first of several is returned. A plan that does not name a number is the farthest.
    """
    return min(plans, key=_distance)


def other_threads(plan: Plan) -> str:
    """Returns a text that tells of another number of threads than torch's; "" if it is the same.

    Returns "" for a GPU's plan, which does not depend on threads.
    """
    measured, now = plan.environment.get("threads"), torch.get_num_threads()
    if measured in (None, str(now)) or "gpu" in plan.environment:
        return ""
    return (
        f"the plan was measured with torch.get_num_threads() = {measured}, and here it is {now}:"
        " another plan may be faster"
    )


def _distance(plan: Plan) -> float:
    measured = plan.environment.get("threads", "")
    count = int(measured) if measured.isdecimal() else 0
    return abs(math.log(count / torch.get_num_threads())) if count else math.inf
