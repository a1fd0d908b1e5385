# SPDX-License-Identifier: BSD-3-Clause
"""Lists the primitives that could compute a layer, and the refusals. Runs none of them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Union

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.kept_model import kept_model
from torchalgo._C import Error
from torchalgo._capture.freeze import as_inputs, device_of
from torchalgo._capture.settings import allows_coarse_types
from torchalgo._ir.choices import Direction, DType
from torchalgo._ir.costs import MAX_ERROR, engine_of
from torchalgo._ir.devices import named_device
from torchalgo._ir.facts import Refused, without_layouts
from torchalgo._ir.plan import format_bytes
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._ir.problems import (
    Directions,
    LayerProblem,
    check_directions,
    check_dtype,
    compute_type,
    dtype_of,
    gradient_of,
    is_convolution,
    is_other_operation,
    problems_of,
    with_direction,
    with_dtype,
)
from torchalgo._measure.allowed import grouped
from torchalgo._plan.limits import packed_bytes
from torchalgo._plan.preparation import best_capture

MOST_LINES = 40  # a layer with more candidates prints one line per engine
MAX_COLUMNS = 120
_HEAD = ("primitive", "source->result", "workspace", "packed weights", "")
DeviceLike = Union[None, str, torch.device, "_C.Device"]


@dataclass(frozen=True)
class OfferedPrimitive:
    """A primitive that can run the problem."""

    primitive: str
    src: str
    dst: str
    workspace_bytes: int
    is_deterministic: bool = True
    is_runtime_compiled: bool = False  # the first use compiles, which takes seconds
    numerics: list[str] = field(default_factory=list)  # how it rounds: "tensor_core", ...
    hidden_bytes: int | None = 0  # bytes that it copies between layouts inside; None: unknown
    packed_bytes: int = 0  # bytes of its packed weights, in addition to the model's own weights

    @property
    def engine(self) -> str:
        """The primitive's name, as engine_of returns it."""
        return engine_of(self.primitive)


@dataclass(frozen=True)
class LayerCandidates(ShownAsText):
    """The offers and refusals of all algorithms for one layer. `print` shows them as a table.

    `name` is empty if the target was a problem.
    """

    name: str
    problem: str
    offered: list[OfferedPrimitive]
    refused: list[Refused]
    device: str = ""  # its name and the source of its data; "" for this CPU

    def __str__(self) -> str:
        return self._text(MOST_LINES)

    @property
    def details(self) -> str:
        """The table as text, with one line for every candidate and every refusal."""
        return self._text(None)

    def _text(self, most: int | None) -> str:
        """Returns the table; if it has more than `most` lines, with one line per engine."""
        lines = [f"{self.name}  {self.problem}".strip()]
        lines += [f"  on {self.device}"] if self.device else []
        is_whole = most is None or len(self.offered) <= most
        groups = [[o] for o in self.offered]
        if not is_whole:
            groups = list(grouped(self.offered, lambda o: o.engine).values())
        lines += _aligned([_row(_best(group), len(group)) for group in groups])
        if not is_whole:
            shown = "the lightest of each engine shown: .details has all"
            lines.append(f"  ({len(self.offered)} in all, {shown})")
        return "\n".join([*lines, *self._refusals(most)])

    def _refusals(self, most: int | None) -> list[str]:
        """Returns the lines of the refusals.

        Lists them one by one if there are at most `most`, or if `most` is None. Otherwise lists
        the engines of which nothing is offered, by reason. If `most` is given, primitives of other
        operations are left out.
        """
        refused = self.refused
        if most is not None and is_convolution(self.problem):
            refused = [r for r in refused if not is_other_operation(r.primitive, r.reason)]
        if most is None or len(refused) <= most:
            width = max([len(r.primitive) for r in refused], default=0)
            return [f"  {r.primitive:{width}}  refuses: {r.reason}" for r in refused]
        offered = {o.engine for o in self.offered}
        said = {  # for each engine, the refusal with the shortest name
            engine: without_layouts(min(own, key=lambda r: len(r.primitive)).reason)
            for engine, own in grouped(refused, lambda r: engine_of(r.primitive)).items()
            if engine not in offered
        }
        reasons = grouped(said, lambda engine: said[engine])
        lines = [f"{some_of(names, 3)} refuses: {reason}" for reason, names in reasons.items()]
        return [wrapped for line in lines for wrapped in _wrapped(line)]


class CandidateList(ShownAsText, list[LayerCandidates]):
    """The candidates of each layer. `print` shows a table, `.details` is the complete one."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    @property
    def details(self) -> str:
        """The table as text, with one line for every candidate and every refusal."""
        return "\n".join(layer.details for layer in self)


def candidates(
    target: nn.Module | str,
    example_inputs: Any = None,
    *,
    device: DeviceLike = None,
    directions: Directions | None = None,
    dtype: DType | torch.dtype | None = None,
    workspace_limit_bytes: int = 1 << 30,
    max_error: float = MAX_ERROR,
) -> CandidateList:
    """Returns the primitives that can compute `target`, and the refusals of the others.

    Runs none of them.

        print(torchalgo.candidates(model, x))
        problem = "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"
        print(torchalgo.candidates(problem, device="h100"))

    Args:
        target: a module, or the text of a problem.
        example_inputs: the inputs of forward, if `target` is a module.
        device: "cpu" for this CPU, "cuda" for this machine's GPU, or a _C.Device. The name of a GPU
            such as "h100" also works if this machine has none. The table says where its data come
            from. None: the device of the module, or this CPU for a problem.
        directions: "forward", "backward_data", "backward_filter", several, or "all". For a module,
            lists its convolutions in these directions, with nothing fused to them. For a problem,
            replaces the problem's own direction. None: every layer of a module's forward, with all
            that can be fused to it; or the problem as it is.
        dtype: "f32", "tf32", "f16", ...: replaces the data type of the convolutions. None: keeps
            it.
        workspace_limit_bytes: the most bytes of workspace; primitives that need more are refused.
        max_error: that of `optimize`. From 1e-3 on, primitives that store tensors or weights in
            bf16 or f16 are listed too.

    Returns: a CandidateList with one LayerCandidates per layer and direction.
    Raises: torchalgo.Error if the target, the device or an argument is invalid.
    """
    where = find_device(default_device(target, example_inputs) if device is None else device)
    layers = asked_layers(target, example_inputs, where, directions, dtype, "candidates")
    coarse = allows_coarse_types(max_error)
    return CandidateList([ask(layer, where, workspace_limit_bytes, coarse) for layer in layers])


def asked_layers(
    target: nn.Module | str,
    example_inputs: Any,
    where: _C.Device,
    directions: Directions | None,
    dtype: DType | torch.dtype | None,
    caller: str,
) -> list[LayerProblem]:
    """Returns the problems that a call of `candidates` or `profile` asks for.

    They are convolutions. Without directions, `candidates` lists every layer of a module.

    Raises: torchalgo.Error if an argument is invalid.
    """
    found, word = check_directions(directions, caller), check_dtype(dtype, caller)
    turned: Callable[[str, Direction], str] = gradient_of
    if isinstance(target, str):
        layers = [LayerProblem("", str(_C.parse_problem(target)))]
        turned = with_direction
    else:
        inputs = _checked_inputs(target, example_inputs, caller)
        is_forward = caller == "candidates" and not found
        with kept_model(target):
            layers = (_planned_layers if is_forward else problems_of)(target, inputs, where.kind)
    if found or word:
        layers = [layer for layer in layers if is_convolution(layer.problem)]
    if not layers:
        raise Error(
            f"TA4002 {caller}: directions and dtype need a convolution, got {target}: leave them"
            " out"
        )
    if found:
        layers = [LayerProblem(n, turned(p, d)) for n, p in layers for d in found]
    return [LayerProblem(n, with_dtype(p, word)) for n, p in layers] if word else layers


def _checked_inputs(module: nn.Module, example_inputs: Any, caller: str) -> tuple[Any, ...]:
    if not isinstance(module, nn.Module):
        raise Error(
            f"TA4008 {caller}: target is {type(module).__name__}, expected a module or the text of"
            " a problem"
        )
    if example_inputs is None:
        raise Error(
            f"TA4008 {caller}: got a module without its input: call {caller}(module,"
            " torch.rand(...))"
        )
    return as_inputs(example_inputs)


def _planned_layers(module: nn.Module, inputs: tuple[Any, ...], kind: str) -> list[LayerProblem]:
    imported = _C.import_graph(best_capture(module, inputs).frozen._c, inputs)
    planned = [(node.name, node.problem) for node in imported.graph.nodes if node.problem]
    return [LayerProblem(name, _as_run_on(kind, problem)) for name, problem in planned]


def find_device(device: DeviceLike) -> _C.Device:
    """Returns the device for an argument of `candidates`.

    Raises: torchalgo.Error if there is no such device. The text names the known ones.
    """
    if isinstance(device, _C.Device):
        return device
    name = "cpu" if device is None else str(device)
    if name == "cpu":
        return _C.cpu_device()
    kind, colon, index = name.partition(":")
    if kind != "cuda":
        return named_device(name)
    if colon and not index.isdecimal():
        raise Error(f"TA4010 candidates: device={name!r}, expected 'cuda' or 'cuda:0'")
    if not colon:
        index = str(torch.cuda.current_device()) if torch.cuda.is_available() else "0"
    return _C.cuda_device(int(index))


def default_device(target: nn.Module | str, example_inputs: Any) -> str:
    """Returns the GPU of a module, such as "cuda:1"; "cpu" for a problem or any other module.

    The inputs decide if the module has no weights.
    """
    if not isinstance(target, nn.Module) or example_inputs is None:
        return "cpu"
    device = device_of(target, as_inputs(example_inputs))
    return str(device) if device.type == "cuda" else "cpu"


def describe_device(device: _C.Device) -> str:
    """Returns the device's text in the head of a table; "" for this CPU."""
    if device.kind == "cpu":
        return ""
    return f"{device.name} ({device.isa}; {device.provenance or 'unknown'})"


def _as_run_on(kind: str, problem: str) -> str:
    """Returns the problem with TF32 instead of f32 if torch's flags allow it."""
    if is_convolution(problem) and dtype_of(problem) == "f32":
        return with_dtype(problem, compute_type(torch.float32, kind))
    return problem


def ask(
    layer: LayerProblem, device: _C.Device, workspace_limit_bytes: int, coarse_types: bool
) -> LayerCandidates:
    """Returns the offers and refusals of all algorithms for one layer."""
    primitives, traits, refusals = _C.offers_of(
        layer.problem, workspace_limit_bytes, device, coarse_types
    )
    offered = [
        OfferedPrimitive(
            p.name,
            p.src,
            p.dst,
            p.workspace_bytes,
            t.is_deterministic,
            t.is_runtime_compiled,
            list(t.numerics),
            t.hidden_bytes,
            packed_bytes(layer.problem, p),
        )
        for p, t in zip(primitives, traits, strict=True)
    ]
    refused = [Refused(r.primitive, r.reason) for r in refusals]
    return LayerCandidates(layer.name, layer.problem, offered, refused, describe_device(device))


# ---- printing ------------------------------------------------------------------------------------


def _row(o: OfferedPrimitive, count: int) -> tuple[str, ...]:
    """Returns the cells of a line: primitive, layouts, workspace, packed weights and notes."""
    notes = [] if o.is_deterministic else ["not deterministic"]
    if o.hidden_bytes is None:
        notes.append("copies unknown")
    elif o.hidden_bytes:
        notes.append(f"copies {format_bytes(o.hidden_bytes)}")
    if o.is_runtime_compiled:
        notes.append("compiled at first use")
    notes += o.numerics
    if count > 1:
        notes.append(f"1 of {count}")
    name = o.primitive if count == 1 else o.engine
    layouts = f"{o.src}->{o.dst}" + (" krsc" if count > 1 and ".krsc" in o.primitive else "")
    packed = f"+{format_bytes(o.packed_bytes)}" if o.packed_bytes else ""
    return name, f"{layouts:18}", format_bytes(o.workspace_bytes), packed, ", ".join(notes)


def _best(group: list[OfferedPrimitive]) -> OfferedPrimitive:
    """Returns the primitive that copies the fewest bytes inside, then with the least workspace."""
    unknown = 1 << 62
    return min(
        group,
        key=lambda o: (
            unknown if o.hidden_bytes is None else o.hidden_bytes,
            o.workspace_bytes,
            len(o.primitive),
            o.primitive,
        ),
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Returns the head and the lines of the table; no lines if nothing is offered."""
    return text_table([_HEAD, *rows], right=(2, 3), indent="  ") if rows else []


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(
        line, MAX_COLUMNS, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def some_of(names: list[str], most: int) -> str:
    """Returns the first `most` different names, and how many more there are."""
    shown = list(dict.fromkeys(names))
    text = ", ".join(shown[:most])
    return f"{text} and {len(shown) - most} more" if len(shown) > most else text
