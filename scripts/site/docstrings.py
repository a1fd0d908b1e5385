# SPDX-License-Identifier: BSD-3-Clause
"""The extension of mkdocs.yml that rewrites docstrings, see docstring_text.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docstring_text import rewrite


class Docstrings(griffe.Extension):
    """Rewrites the docstring of each object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)
