# SPDX-License-Identifier: BSD-3-Clause
"""Costs of candidates that were never run here, learned from those that were."""

from torchalgo.prediction.model import CostModel, can_learn, learn

__all__ = ["CostModel", "can_learn", "learn"]
