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
from torchalgo._plan.result import Result
from torchalgo._run.optimized import Optimized
from torchalgo._run.runner import held_constants, mean_dims

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
    isa: str
    threads: int
    steps: int  # calls of kernels
    arena_bytes: int  # of a call
    least_arena_bytes: int  # no placement of the same tensors needs fewer
    weight_bytes: int

    def __str__(self) -> str:
        mb = 1e-6
        return (
            f"{self.folder}: {self.steps} steps for {self.isa} and {self.threads} threads, arena"
            f" {self.arena_bytes * mb:.1f} MB (at least {self.least_arena_bytes * mb:.1f}), weights"
            f" {self.weight_bytes * mb:.1f} MB"
        )


def emit(
    fast: Optimized,
    folder: str | Path,
    *,
    isa: str | None = None,
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
        isa: "avx512", "avx2" or "default", which any CPU runs. None: that of this machine. This
            machine must have it, because its kernels pack the weights.
        threads: into how many ranges a kernel divides its work, at most. None: as in the plan.
        name: begins the names of the interface. None: the name of the folder.

    Returns: what was written.
    Raises: torchalgo.Error if a layer has no kernel of torchalgo, or an argument is wrong.
    """
    from torchalgo._emit.folder import ISAS

    target = path_of(folder, "emit")
    if not isinstance(fast, Optimized):
        raise Error(
            f"TA2802 emit: got {type(fast).__name__}, expected the result of torchalgo.optimize or"
            " torchalgo.load"
        )
    result = _planned(fast)
    device = _device(isa, threads, result, list(ISAS))
    graph = _C.parse_graph(result.graph or "")
    own = target.name if name is None else name
    return write_plan(graph, native_plan(result.plan), result.scripted, target, own, device)


def write_plan(
    graph: _C.Graph,
    plan: _C.Plan,
    scripted: ScriptModule,
    folder: Path,
    name: str,
    device: _C.Device,
) -> EmittedNetwork:
    """Writes a plan of `graph`, which the module `scripted` runs."""
    from torchalgo._emit.folder import identifier, write_folder
    from torchalgo._emit.network import Facts, network_of

    facts = Facts(held_constants(scripted), mean_dims(scripted))
    network = network_of(_C.lower(graph, plan), graph, facts, device)
    own = identifier(name)
    write_folder(folder, own, network, device.isa, device.threads, _example(scripted, network))
    return EmittedNetwork(
        folder, own, device.isa, device.threads, len(network.calls), network.arena_bytes,
        network.least_arena_bytes, len(network.weights),
    )  # fmt: skip


def _planned(fast: Optimized) -> Result:
    """Returns the result whose module runs the plan."""
    if fast.runs != "plan":
        raise Error(
            f"TA2802 emit: this model runs {fast.runs!r} and not its plan: optimize it with"
            " settings=torchalgo.Settings(own_kernels=True), which always runs its plan"
        )
    fast.schedule()  # raises an error if the graph is not known
    return fast._known("emit")[0]


def _device(
    isa: str | None, threads: int | None, result: Result, known: Sequence[str]
) -> _C.Device:
    here = _C.cpu_device()
    wanted = here.isa if isa is None else isa
    if wanted not in known:
        raise Error(f"TA2802 emit: isa={isa!r}, expected one of {', '.join(map(repr, known))}")
    if known.index(wanted) < known.index(here.isa):  # the widest is first
        raise Error(
            f"TA2802 emit: isa={isa!r}, but this machine has {here.isa!r} only, and the kernels of"
            " that set pack the weights: emit on a machine that has it"
        )
    planned = int(result.plan.environment.get("threads", here.threads))
    count = planned if threads is None else threads
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 128:
        raise Error(f"TA2802 emit: threads={threads!r}, expected a number from 1 to 128")
    return _C.Device(kind="cpu", name=here.name, isa=wanted, threads=count)


def _example(scripted: ScriptModule, network: Network) -> list[bytes]:
    """Returns random inputs and what the module makes of them, as bytes in their orders."""
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(each, generator=random) for each in network.input_sizes]
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
