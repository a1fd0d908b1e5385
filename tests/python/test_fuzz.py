# SPDX-License-Identifier: BSD-3-Clause
"""Short runs of all fuzzers; tests/fuzz/records has the records of the long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from support import software_gpu
from torchalgo import _C

FUZZ = Path(__file__).parents[1] / "fuzz"
CASES = {
    "texts problem": 2000,
    "texts graph": 500,
    "texts choice": 2000,
    "texts pbqp": 1000,
    "plans plans": 200,
    "files files": 60,
    "names names": 300,
    "rows rows": 5000,
    "databases databases": 71,
    "convolutions convolutions": 300,
    "networks networks": 400,
    "onnx bytes": 1000,
    "onnx parts": 1000,
    "caffe text": 400,
    "caffe weights": 400,
    "threads threads": 300,
    "threads forks": 15,
    "compile weights": 18,
    "compile shapes": 20,
    "compile samples": 10,
    "compile plan_objects": 200,
    "python reads": 60,
    "python writes": 60,
    "python hooks": 60,
    "python changes": 100,
    "python overlap": 50,
    "python baselines": 8,
    "numbers bright": 20,
    "numbers offsets": 20,
    "numbers channels": 100,
    "numbers sizes": 30,
    "numbers onnx": 5,
    "gpu gpu": 3,
}


NO_GPU = pytest.mark.skipif(
    not software_gpu.is_built(), reason="the GPU in software is not built: -DTORCHALGO_TESTS=ON"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fuzzer", [pytest.param(name, marks=NO_GPU if name == "gpu gpu" else ()) for name in CASES]
)
def test_a_short_campaign_finds_nothing(fuzzer: str) -> None:
    """Runs in a process of its own: seeds are forked, and this process has threads."""
    script, name = fuzzer.split()
    command = [sys.executable, FUZZ / f"fuzz_{script}.py", name, "--cases", str(CASES[fuzzer])]
    done = subprocess.run([*command, "--seed", "1000000000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_check_refuses_no_algorithm_for_a_sum_that_cancels() -> None:
    """Found by fuzz_texts.py: with one output, a right algorithm was refused at 1 of 13 sizes."""
    failures = []
    for c in range(500, 1500, 10):
        problem = f"linear_f32_n1c{c}_k1+bias"
        primitives, _, _ = _C.offers_of(problem, 1 << 30, _C.cpu_device())
        checks = _C.check_primitives(problem, primitives, 1e-5)
        failures += [f"{problem}: {check[1]}" for check in checks if check[1]]
    assert not failures


@pytest.mark.parametrize("target", ["problem", "graph", "choice", "pbqp"])
def test_the_targets_of_libfuzzer_compile(target: str) -> None:
    """libFuzzer comes with clang; that the code it calls is still there, any compiler tells."""
    includes = ["-I", FUZZ.parents[1] / "csrc", "-isystem", cpp_extension.include_paths()[0]]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-DFMT_HEADER_ONLY=1", *includes]
    subprocess.run([*command, FUZZ / "cpp" / f"{target}_fuzz.cpp"], check=True)
