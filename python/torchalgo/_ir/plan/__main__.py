# SPDX-License-Identifier: BSD-3-Clause
"""Prints the plans of a file: `python -m plan net.plan.json` beside a copy of this folder."""

import sys
from pathlib import Path

from .plan import plans_from_json

print(*plans_from_json(Path(sys.argv[1]).read_bytes(), sys.argv[1]), sep="\n\n")
