# SPDX-License-Identifier: BSD-3-Clause
"""Runs an installed torchalgo as a new user does. scripts/build_wheels.py calls it.

    python scripts/try_wheel.py    # in the environment that has the wheel

It exits with an error if anything does not work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TORCHALGO_IGNORE_LOAD"] = "1"

import torch
from torch import nn

import torchalgo


def small_cnn() -> nn.Module:
    """Returns a network of a few layers, in eval mode."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()  # fmt: skip


def command(*words: str) -> str:
    """Returns the output of the command `torchalgo` of this environment."""
    program = Path(sys.executable).with_name("torchalgo")
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


def libraries() -> set[str]:
    """Returns the paths of the libraries that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if ".so" in line}


def main() -> None:
    """Exits with an error if anything does not work."""
    folder = Path(torchalgo.__file__).parent
    assert folder.parent == Path(torch.__file__).parents[1], "this is not the installed package"
    settings = torchalgo.Settings(run_untimed=True, cost_db=False, progress=False)
    model, x = small_cnn(), torch.rand(1, 3, 64, 64)
    fast = torchalgo.optimize(model, (x,), budget_s=10, settings=settings)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("net.pt", "net.pt2"):
            fast.save(Path(temporary) / name)
        again = torchalgo.load(Path(temporary) / "net.pt")
        assert torch.equal(again(x), fast(x))
        assert "cpu" in command("explain", str(Path(temporary) / "net.pt"))
    omp = {path for path in libraries() if "gomp" in path or "iomp" in path}
    assert len(omp) == 1, f"more than one OpenMP: {omp}"
    assert "usage: torchalgo demo" in command("demo", "--help")
    print(command("doctor"))
    assert (folder / "share" / "cmake" / "torchalgo" / "torchalgoConfig.cmake").exists()
    print(f"try_wheel: torchalgo {torchalgo.__version__} works with torch {torch.__version__}")


if __name__ == "__main__":
    main()
