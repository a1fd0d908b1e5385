# SPDX-License-Identifier: BSD-3-Clause
"""What a process holds that runs an optimized network: resident memory over the model's weights.

    python benchmarks/bench_memory.py vgg16 resnet50

Each network is optimized in a process of its own, then loaded from its file in another one, as it
is deployed. There, after some runs, resident memory is compared with that before the file was
opened, and with the bytes of the model's weights. Appends a line per network to
benchmarks/results/memory.jsonl. Linux only; nothing is timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import torchalgo
from harness import git_state, machine_state, record
from networks import random_input, random_network

RESULTS = Path(__file__).resolve().parent / "results" / "memory.jsonl"


def resident_bytes() -> int:
    """Of this process, now."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def save_optimized(network: str, path: str) -> dict[str, Any]:
    """Optimizes and saves; what the plan says of memory."""
    model, x = random_network(network), random_input(network)
    weights = sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))
    fast = torchalgo.optimize(model, x, budget_s=float("inf"), progress=False)
    fast.save(path)
    return {
        "model_bytes": weights,
        "packed_bytes": fast.plan.weight_bytes,
        "workspace_bytes": fast.plan.workspace_bytes,
    }


def run_loaded(network: str, path: str) -> dict[str, Any]:
    """Loads the file and runs it; what that added to the process."""
    x = random_input(network)
    small = torchalgo.optimize(
        torch.nn.Conv2d(3, 4, 3).eval(), torch.rand(1, 3, 8, 8), progress=False, cost_db=None
    )
    with torch.inference_mode():
        small(torch.rand(1, 3, 8, 8))  # what torch and torchalgo load at the first run
        before = resident_bytes()
        fast = torchalgo.load(path)
        for _ in range(5):
            fast(x)
        return {"resident_bytes": resident_bytes() - before}


STEPS = {"save": save_optimized, "run": run_loaded}


def in_process(step: str, network: str, path: str, threads: int) -> dict[str, Any]:
    """The step in a process of its own."""
    command = [sys.executable, __file__, network, "--step", step, "--file", path]
    done = subprocess.run(
        [*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.step:
        print(json.dumps(STEPS[args.step](args.networks[0], args.file)))
        return 0
    for network in args.networks:
        with tempfile.TemporaryDirectory(prefix="memory-") as folder:
            path = str(Path(folder) / "network.pt")
            saved = in_process("save", network, path, args.threads)
            ran = in_process("run", network, path, args.threads)
        line = {
            "schema": 1, "benchmark": "memory", "network": network, "threads": args.threads,
            **saved, **ran, "ratio": round(ran["resident_bytes"] / saved["model_bytes"], 2),
            "torch": torch.__version__, "torchalgo": torchalgo.__version__,
            **git_state(), **machine_state(),
        }  # fmt: skip
        record(RESULTS, line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
