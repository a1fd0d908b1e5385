# SPDX-License-Identifier: BSD-3-Clause
"""Whole networks and random ones as C++: their programs compute the bits of the module.

The kernels of all networks are built once, and each program is linked with them.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from torchalgo import _C
from torchalgo._emit.folder import device_of

pytest.importorskip("torchvision")
from networks import random_input, random_network
from support.random_plans import emit_random_plan

NETWORKS = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "squeezenet1_1", "densenet121",
    "googlenet", "shufflenet_v2_x1_0", "efficientnet_b0", "regnet_y_400mf", "vgg16", "alexnet",
    "mnasnet1_0", "resnext50_32x4d",
)  # fmt: skip
SIZES = {"googlenet": 64, "alexnet": 96}
# Its module leaves an activation between linear layers to PyTorch, which rounds otherwise.
NEAR = ("mobilenet_v3_large",)
RANDOM_NETWORKS = 60

PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(all CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_BUILD_TYPE Release)
find_package(Threads REQUIRED)
file(GLOB kernels sources/cpu_algo/kernels/*.cpp)
file(GLOB_RECURSE others sources/*.cpp)
list(REMOVE_ITEM others ${kernels})
include_directories(sets/@isa@ sources)
include(sources/cpu_algo/kernels/flags.cmake)
add_library(kernels OBJECT ${kernels})
target_compile_definitions(kernels PRIVATE TORCHALGO_ISA=@isa@_isa)
target_compile_options(kernels PRIVATE -O3 ${isa_flags_@isa@} ${kernel_flags} -w)
add_library(common STATIC ${others} $<TARGET_OBJECTS:kernels>)
target_link_libraries(common PUBLIC Threads::Threads)
foreach(name @names@)
  add_executable(${name} ${name}/${name}.cpp ${name}/${name}_@isa@.cpp ${name}/test.cpp)
  target_include_directories(${name} PRIVATE ${name})
  target_compile_options(${name} PRIVATE -O1)
  target_link_libraries(${name} PRIVATE common)
endforeach()
"""


class RandomNetwork(nn.Module):
    """A chain of random layers, with branches that are added, joined or multiplied."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dice = random.Random(seed)
        self.channels = self.dice.choice((3, 8, 16, 24))
        self.sizes = (self.dice.randint(1, 2), self.channels, *self.dice.choices((9, 12, 16), k=2))
        self.layers = nn.ModuleList()
        self.kinds: list[str] = []
        for _ in range(self.dice.randint(4, 10)):
            self._add(self.dice.choice(("conv", "conv", "wise", "branch", "pool", "norm", "other")))

    def _conv(self, to: int, filter_size: int, **options: int) -> nn.Module:
        padding = filter_size // 2 * options.get("dilation", 1)
        return nn.Conv2d(self.channels, to, filter_size, padding=padding, **options)

    def _activation(self) -> nn.Module:
        names = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.Sigmoid, nn.Identity)
        return self.dice.choice(names)()

    def _add(self, kind: str) -> None:
        pick, c = self.dice.choice, self.channels
        if kind == "conv":
            to = pick((8, 12, 16, 32, 40))
            groups = 4 if to % 4 == 0 and c % 4 == 0 and pick((True, False)) else 1
            made: nn.Module = self._conv(
                to, pick((1, 3, 5)), groups=groups, dilation=pick((1, 1, 2))
            )
            self.channels = to
        elif kind == "wise":
            made = self._conv(c, pick((3, 5)), groups=c)
        elif kind == "branch":
            kind = pick(("add", "join", "gate"))
            made = self._conv(c, 1 if kind == "gate" else 3)
            self.channels = 2 * c if kind == "join" and c <= 64 else c
            kind = "add" if kind == "join" and c > 64 else kind
        elif kind == "pool":
            made = pick((nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(2, 1)))
        elif kind == "norm":
            made = nn.GroupNorm(1, c) if pick((True, False)) else nn.BatchNorm2d(c)
        elif c % 4 == 0 and pick((True, False)):
            made, self.channels = nn.PixelShuffle(2), c // 4
        elif c % 2 == 0:
            made = nn.ChannelShuffle(2)
        else:
            made = nn.Upsample(scale_factor=2, mode=pick(("nearest", "bilinear")))
        self.kinds.append(kind)
        self.layers.append(nn.Sequential(made, self._activation()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            if kind == "add":
                x = x + layer(x)
            elif kind == "join":
                x = torch.cat([layer(x), x], 1)
            elif kind == "gate":
                x = x * torch.sigmoid(layer(nn.functional.adaptive_avg_pool2d(x, 1)))
            else:
                x = layer(x)
        return x


def emitted(model: nn.Module, x: torch.Tensor, folder: Path) -> Path:
    """Emits a plan of random kernels, with packed weights or with those of the model."""
    is_packed = len(folder.name) % 2 == 0
    here = _C.cpu_device()
    device = device_of(here.isa, here.name, here.threads)
    written = emit_random_plan(model, x, folder, [device], is_packed=is_packed)
    assert written.arena_bytes <= 1.1 * written.least_arena_bytes
    return folder


def run_all(folders: Sequence[Path], where: Path) -> None:
    """Builds all programs and runs each."""
    isa = _C.cpu_device().isa
    header = f"sets/{isa}/cpu_algo/kernels/isa.h"
    instances: list[int] = []  # those of all programs
    for folder in folders:
        for name in ("sources", "sets"):
            shutil.copytree(folder / name, where / name, dirs_exist_ok=True)
        text = (folder / header).read_text()
        own = [int(bits, 16) for bits in re.findall("0x[0-9a-f]+", text)]
        instances = [a | b for a, b in zip(own, instances or own, strict=True)]
    bits = ", ".join(map(hex, instances))
    text = re.sub("TORCHALGO_INSTANCES .*", f"TORCHALGO_INSTANCES {bits}", text)
    (where / header).write_text(text)
    words = {"isa": isa, "names": " ".join(f.name for f in folders)}
    project = PROJECT
    for word, text in words.items():
        project = project.replace(f"@{word}@", text)
    (where / "CMakeLists.txt").write_text(project)
    for command in (["cmake", "-S", where, "-B", where / "build", "-G", "Ninja"],
                    ["cmake", "--build", where / "build"]):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    failed = missing_sources(folders, where)
    for folder in folders:
        for threads in ("1", "2"):
            done = subprocess.run(
                [where / "build" / folder.name, folder, threads, "2"],
                capture_output=True,
                text=True,
            )
            is_equal = "the bits of the stored result" in done.stdout
            error = re.search(r"relative difference (\S+)", done.stdout)
            is_near = folder.name in NEAR and error is not None and float(error[1]) < 1e-6
            if done.returncode != 0 or not (is_equal or is_near):
                failed.append(f"{folder.name}, {threads} threads: {done.stdout}{done.stderr}")
    assert not failed, "\n".join(failed)


def missing_sources(folders: Sequence[Path], where: Path) -> list[str]:
    """Returns a line for each folder without the source of a function that one of its files calls.

    All programs are linked with the sources of all folders, so the linker would not miss it.
    """
    symbols: dict[str, tuple[set[str], set[str]]] = {}  # defined and undefined ones, by source
    for path in (where / "build").rglob("*.cpp.o"):
        source = path.as_posix().partition(".dir/")[2].removesuffix(".o")
        lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"^[0-9a-f ]{16} (\w) (\S+)$", lines, flags=re.MULTILINE)
        undefined = {name for kind, name in found if kind == "U"}
        symbols[source] = ({name for _, name in found} - undefined, undefined)
    everything = set().union(*(defined for defined, _ in symbols.values()))
    failed = []
    for folder in folders:
        own = [path.relative_to(folder).as_posix() for path in folder.glob("sources/**/*.cpp")]
        parts = [symbols[path] for path in own]
        wanted = set().union(*(undefined for _, undefined in parts)) & everything
        if lacks := wanted - set().union(*(defined for defined, _ in parts)):
            failed.append(f"{folder.name} lacks the sources of {', '.join(sorted(lacks))}")
    return failed


@pytest.mark.slow
def test_networks_have_the_bits_of_their_modules(tmp_path: Path) -> None:
    folders = [
        emitted(random_network(name), random_input(name, SIZES.get(name, 48)), tmp_path / name)
        for name in NETWORKS
    ]
    for seed in range(RANDOM_NETWORKS):
        model = RandomNetwork(seed)
        folders.append(emitted(model, torch.randn(model.sizes), tmp_path / f"random{seed}"))
    run_all(folders, tmp_path)


@pytest.mark.slow
def test_a_plan_for_one_set_is_written_for_another_one(tmp_path: Path) -> None:
    """Where a set lacks a variant, such as the width of a tile, another one takes its place."""
    here = _C.cpu_device()
    devices = [
        device_of(isa, here.name, here.threads) for isa in dict.fromkeys((here.isa, "default"))
    ]
    for name in NETWORKS:
        model, x = random_network(name), random_input(name, SIZES.get(name, 48))
        written = emit_random_plan(model, x, tmp_path / name, devices, is_packed=False)
        assert written.isas == tuple(device.isa for device in devices)
