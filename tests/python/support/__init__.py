# SPDX-License-Identifier: BSD-3-Clause
"""Helpers that more than one test file uses."""
