# SPDX-License-Identifier: BSD-3-Clause
"""Runs the command `torchalgo`. The package `torchalgo_cli` reads its arguments."""
