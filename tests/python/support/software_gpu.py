# SPDX-License-Identifier: BSD-3-Clause
"""Runs Python in a process that has the GPU in software of tests/software_gpu."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

TESTS = Path(__file__).resolve().parents[2]
NONE: Mapping[str, str] = MappingProxyType({})
BUILD = Path(os.environ.get("TORCHALGO_BUILD_DIR", TESTS.parent / "build" / "release"))
LIBRARIES = [
    BUILD / "tests" / "software_gpu" / name
    for name in ("libcudart.so.13", "libcuda.so.1", "libcudnn.so.9")
]


def is_built() -> bool:
    return all(path.exists() for path in LIBRARIES)


def environment(
    tmp_path: Path, fault: str = "", variables: Mapping[str, str] = NONE
) -> dict[str, str]:
    """Returns the variables of such a process. Its log is tmp_path / "gpu.log"."""
    folders = [TESTS / "software_gpu" / "python", TESTS / "python", TESTS.parent / "benchmarks"]
    return (
        os.environ
        | {
            "LD_PRELOAD": " ".join(map(str, LIBRARIES)),
            "PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, sys.path)]),
            "SOFTWARE_GPU_LOG": str(tmp_path / "gpu.log"),
            "SOFTWARE_GPU_FAULT": fault,
            "TORCHALGO_CACHE_DIR": str(tmp_path / "cache"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            "OMP_NUM_THREADS": "1",
        }
        | dict(variables)
    )


def run(
    tmp_path: Path,
    *arguments: str,
    fault: str = "",
    timeout_s: float = 600.0,
    variables: Mapping[str, str] = NONE,
) -> subprocess.CompletedProcess[str]:
    """Runs python with `arguments`. `variables` are added to its environment, see gpu.h."""
    return subprocess.run(
        [sys.executable, *arguments], env=environment(tmp_path, fault, variables), cwd=tmp_path,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def log(tmp_path: Path) -> list[str]:
    path = tmp_path / "gpu.log"
    return path.read_text().splitlines() if path.exists() else []


MODEL = """
import copy, torch, torchalgo
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.branch = nn.Conv2d(8, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 16, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.branch(x) + x)
        x = nn.functional.max_pool2d(self.wide(x), 2)
        return self.head(x.mean((2, 3)))

def error(got, x):
    assert got.is_cuda
    return float((got.cpu() - net(x)).abs().max())

torch.manual_seed(0)
torch.set_grad_enabled(False)
net, x, fast = Net().eval(), torch.randn(2, 3, 16, 16), None
settings = torchalgo.Settings(progress=False, run_untimed=True)
try:
    gpu_net = copy.deepcopy(net).cuda()
    fast = torchalgo.optimize(gpu_net, (x.cuda(),), budget_s=budget_s, settings=settings)
except (torchalgo.Error, RuntimeError) as problem:
    print(type(problem).__name__, (str(problem).splitlines() or [""])[0])
"""


def model(budget_s: float) -> str:
    """Returns a program that optimizes a small model. `fast` is None if that failed; the reason is
    then printed. Every candidate is measured within about 10 s."""
    return f"budget_s = {budget_s}\n{MODEL}"
