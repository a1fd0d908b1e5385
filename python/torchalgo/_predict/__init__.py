# SPDX-License-Identifier: BSD-3-Clause
"""Costs of candidates that were never run here, learned from those that were."""

from torchalgo._predict.model import CostModel, can_learn, learn
from torchalgo._predict.sources import costs_to_learn, guide_from_store, learn_from_store

__all__ = [
    "CostModel",
    "can_learn",
    "costs_to_learn",
    "guide_from_store",
    "learn",
    "learn_from_store",
]
