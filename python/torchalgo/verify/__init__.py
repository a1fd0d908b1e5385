# SPDX-License-Identifier: BSD-3-Clause
"""Checks proofs of plans. These files run alone, without torch and without the planner."""
