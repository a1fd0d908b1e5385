# SPDX-License-Identifier: BSD-3-Clause
"""libtorchalgo_cuda.so as it was built: for which GPUs, and what it needs."""

from __future__ import annotations

import collections
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import torchalgo

LIBRARY = Path(torchalgo.__file__).with_name("libtorchalgo_cuda.so")


@pytest.fixture(scope="module")
def library() -> Path:
    if not LIBRARY.exists():
        pytest.skip("this build has no nvcc")
    return LIBRARY


def cuobjdump() -> str:
    """The toolkit's, or the one that triton carries."""
    found = shutil.which("cuobjdump")
    triton = importlib.util.find_spec("triton")
    if found is None and triton is not None and triton.origin is not None:
        carried = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
        found = str(carried) if carried.exists() else None
    if found is None:
        pytest.skip("no cuobjdump here")
    return found


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_holds_code_for_three_generations_and_ptx_for_the_others(library: Path) -> None:
    tool = cuobjdump()
    code = set(re.findall(r"sm_\d+", output_of(tool, "--list-elf", str(library))))
    assert code == {"sm_80", "sm_90", "sm_100"}
    ptx = set(re.findall(r"sm_\d+", output_of(tool, "--list-ptx", str(library))))
    assert ptx == {"sm_75", "sm_90"}  # for older and for newer ones


def test_it_links_cudas_runtime_and_not_torch(library: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(library)))
    assert any(name.startswith("libcudart.so") for name in needed)
    assert not [name for name in needed if "torch" in name or "c10" in name or "cudnn" in name]


def test_it_exports_its_own_functions_alone(library: Path) -> None:
    symbols = output_of("nm", "-D", "--defined-only", str(library)).split()
    assert {name for name in symbols if name.startswith("torchalgo")} == {
        "torchalgo_cuda_abi", "torchalgo_cuda_transform", "torchalgo_cuda_open_pool",
        "torchalgo_cuda_close_pool", "torchalgo_cuda_free_pool", "torchalgo_cuda_pool",
        "torchalgo_cuda_pointwise", "torchalgo_cuda_rows", "torchalgo_cuda_depthwise",
        "torchalgo_cuda_layer_norm",
    }  # fmt: skip


def resources(library: Path) -> dict[str, dict[str, int]]:
    """Returns what each kernel of each GPU needs: registers, stack and local memory in bytes."""
    text = output_of(cuobjdump(), "--dump-resource-usage", str(library))
    found = {}
    for gpu in text.split("arch = ")[1:]:
        for name, needs in re.findall(r"Function (\S+):\s+(.*)", gpu):
            numbers = dict(re.findall(r"(\w+):(\d+)", needs))
            found[f"{gpu[:6].strip()} {name}"] = {key: int(v) for key, v in numbers.items()}
    return found


# By kernel: how many there are, and the most registers of one: 64 let four blocks of 256 threads
# share those of a multiprocessor, and 128 two.
KERNELS = {
    "transpose_tiles": (24, 64), "max_pool": (32, 64), "average_pool": (24, 64),
    "mean_with_barriers": (8, 64), "pointwise": (8, 64), "join_rows": (4, 64),
    "depthwise": (44, 128), "layer_norm": (8, 64),
}  # fmt: skip


def kernel_of(name: str) -> str:
    """Returns which of KERNELS has the mangled name."""
    return next(kernel for kernel in KERNELS if f"{len(kernel)}{kernel}I" in name)


def test_no_kernel_spills_registers(library: Path) -> None:
    found = resources(library)
    counts = collections.Counter(map(kernel_of, found))
    assert counts == {kernel: 3 * count for kernel, (count, _) in KERNELS.items()}  # 3 GPUs
    for name, needs in found.items():
        assert needs["STACK"] == 0 and needs["LOCAL"] == 0, name
        assert needs["REG"] <= KERNELS[kernel_of(name)][1], name


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_vectors_are_loaded_and_stored_by_one_instruction_of_128_bits(
    library: Path, gpu: str
) -> None:
    tool = cuobjdump()
    if not disassembles(tool):
        pytest.skip("cuobjdump has no nvdisasm beside it")
    code = output_of(tool, "-sass", "-arch", gpu, str(library)).split("Function : ")[1:]
    kernels = {each.partition("\n")[0]: each for each in code}
    assert len(kernels) == sum(count for count, _ in KERNELS.values())
    for name, text in kernels.items():
        read, write = (are_wide(name) for are_wide in (reads_vectors, writes_vectors))
        assert bool(re.search(r"LDG\.E(\.\w+)*\.128", text)) == read, name
        assert bool(re.search(r"STG\.E(\.\w+)*\.128", text)) == write, name


def reads_vectors(name: str) -> bool:
    """Returns True if a kernel reads 16 bytes at a time, by its template's numbers and types."""
    if kernel_of(name) == "join_rows":
        return "uint4" in name
    count = int(re.findall(r"Li(\d+)E", name)[0])
    if kernel_of(name) == "transpose_tiles":
        return count > 0
    return count == (4 if f"{kernel_of(name)}If" in name else 8)


def writes_vectors(name: str) -> bool:
    if kernel_of(name) != "transpose_tiles":
        return reads_vectors(name)
    return int(re.findall(r"Li(\d+)E", name)[1]) > 0


def disassembles(tool: str) -> bool:
    """cuobjdump calls nvdisasm, which lies beside it or on the path."""
    return shutil.which("nvdisasm") is not None or Path(tool).with_name("nvdisasm").exists()
