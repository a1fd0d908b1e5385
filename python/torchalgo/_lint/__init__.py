# SPDX-License-Identifier: BSD-3-Clause
"""Finds faults of a model that cost time, before any tuning. docs/lint.md lists the kinds."""
