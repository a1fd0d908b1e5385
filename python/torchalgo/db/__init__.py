# SPDX-License-Identifier: BSD-3-Clause
"""The cost database: what was measured on this machine, for every later run."""

from torchalgo.db.counts import Info, Merged, Verified
from torchalgo.db.device_costs import DeviceCosts
from torchalgo.db.environment import Environment
from torchalgo.db.row import Refusal, Row
from torchalgo.db.store import CostStore

__all__ = [
    "CostStore",
    "DeviceCosts",
    "Environment",
    "Info",
    "Merged",
    "Refusal",
    "Row",
    "Verified",
]
