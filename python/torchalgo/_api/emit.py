# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo.emit: the forward pass of a plan as a folder of C++."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchalgo import _C
from torchalgo._base.read_file import path_of
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._ir.native_plan import native_plan
from torchalgo._plan.held import program_of
from torchalgo._plan.result import Result
from torchalgo._run.optimized import Optimized

if TYPE_CHECKING:
    from torchalgo._emit.network import Network


@dataclass(frozen=True)
class EmittedNetwork:
    """The folder that torchalgo.emit has written.

        written = torchalgo.emit(fast, "net")
        print(written.arena_bytes)

    `print` shows it as one line.
    """

    folder: Path
    name: str  # begins the names of the C interface
    isas: tuple[str, ...]  # the widest first
    threads: int
    inputs: tuple[tuple[int, ...], ...]  # their sizes; there are no others
    steps: int  # calls of kernels
    arena_bytes: int  # of a call
    least_arena_bytes: int  # no placement of the same tensors needs fewer
    weight_bytes: int  # of the file
    packed_bytes: int  # of the weights that the kernels read

    def __str__(self) -> str:
        mb, inputs = 1e-6, ["x".join(map(str, sizes)) for sizes in self.inputs]
        return (
            f"{self.folder}: {self.steps} steps for inputs of {', '.join(inputs)},"
            f" {', '.join(self.isas)} and up to {self.threads} threads, arena"
            f" {self.arena_bytes * mb:.1f} MB (at least {self.least_arena_bytes * mb:.1f}),"
            f" weights {self.weight_bytes * mb:.1f} MB"
        )


def emit(
    fast: Optimized,
    folder: str | Path,
    *,
    isa: str | Sequence[str] | None = None,
    weights: str | None = None,
    threads: int | None = None,
    name: str | None = None,
) -> EmittedNetwork:
    """Writes the forward pass of a plan as a folder of C++ that needs no library.

        settings = torchalgo.Settings(own_kernels=True)
        fast = torchalgo.optimize(model, x, settings=settings)
        print(torchalgo.emit(fast, "net"))

    The folder has an interface in C, the program, packed weights, the kernels that it calls, a
    CMakeLists.txt and a test with a stored input and result. The result has the bits of
    `fast(x)`. The sizes of the example are fixed. If there are several plans, it is that of the
    first shapes; `fast.by_shape` has the others.

    Args:
        fast: a model in f32 from optimize or load, on the CPU, that runs its plan. The plan may use
            torchalgo's own kernels only, which `Settings(own_kernels=True)` makes sure of.
        folder: a path for a new folder, an empty one, or one that emit wrote for the same name.
        isa: "amx" or "avx512bf16", which multiply in bf16, "avx512", "avx2", or "default", which
            any x86 or AArch64 CPU runs. A sequence of them: a folder for all, whose program takes
            the widest that a CPU has. None: that of this machine, which must have each of them.
        weights: "packed" as the kernels of one set read them, or "plain" as in the model, which
            `open` packs. None: plain for several sets.
        threads: into how many ranges a kernel divides its work, at most. None: as in the plan.
        name: begins the names of the interface. None: the name of the folder.

    Returns: what was written.
    Raises: torchalgo.Error if a layer has no kernel of torchalgo, or an argument is wrong.
    """
    target = path_of(folder, "emit")
    if not isinstance(fast, Optimized):
        raise Error(
            f"TA2802 emit: got {type(fast).__name__}, expected the result of torchalgo.optimize or"
            " torchalgo.load"
        )
    result, graph = _planned(fast)
    devices = _devices(isa, threads, result)
    if weights not in (None, "packed", "plain") or (weights == "packed" and len(devices) > 1):
        raise Error(
            f"TA2802 emit: weights={weights!r}, expected 'plain', or 'packed' for one instruction"
            " set"
        )
    is_packed = len(devices) == 1 if weights is None else weights == "packed"
    own = target.name if name is None else name
    plan = native_plan(result.plan)
    return write_plan(graph, plan, result.scripted, target, own, devices, is_packed=is_packed)


def write_plan(
    graph: _C.Graph,
    plan: _C.Plan,
    scripted: ScriptModule,
    folder: Path,
    name: str,
    devices: Sequence[_C.Device],
    *,
    is_packed: bool = True,
) -> EmittedNetwork:
    """Writes a plan of `graph`, which the module `scripted` runs."""
    from torchalgo._emit.folder import Program, identifier, write_folder

    schedule = _C.lower(graph, plan)
    networks = {
        device.bf16_isa or device.isa: program_of(schedule, graph, scripted, device, is_packed)
        for device in devices
    }
    first, threads = next(iter(networks.values())), devices[0].threads
    program = Program(identifier(name), networks, is_packed, threads, _example(scripted, first))
    write_folder(folder, program)
    return EmittedNetwork(
        folder=folder,
        name=program.name,
        isas=tuple(networks),
        threads=threads,
        inputs=tuple(map(tuple, first.input_sizes)),
        steps=len(first.calls),
        arena_bytes=max(each.arena_bytes for each in networks.values()),
        least_arena_bytes=max(each.least_arena_bytes for each in networks.values()),
        weight_bytes=len(first.weights),
        packed_bytes=max(each.packed_bytes for each in networks.values()),
    )


def _planned(fast: Optimized) -> tuple[Result, _C.Graph]:
    """Returns the result whose module runs the plan, and the graph of the plan."""
    if fast.runs != "plan":
        raise Error(
            f"TA2802 emit: this model runs {fast.runs!r} and not its plan: optimize it with"
            " settings=torchalgo.Settings(own_kernels=True), which always runs its plan"
        )
    return fast._first_with_graph()


def _devices(
    isa: str | Sequence[str] | None, threads: int | None, result: Result
) -> list[_C.Device]:
    """Returns a device for each instruction set, the widest first."""
    from torchalgo._emit.folder import ISAS, device_of

    known = list(ISAS)  # the widest first
    here = _C.cpu_device()
    widest_here = here.bf16_isa or here.isa
    has_bf16 = any("bf16" in node.src + node.dst for node in result.plan.nodes)
    usual = widest_here if has_bf16 else here.isa
    wanted = [usual] if isa is None else [isa] if isinstance(isa, str) else list(isa)
    if not wanted or not all(each in known for each in wanted):
        names = ", ".join(map(repr, known))
        raise Error(f"TA2802 emit: isa={isa!r}, expected one of {names}, or a list of them")
    widest, *others = sorted(set(wanted), key=known.index)
    if known.index(widest) < known.index(widest_here):
        raise Error(
            f"TA2802 emit: isa={isa!r}, but this machine has {widest_here!r} only: emit on one that"
            f" has {widest!r}, because its kernels pack the weights and check the plan"
        )
    planned = int(result.plan.environment.get("threads", here.threads))
    count = planned if threads is None else threads
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 128:
        raise Error(f"TA2802 emit: threads={threads!r}, expected a number from 1 to 128")
    return [device_of(each, here.name, count) for each in (widest, *others)]


def _example(scripted: ScriptModule, network: Network) -> list[bytes]:
    """Returns random inputs and what the module makes of them, as bytes in their orders."""
    random = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(each, generator=random, dtype=torch.float32) for each in network.input_sizes
    ]
    is_nhwc = [layout == "nhwc" for layout in network.input_layouts]
    given = [
        each.to(memory_format=torch.channels_last) if last else each
        for each, last in zip(inputs, is_nhwc, strict=True)
    ]
    with torch.inference_mode():
        made = scripted(*given)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    in_memory = [
        each.movedim(1, -1) if last else each for each, last in zip(inputs, is_nhwc, strict=True)
    ]
    return [bytes(each.contiguous().untyped_storage()) for each in (*in_memory, *outputs)]
