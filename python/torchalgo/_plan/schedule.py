# SPDX-License-Identifier: BSD-3-Clause
"""What a plan runs: the steps in their order, and the tensors between them."""

from __future__ import annotations

from dataclasses import dataclass

from torchalgo import _C
from torchalgo._ir.native_plan import native_plan
from torchalgo._ir.plan import Plan
from torchalgo._ir.plan.text_table import ShownAsText, text_table

PYTORCH = "PyTorch"  # runs what has no problem


@dataclass(frozen=True)
class ScheduledTensor:
    """A tensor of a schedule: one value in one layout."""

    name: str  # of the value in the graph
    layout: str
    bytes: int  # for the planned shapes, with the padding of blocks; 0: unknown
    memory: str  # names its memory; tensors that share memory have the same

    def __str__(self) -> str:
        return f"{self.name} {self.layout}"


@dataclass(frozen=True)
class ScheduledStep:
    """One call: a planned operation, a change of layout, or an operation of PyTorch."""

    layer: str  # of the model; for a change of layout, the tensor
    runs: str  # the primitive, or "PyTorch"
    problem: str  # empty: PyTorch's own operation
    covers: tuple[str, ...]  # the nodes of the graph that it computes; none: a change of layout
    reads: tuple[ScheduledTensor, ...]  # in call order, a residual last
    makes: tuple[ScheduledTensor, ...]
    live_bytes: int  # of all tensors that exist while it runs, inputs of the model included


@dataclass(frozen=True)
class Schedule(ShownAsText):
    """The steps that a plan runs for one set of shapes, in their order.

        schedule = fast.schedule()
        print(schedule)
        print([step.layer for step in schedule.steps if step.runs == "PyTorch"])

    Each tensor has memory of its own, unless it is a view or a part of a concatenation. Memory is
    free after the last step that reads it. Workspaces, packed weights and what PyTorch's operations
    allocate inside are not counted. A result of PyTorch counts as memory of its own.
    """

    inputs: tuple[ScheduledTensor, ...]
    outputs: tuple[ScheduledTensor, ...]
    steps: tuple[ScheduledStep, ...]

    @property
    def most_bytes(self) -> int:
        """The greatest live_bytes of a step."""
        return max((step.live_bytes for step in self.steps), default=0)

    def __str__(self) -> str:
        changes = sum(not step.covers for step in self.steps)
        left = sum(step.runs == PYTORCH for step in self.steps)
        rows = [("step", "layer", "runs", "reads", "makes", "KiB", "live KiB")]
        for number, step in enumerate(self.steps):
            reads, makes = (", ".join(map(str, each)) for each in (step.reads, step.makes))
            size = sum(tensor.bytes for tensor in step.makes)
            rows.append(
                (str(number), step.layer, step.runs, reads, makes, _kib(size),
                 _kib(step.live_bytes))
            )  # fmt: skip
        head = (
            f"{len(self.steps)} steps, {changes} of them changes of layout, {left} left to PyTorch;"
            f" at most {_kib(self.most_bytes)} KiB of tensors at a time"
        )
        return "\n".join([head, *text_table(rows, right={0, 5, 6})])


def _kib(size: int) -> str:
    return f"{size / 1024:.0f}"


def schedule_of(plan: Plan, graph: _C.Graph) -> Schedule:
    """Returns the schedule of a plan for `graph`.

    Raises: torchalgo.Error if the plan was made for another graph.
    """
    native = _C.lower(graph, native_plan(plan))
    memories = _memories(native)
    tensors = [
        ScheduledTensor(graph.values[slot.value].name, slot.layout, slot.bytes, memory)
        for slot, memory in zip(native.slots, memories, strict=True)
    ]
    live = _live_bytes(native, tensors)
    steps = []
    for step, live_bytes in zip(native.steps, live, strict=True):
        reads = [*step.src, *([] if step.residual is None else [step.residual])]
        steps.append(
            ScheduledStep(
                layer=step.layer,
                runs=PYTORCH if step.problem is None else step.primitive.name,
                problem=step.problem or "",
                covers=tuple(graph.nodes[node].name for node in step.covers),
                reads=tuple(tensors[slot] for slot in reads),
                makes=tuple(tensors[slot] for slot in step.dst),
                live_bytes=live_bytes,
            )
        )
    inputs, outputs = (tuple(tensors[i] for i in each) for each in (native.inputs, native.outputs))
    return Schedule(inputs, outputs, tuple(steps))


def _memories(native: _C.Schedule) -> list[str]:
    """Returns the name of the memory of each slot."""
    in_buffer = {step.dst[0]: step.buffer for step in native.steps if step.buffer is not None}
    names: list[str] = []
    for number, slot in enumerate(native.slots):
        buffer = in_buffer.get(number, None if slot.part is None else slot.part[0])
        if buffer is not None:
            names.append(f"buffer {buffer}")
        else:
            names.append(str(number) if slot.view_of < 0 else names[slot.view_of])
    return names


def _live_bytes(native: _C.Schedule, tensors: list[ScheduledTensor]) -> list[int]:
    """Returns the bytes of tensors that exist during each step."""
    parts: dict[str, dict[int, int]] = {}  # of a memory: the bytes from each of its channels on
    first, last = dict[str, int](), dict[str, int]()
    for slot, tensor in zip(native.slots, tensors, strict=True):
        begin = -1 if slot.part is None else slot.part[1]
        own = parts.setdefault(tensor.memory, {})
        own[begin] = max(own.get(begin, 0), tensor.bytes)
        first[tensor.memory] = min(first.get(tensor.memory, slot.writer), slot.writer)
        end = max(slot.last_use, slot.writer)
        last[tensor.memory] = max(last.get(tensor.memory, end), end)
    # The result of a concatenation has no channel of its own; its parts may not fill its buffer.
    size = {name: max(own.pop(-1, 0), sum(own.values())) for name, own in parts.items()}
    return [
        sum(size[name] for name in size if first[name] <= step <= last[name])
        for step in range(len(native.steps))
    ]
