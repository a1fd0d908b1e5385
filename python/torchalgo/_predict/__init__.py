# SPDX-License-Identifier: BSD-3-Clause
"""Predicted costs of candidates that never ran here, learned from measured costs."""
