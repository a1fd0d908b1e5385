# SPDX-License-Identifier: BSD-3-Clause
"""Prints the plans of a file: `python -m plan net.plan.json` beside a copy of this folder."""

import sys

from .plan import read_plans

print(*read_plans(sys.argv[1]), sep="\n\n")
