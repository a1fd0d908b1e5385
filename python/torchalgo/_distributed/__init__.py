# SPDX-License-Identifier: BSD-3-Clause
"""Tunes one model by several processes."""
