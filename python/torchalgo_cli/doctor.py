# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo doctor` where torchalgo cannot be imported: what is here, and the wheel that fits."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from torchalgo_cli import install

Facts = dict[str, dict[str, str]]


def wheel_facts() -> dict[str, str]:
    """Returns which wheel is installed, and which one fits this Python, platform and torch."""
    return {"installed": install.installed_wheel(), "fits here": install.fitting_wheel()}


def examine_installation(problem: BaseException) -> Facts:
    """Returns facts on an installation that cannot be imported, by topic. Imports nothing."""
    return {
        "import torchalgo": {"error": " ".join(str(problem).split()) or type(problem).__name__},
        "versions": {
            "torchalgo": install.torchalgo_version(),
            "torch": install.torch_here() or "none",
            "built for torch": install.built_for_torch() or "not built",
            "Python": platform.python_version(),
            "system": platform.platform(),
        },
        "wheel": wheel_facts(),
        "files": {"package": str(install.PACKAGE)},
    }


def print_facts(found: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    """Prints facts by topic on stdout. Leaves out topics without facts, except with JSON."""
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for topic, facts in found.items():
        width = max(map(len, facts), default=0)
        for i, (name, value) in enumerate(facts.items()):
            print(f"{'' if i else topic + chr(10)}  {name:<{width}}  {_spelled(value)}")


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
