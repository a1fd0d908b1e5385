# SPDX-License-Identifier: BSD-3-Clause
"""Predicted costs of candidates that never ran here, learned from measured costs."""

from torchalgo._predict.model import CostModel, can_learn, learn

__all__ = ["CostModel", "can_learn", "learn"]
