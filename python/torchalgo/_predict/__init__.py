# SPDX-License-Identifier: BSD-3-Clause
"""Predicted costs of candidates that never ran here, learned from measured costs."""

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
