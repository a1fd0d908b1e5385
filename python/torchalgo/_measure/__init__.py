# SPDX-License-Identifier: BSD-3-Clause
"""Runs candidates: times and checks them, in a process of its own."""
