# SPDX-License-Identifier: BSD-3-Clause
"""Chooses: candidates, costs and limits become a plan with a proof."""
