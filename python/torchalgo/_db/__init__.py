# SPDX-License-Identifier: BSD-3-Clause
"""The cost database: a file of the costs measured on this machine, for all later runs."""

from torchalgo._db.device_costs import DeviceCosts
from torchalgo._db.environment import Environment
from torchalgo._db.row import Refusal, Row
from torchalgo._db.store import CostStore

__all__ = [
    "CostStore",
    "DeviceCosts",
    "Environment",
    "Refusal",
    "Row",
]
