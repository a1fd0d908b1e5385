# SPDX-License-Identifier: BSD-3-Clause
"""Write tests/golden/small_<version>.{pt,plan.json,expected.json}: every later version loads them.

Run once per version; which primitives the plan holds does not matter, that it holds some does.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import zipfile
from pathlib import Path

import torch

import torchalgo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
from nets import make_net  # type: ignore[import-not-found]  # noqa: E402


def without_source_paths(path: Path) -> None:
    """Drops TorchScript's debug records: they hold paths of the machine that wrote the file."""
    kept = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".debug_pkl"):
                kept.append((info.filename, archive.read(info)))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in kept:
            archive.writestr(zipfile.ZipInfo(name), data)


def main() -> int:
    """Optimize the small net of the tests and keep it with its output."""
    model = make_net()
    sizes = [1, 3, 24, 24]
    x = torch.linspace(-1, 1, 3 * 24 * 24).reshape(sizes)
    fast = torchalgo.optimize(model, x, budget_s=float("inf"), progress=False)
    if fast.runs != "plan":
        fast = torchalgo.optimize(
            model, x, plan=dataclasses.replace(fast.plan, guard=None), progress=False
        )
    with torch.no_grad():
        y = fast(x)
    stem = ROOT / "tests" / "golden" / f"small_{torchalgo.__version__}"
    fast.save(f"{stem}.pt")
    without_source_paths(Path(f"{stem}.pt"))
    fast.plan.save(f"{stem}.plan.json")
    expected = {"input": sizes, "output": [round(v, 7) for v in y.flatten().tolist()]}
    Path(f"{stem}.expected.json").write_text(json.dumps(expected) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
