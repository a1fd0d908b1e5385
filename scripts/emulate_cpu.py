# SPDX-License-Identifier: BSD-3-Clause
"""Runs files that were optimized on this machine on emulated ones without AVX-512 or AVX.

    python scripts/emulate_cpu.py

Needs qemu-x86_64 (Debian's qemu-user) and torchvision. Networks are planned here, saved, and run by
the C++ example, natively and under qemu-user: an instruction that the emulated processor lacks ends
it, and the results must be those of this machine but for rounding. Some minutes.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torchalgo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from networks import random_input, random_network  # noqa: E402

NETWORKS = ("squeezenet1_1", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5")
SIZES = (1, 3, 96, 96)
PROCESSORS = {"Haswell": "AVX2", "Nehalem": "SSE4.2"}
RESULT = re.compile(r"elements (\d+), sum (\S+), largest at (\d+)")
MAX_DIFFERENCE = 1e-4  # of the sum of 1,000 results, to 1 and to it


def save_optimized(name: str, path: Path) -> list[str]:
    """Returns the rows of the plan."""
    x = random_input(name, SIZES[-1])
    fast = torchalgo.optimize(
        random_network(name), x, budget_s=30, settings=torchalgo.Settings(progress=False)
    )
    fast.save(str(path))
    return sorted({node.primitive for node in fast.plan.nodes if node.primitive})


def run(program: Path, path: Path, processor: str | None) -> tuple[int, float, int]:
    """Elements, sum and the place of the largest of what the example prints."""
    runner = ["qemu-x86_64", "-cpu", processor] if processor else []
    command = [*runner, str(program), str(path), "x".join(map(str, SIZES))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = RESULT.search(done.stdout)
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return int(found[1]), float(found[2]), int(found[3])


def main() -> int:
    if shutil.which("qemu-x86_64") is None:
        sys.exit("qemu-x86_64 is not installed: apt install qemu-user")
    build = ROOT / "build" / "cpp_deploy"
    env = os.environ | {"TORCHALGO_EXAMPLE_BUILD": str(build)}
    example = ROOT / "examples" / "cpp_deploy" / "run.sh"
    subprocess.run(["bash", example, sys.executable], env=env, check=True)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            path = Path(folder) / f"{name}.pt"
            rows = save_optimized(name, path)
            print(f"{name}: {', '.join(rows)}")
            count, total, largest = run(build / "cpp_deploy", path, None)
            for processor, instructions in PROCESSORS.items():
                found = run(build / "cpp_deploy", path, processor)
                is_close = math.isclose(
                    found[1], total, rel_tol=MAX_DIFFERENCE, abs_tol=MAX_DIFFERENCE
                )
                is_same = found[0] == count and found[2] == largest and is_close
                failures += not is_same
                verdict = "same" if is_same else "DIFFERS"
                print(f"  {processor} ({instructions}): sum {found[1]} of {total}: {verdict}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
