# SPDX-License-Identifier: BSD-3-Clause
"""Builds the modules of plans, compares plans, and times them against PyTorch."""
