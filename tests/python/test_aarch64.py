# SPDX-License-Identifier: BSD-3-Clause
"""Kernels and emitted networks on AArch64, under qemu: results are right. Nothing is timed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from support.random_plans import emit_random_plan
from torchalgo import _C

pytest.importorskip("torchvision")
from networks import random_input, random_network

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ROOT = Path(__file__).resolve().parents[2]
GTEST = Path("/usr/src/googletest/googletest")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason="needs a cross compiler and qemu: scripts/emulate_arm.sh installs them",
    ),
]


def build_and_run(source: Path, folder: Path, *options: str) -> str:
    """Builds a project for AArch64 and runs its tests. Returns what they print."""
    configure = [
        "cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}",
        f"-DCMAKE_CROSSCOMPILING_EMULATOR={EMULATOR}", "-DCMAKE_EXE_LINKER_FLAGS=-static",
        "-DCMAKE_BUILD_TYPE=Release", *options,
    ]  # fmt: skip
    printed = ""
    for command in (configure, ["cmake", "--build", folder], ["ctest", "--test-dir", folder, "-V"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        printed = done.stdout
    return printed


def test_kernels_are_right(tmp_path: Path) -> None:
    fmt = Path(torch.__file__).parent / "include"
    printed = build_and_run(ROOT / "tests/aarch64", tmp_path, f"-DFMT={fmt}", f"-DGTEST={GTEST}")
    passed = re.search(r"\[  PASSED  \] (\d+) tests", printed)
    sources = (ROOT / "tests/cpp/cpu_algo_without_torch").glob("*.cpp")
    written = sum(len(re.findall("^TEST", each.read_text(), re.MULTILINE)) for each in sources)
    assert passed is not None and int(passed[1]) == written > 0


def test_register_tiles_stay_in_registers(tmp_path: Path) -> None:
    """Panels of two or more blocks are for wide registers, so only tiles of one block matter."""
    project = tmp_path / "CMakeLists.txt"
    project.write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(tile CXX)\n"
        f"include({ROOT}/csrc/cpu_algo/kernels/flags.cmake)\n"
        f"add_library(tile STATIC {ROOT}/csrc/cpu_algo/kernels/gemm_tile.cpp)\n"
        f"target_include_directories(tile PRIVATE {ROOT}/csrc)\n"
        "target_compile_definitions(tile PRIVATE TORCHALGO_ISA=default_isa)\n"
        "target_compile_options(tile PRIVATE -std=c++20 -O3 ${kernel_flags} -w)\n"
    )
    build_and_run(tmp_path, tmp_path / "build")
    code = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-dC", tmp_path / "build" / "libtile.a"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    functions = dict(re.findall(r"run_whole<(\d, 1), false>[^\n]*>:\n(.*?)\n\n", code, re.DOTALL))
    assert {*functions} == {f"{rows}, 1" for rows in range(1, 7)}
    for tile, body in functions.items():
        assert len(re.findall(r"\tfmla\t", body)) > 4, tile
        assert not re.findall(r"\tst[rp]\tq.*\[sp", body), tile  # a register that is put aside


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "mobilenet_v2"])
def test_emitted_networks_are_right(name: str, tmp_path: Path) -> None:
    device = _C.Device(kind="cpu", name="any", isa="default", threads=2)
    emit_random_plan(random_network(name), random_input(name, 64), tmp_path / name, [device])
    printed = build_and_run(tmp_path / name, tmp_path / "build")
    # The baseline of x86 has no instruction that multiplies and adds, so the last bits differ.
    difference = re.search(r"relative difference (\S+)", printed)
    assert difference is not None, printed
    assert float(difference[1]) < 1e-5
