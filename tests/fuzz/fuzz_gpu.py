# SPDX-License-Identifier: BSD-3-Clause
"""Calls of CUDA and cuDNN that fail while a model is optimized and run on the GPU in software.

    python tests/fuzz/fuzz_gpu.py gpu --minutes 10

A case is one process of tests/software_gpu in which one call fails, chosen by the seed. The result
must be an error that says what failed, or a model with the right results.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from campaign import FindingError, main

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from support import software_gpu

# Functions, how often one case calls each about, and the errors that they may return.
CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "cudaMalloc": (8, (2,)),
    "cudaMemcpyAsync": (200, (2, 700, 719)),
    "cudaMemsetAsync": (2000, (700,)),
    "cudaDeviceGetAttribute": (40, (1,)),
    "cudaStreamBeginCapture": (150, (1, 900)),
    "cudaStreamEndCapture": (150, (900, 901)),
    "cudaGraphInstantiateWithFlags": (150, (2,)),
    "cudaGraphLaunch": (3000, (700, 719)),
    "cudaLaunchKernel": (200, (98, 719)),
    "cudaEventCreateWithFlags": (20, (2,)),
    "cudaEventRecord": (6000, (700,)),
    "cudaEventSynchronize": (3000, (700, 719)),
    "cudaEventElapsedTime": (3000, (400,)),
    "cudaStreamCreateWithPriority": (30, (2,)),
    "cudaStreamSynchronize": (100, (700,)),
    "cudaDeviceSynchronize": (100, (700, 719)),
    "cudnnCreate": (2, (1001, 4003)),
    "cudnnSetStream": (10, (2000,)),
    "cudnnBackendCreateDescriptor": (9000, (4003,)),
    "cudnnBackendSetAttribute": (30000, (2000,)),
    "cudnnBackendGetAttribute": (9000, (2000,)),
    "cudnnBackendFinalize": (9000, (3000, 4000)),
    "cudnnBackendExecute": (3000, (5000, 5001)),
    "cudnnConvolutionForward": (1500, (5000,)),
}
PROGRAM = """
try:
    if fast is not None:
        assert error(fast(x.cuda()), x) < 1e-5, "a wrong result"
        print("right")
except (torchalgo.Error, RuntimeError) as problem:
    print(type(problem).__name__, (str(problem).splitlines() or [""])[0])
"""


def gpu(seed: int) -> list[str]:
    rng = random.Random(seed)
    function = rng.choice(list(CALLS))
    calls, statuses = CALLS[function]
    fault = f"{function}:{round(calls ** rng.random())}:{rng.choice(statuses)}"
    program = software_gpu.model(budget_s=6.0) + PROGRAM
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = software_gpu.run(Path(folder), "-W", "ignore", "-c", program, fault=fault)
        except subprocess.TimeoutExpired:
            raise FindingError(f"{fault}: did not end") from None
        has_failed = any(line.startswith("fault ") for line in software_gpu.log(Path(folder)))
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise FindingError(f"{fault}: ended with {done.returncode}: {done.stderr[-600:]}")
    if lines[-1] == "right":
        return ["right" if has_failed else "not reached"]
    if not lines[-1].startswith(("Error TA", "AcceleratorError ", "OutOfMemoryError ")):
        raise FindingError(f"{fault}: {lines[-1]}")
    return [lines[-1].split()[0]]


if __name__ == "__main__":
    main(__doc__ or "", {"gpu": gpu})
