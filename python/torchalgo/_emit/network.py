# SPDX-License-Identifier: BSD-3-Clause
"""The steps of a schedule as calls of kernels: where tensors and constants lie in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torchalgo import _C, Error
from torchalgo._emit.arena import Block, place

# PyTorch's operations whose result is the memory of their input, if that is contiguous.
_SAME_MEMORY = (
    "aten::flatten", "aten::view", "aten::reshape", "aten::unsqueeze", "aten::squeeze",
    "aten::contiguous", "aten::detach", "aten::alias",
)  # fmt: skip
_TURNS = ("aten::permute", "aten::transpose")
# PyTorch's activations of tensors that are no images, such as those between linear layers.
_ACTIVATIONS = ("relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid", "mish", "tanh")

# Constants by layer and problem: weights and bias of each layer of the problem in turn.
Constants = Mapping[tuple[str, str], Sequence[torch.Tensor | None]]


@dataclass(frozen=True)
class Facts:
    """Facts that only the module has: its constants, and the dimensions of its means."""

    constants: Constants
    mean_dims: Sequence[tuple[int, ...] | None]  # of each aten::mean that PyTorch runs, in order


class Place(NamedTuple):
    """Where a tensor lies: memory is "input", "output", "arena" or "none"."""

    memory: str
    number: int = 0  # of the input or output
    offset: int = 0  # bytes


class Call(NamedTuple):
    """One call of a kernel."""

    layer: str
    file: str  # of the algorithm, and the function that it defines
    primitive: _C.Primitive
    problem: str
    src: list[Place]
    residual: Place
    dst: Place
    workspace: Place
    workspace_bytes: int


class Copy(NamedTuple):
    """Bytes that are copied at the end."""

    source: Place
    target: Place
    bytes: int


@dataclass(frozen=True)
class Network:
    """Everything that the generated code says."""

    calls: list[Call]
    copies: list[Copy]
    weights: bytes  # packed, or those of the model
    packed_bytes: int  # of the constants that the kernels read
    arena_bytes: int
    least_arena_bytes: int  # no placement of the same tensors needs fewer
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    input_layouts: list[str]
    instances: list[int]  # csrc/cpu_algo/kernels/instances.h: of each family, as bits
    families: frozenset[str]  # of the files whose function returns several algorithms


class _Root(NamedTuple):
    """A piece of memory that tensors share: its name, and where a tensor begins in it."""

    name: str
    offset: int = 0


def network_of(
    schedule: _C.Schedule, graph: _C.Graph, facts: Facts, device: _C.Device, is_packed: bool
) -> Network:
    """Returns the calls of a schedule and its constants, packed for `device` or as in the model.

    Raises: torchalgo.Error with the layer and the reason, if a step has no kernel of torchalgo.
    """
    _check_types(schedule, graph)
    return _Writer(schedule, graph, facts, device, is_packed).network()


def _check_types(schedule: _C.Schedule, graph: _C.Graph) -> None:
    for slot in [*schedule.inputs, *schedule.outputs]:
        value = graph.values[schedule.slots[slot].value]
        if value.dtype != "f32":
            raise Error(
                f"TA2801 emit: tensor {value.name!r} has the type {value.dtype or 'unknown'},"
                " expected inputs and outputs in f32"
            )


class _Kernel(NamedTuple):
    """A call before its memory is known. src, residual and dst are numbers of slots."""

    layer: str
    problem: str
    primitive: _C.Primitive
    src: list[int]
    residual: int | None
    dst: int
    has_constants: bool

    @property
    def slots(self) -> list[int]:
        return [*self.src, *([] if self.residual is None else [self.residual]), self.dst]


class _Writer:
    def __init__(
        self,
        schedule: _C.Schedule,
        graph: _C.Graph,
        facts: Facts,
        device: _C.Device,
        is_packed: bool,
    ) -> None:
        self._schedule = schedule
        self._graph = graph
        self._constants = facts.constants
        self._device = device
        self._file = _C.ConstantsFile(is_packed)
        self._families: set[str] = set()
        self._roots: list[_Root | None] = [None] * len(schedule.slots)  # None: no memory
        for number, slot in enumerate(schedule.inputs):
            self._roots[slot] = _Root(f"input {number}")
        means = [
            step.covers[0]
            for step in schedule.steps
            if step.problem is None and graph.nodes[step.covers[0]].kind == "aten::mean"
        ]
        is_known = len(means) == len(facts.mean_dims)
        self._mean_dims = dict(zip(means, facts.mean_dims, strict=True)) if is_known else {}
        for step in schedule.steps:
            self._find_roots(step)

    def network(self) -> Network:
        kernels = [kernel for step in self._schedule.steps if (kernel := self._kernel(step))]
        bound = [self._bind(kernel) for kernel in kernels]
        outputs = self._own_outputs()
        blocks = self._blocks(kernels, outputs)
        names = list(blocks)
        needs = list(blocks.values())
        for number, (*_, workspace) in enumerate(bound):
            needs.append(Block(workspace, number, number))
        arena = place(needs)
        offsets = dict(zip(names, arena.offsets, strict=False))
        workspaces = arena.offsets[len(names) :]

        def where(slot: int) -> Place:
            root = self._roots[slot]
            assert root is not None
            kind, _, number = root.name.partition(" ")
            if kind == "input":
                return Place("input", int(number), root.offset)
            if root.name in outputs:
                return Place("output", outputs[root.name], root.offset)
            return Place("arena", 0, offsets[root.name] + root.offset)

        calls = [
            Call(
                layer=kernel.layer,
                file=file,
                primitive=primitive,
                problem=kernel.problem,
                src=[where(slot) for slot in kernel.src],
                residual=Place("none") if kernel.residual is None else where(kernel.residual),
                dst=where(kernel.dst),
                workspace=Place("arena", 0, at) if workspace else Place("none"),
                workspace_bytes=workspace,
            )
            for kernel, (file, primitive, workspace), at in zip(
                kernels, bound, workspaces, strict=True
            )
        ]
        copies = []
        for number, slot in enumerate(self._schedule.outputs):
            if where(slot) != Place("output", number):
                target = Place("output", number)
                copies.append(Copy(where(slot), target, self._schedule.slots[slot].bytes))
        return Network(
            calls=calls,
            copies=copies,
            weights=self._file.content,
            packed_bytes=self._file.packed_bytes,
            arena_bytes=arena.bytes,
            least_arena_bytes=arena.least,
            input_sizes=self._sizes(self._schedule.inputs),
            output_sizes=self._sizes(self._schedule.outputs),
            input_layouts=[self._schedule.slots[slot].layout for slot in self._schedule.inputs],
            instances=self._file.instances,
            families=frozenset(self._families),
        )

    def _sizes(self, slots: Sequence[int]) -> list[list[int]]:
        return [self._graph.values[self._schedule.slots[slot].value].sizes for slot in slots]

    # ---- memory ------------------------------------------------------------------------------

    def _find_roots(self, step: _C.ScheduleStep) -> None:
        """Finds the memory of what a step makes.

        Raises: torchalgo.Error if PyTorch must compute it, or if it reads what has no memory.
        """
        if step.problem is None:
            self._find_roots_of_pytorch(step)
            return
        for slot in [*step.src, *([] if step.residual is None else [step.residual])]:
            if self._roots[slot] is None:
                name = self._graph.values[self._schedule.slots[slot].value].name
                raise Error(
                    f"TA2801 emit: layer {step.layer!r} reads {name!r}, a tensor whose size or type"
                    " is not known"
                )
        made = step.dst[0]
        slot_made = self._schedule.slots[made]
        name = step.primitive.name
        if step.buffer is not None:
            self._roots[made] = _Root(f"buffer {step.buffer}")
        elif slot_made.part is not None:
            buffer, channel = slot_made.part
            _, _, height, width, _ = self._schedule.buffers[buffer]
            self._roots[made] = _Root(f"buffer {buffer}", 4 * channel * height * width)
        elif slot_made.view_of >= 0:
            whole = self._roots[slot_made.view_of]
            assert whole is not None
            begin = _C.slice_begin(step.problem) if name == "view.slice" else 0
            self._roots[made] = _Root(whole.name, whole.offset + 4 * begin)
        else:
            self._roots[made] = _Root(f"slot {made}")

    def _find_roots_of_pytorch(self, step: _C.ScheduleStep) -> None:
        node = self._graph.nodes[step.covers[0]]
        has_tensor = any(self._graph.values[value].dtype for value in node.outputs)
        if node.reads_shape_only or not has_tensor:
            return  # sizes are constants here
        if self._problem_of_pytorch(step):
            self._roots[step.dst[0]] = _Root(f"slot {step.dst[0]}")
            return
        layouts = [self._schedule.slots[slot].layout for slot in (*step.src[:1], *step.dst)]
        sizes = [self._bytes(slot) for slot in (*step.src[:1], *step.dst)]
        # [n, c, h, w] in nhwc is [n, h, w, c] in nchw.
        is_turned = node.kind in _TURNS and len(set(layouts)) == 2
        is_view = (node.kind in _SAME_MEMORY or is_turned) and len(set(sizes)) == 1
        if not is_view or len(step.dst) != 1:
            why = f": {node.note}" if node.note else ""
            raise Error(
                f"TA2801 emit: layer {step.layer!r} is {node.kind}, which no kernel of torchalgo"
                f" computes{why}"
            )
        self._roots[step.dst[0]] = self._roots[step.src[0]]

    def _problem_of_pytorch(self, step: _C.ScheduleStep) -> tuple[str, str] | None:
        """Returns problem and kernel of an operation that PyTorch runs in the module, if known.

        These are activations of tensors that are no images, and means of images. Their results may
        differ from the module's in the last bits.
        """
        node = self._graph.nodes[step.covers[0]]
        slots = [self._schedule.slots[slot] for slot in (*step.src, *step.dst)]
        is_plain = len(slots) == 2 and all(
            slot.layout == "nchw" and self._graph.values[slot.value].dtype == "f32"
            for slot in slots
        )
        if not is_plain:
            return None
        sizes = self._graph.values[slots[0].value].sizes
        kind = node.kind.removeprefix("aten::")  # one in place may change what others read
        if kind in _ACTIVATIONS:
            return f"{kind}_f32_n1c1h1w{math.prod(sizes)}", "cpu.activation"
        dims = self._mean_dims.get(step.covers[0])
        if dims is not None and len(sizes) == 4 and {dim % 4 for dim in dims} == {2, 3}:
            n, c, h, w = sizes
            return f"avgpool_f32_n{n}c{c}h{h}w{w}_p1q1", "cpu.pool"
        return None

    def _kernel(self, step: _C.ScheduleStep) -> _Kernel | None:
        """Returns what a kernel must compute; None for views and what is PyTorch's."""
        primitive, dst = step.primitive, step.dst
        if step.problem is None:
            found = self._problem_of_pytorch(step)
            if found is None:
                return None
            problem, name = found
            primitive = _C.Primitive(name, "nchw", "nchw")
            return _Kernel(step.layer, problem, primitive, step.src, None, dst[0], False)
        is_copied = primitive.name == "view.concat" and step.buffer is None
        if _C.is_view(primitive.name) and not is_copied:
            return None
        own = {"layout.aten": "layout.tiled", "view.concat": "cpu.concat"}.get(primitive.name)
        if own is not None:  # it has the same bits and needs no torch
            primitive = _C.Primitive(own, primitive.src, primitive.dst)
        return _Kernel(
            step.layer, step.problem, primitive, step.src, step.residual, dst[0], bool(step.covers)
        )

    def _own_outputs(self) -> dict[str, int]:
        """Returns the pieces of memory that are memory of an output, with its number."""
        own: dict[str, int] = {}
        shared = {
            root.name
            for slot, root in enumerate(self._roots)
            if root is not None and self._schedule.slots[slot].part is not None
        }
        for number, slot in enumerate(self._schedule.outputs):
            root = self._roots[slot]
            if root is None:
                raise Error(f"TA2801 emit: output {number} is no tensor whose size is known")
            is_whole = root.offset == 0 and self._bytes_of(root.name) == self._bytes(slot)
            if not root.name.startswith("input") and root.name not in {*own, *shared} and is_whole:
                own[root.name] = number
        return own

    def _bytes(self, slot: int) -> int:
        return self._schedule.slots[slot].bytes

    def _bytes_of(self, name: str) -> int:
        """Returns the bytes of a piece of memory."""
        kind, _, number = name.partition(" ")
        if kind == "buffer":
            return 4 * math.prod(self._schedule.buffers[int(number)])
        return self._bytes(int(number) if kind == "slot" else self._schedule.inputs[int(number)])

    def _blocks(self, kernels: Sequence[_Kernel], outputs: Mapping[str, int]) -> dict[str, Block]:
        """Returns the pieces of memory of the arena, with the first and last call of each."""
        blocks: dict[str, Block] = {}

        def use(slot: int, number: int) -> None:
            root = self._roots[slot]
            assert root is not None
            if root.name.startswith("input") or root.name in outputs:
                return
            old = blocks.get(root.name, Block(self._bytes_of(root.name), number, number))
            blocks[root.name] = old._replace(last=max(old.last, number))

        for number, kernel in enumerate(kernels):
            for slot in kernel.slots:
                use(slot, number)
        for slot in self._schedule.outputs:
            use(slot, len(kernels))
        return blocks

    # ---- constants ---------------------------------------------------------------------------

    def _bind(self, kernel: _Kernel) -> tuple[str, _C.Primitive, int]:
        """Adds constants. Returns the file of the algorithm, its primitive, and its workspace."""
        key = (kernel.layer, kernel.problem)
        constants = self._constants.get(key, []) if kernel.has_constants else []
        try:
            file, is_family, name, workspace = self._file.add_step(
                kernel.problem, kernel.primitive, self._device, constants
            )
        except Error as error:
            why = str(error).partition("emit: ")[2]
            raise Error(f"TA2801 emit: layer {kernel.layer!r}: {why}") from None
        if is_family:
            self._families.add(file)
        wanted = kernel.primitive
        return file, _C.Primitive(name, wanted.src, wanted.dst), workspace
