# SPDX-License-Identifier: BSD-3-Clause
"""Writes reports of plans: five lines, plain text, JSON, or one HTML page that works offline."""
