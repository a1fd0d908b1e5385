# SPDX-License-Identifier: BSD-3-Clause
"""libtorchalgo_cuda.so as it was built: for which GPUs, and what it needs."""

from __future__ import annotations

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
    assert "sm_75" in output_of(tool, "--list-ptx", str(library))


def test_it_links_cudas_runtime_and_not_torch(library: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(library)))
    assert any(name.startswith("libcudart.so") for name in needed)
    assert not [name for name in needed if "torch" in name or "c10" in name or "cudnn" in name]


def test_it_exports_its_own_functions_alone(library: Path) -> None:
    symbols = output_of("nm", "-D", "--defined-only", str(library)).split()
    assert {name for name in symbols if name.startswith("torchalgo")} == {
        "torchalgo_cuda_abi", "torchalgo_cuda_transform", "torchalgo_cuda_open_pool",
        "torchalgo_cuda_close_pool", "torchalgo_cuda_free_pool",
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


def test_no_kernel_spills_registers(library: Path) -> None:
    kernels = {k: v for k, v in resources(library).items() if "transpose_tiles" in k}
    assert len(kernels) == 3 * 24  # GPUs; types and vector widths
    for name, needs in kernels.items():
        assert needs["STACK"] == 0 and needs["LOCAL"] == 0, name
        assert needs["REG"] <= 64, name  # so that four blocks of 256 threads share the registers


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_vectors_are_loaded_and_stored_by_one_instruction_of_128_bits(
    library: Path, gpu: str
) -> None:
    tool = cuobjdump()
    if not disassembles(tool):
        pytest.skip("cuobjdump has no nvdisasm beside it")
    code = output_of(tool, "-sass", "-arch", gpu, str(library)).split("Function : ")[1:]
    kernels = {each.partition("\n")[0]: each for each in code if "transpose_tiles" in each[:200]}
    assert len(kernels) == 24
    for name, text in kernels.items():
        widths = re.search(r"Li(\d)ELi(\d)EEEv", name)
        assert widths is not None
        read, write = (int(bits) > 0 for bits in widths.groups())
        assert bool(re.search(r"LDG\.E(\.\w+)*\.128", text)) == read, name
        assert bool(re.search(r"STG\.E(\.\w+)*\.128", text)) == write, name


def disassembles(tool: str) -> bool:
    """cuobjdump calls nvdisasm, which lies beside it or on the path."""
    return shutil.which("nvdisasm") is not None or Path(tool).with_name("nvdisasm").exists()
