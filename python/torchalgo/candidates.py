# SPDX-License-Identifier: BSD-3-Clause
"""What could compute a layer, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.freeze import as_inputs, freeze_model


@dataclass(frozen=True)
class Offered:
    """A primitive that runs the problem."""

    primitive: str
    src: str
    dst: str
    workspace_bytes: int


@dataclass(frozen=True)
class Refused:
    """A primitive that does not, and why."""

    primitive: str
    reason: str


@dataclass(frozen=True)
class LayerCandidates:
    """What every row says of one layer; `name` is empty for a bare problem."""

    name: str
    problem: str
    offered: list[Offered]
    refused: list[Refused]

    def __str__(self) -> str:
        lines = [f"{self.name}  {self.problem}".strip()]
        width = max([len(o.primitive) for o in self.offered + self.refused], default=0)
        for o in self.offered:
            layouts = f"{o.src}->{o.dst}"
            lines.append(f"  {o.primitive:{width}}  {layouts:18}  {o.workspace_bytes:>11,} B")
        lines += [f"  {r.primitive:{width}}  refuses: {r.reason}" for r in self.refused]
        return "\n".join(lines)


class CandidateList(list[LayerCandidates]):
    """One entry per layer; prints as a table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def candidates(
    target: nn.Module | str,
    src: Any = None,
    *,
    device: Any = None,
    direction: str = "fwd",
    workspace_limit_bytes: int = 1 << 30,
) -> CandidateList:
    """Primitives that could compute `target`, and refusals with reasons; runs none of them.

    Args:
        target: a module in eval mode, or a problem as torchalgo spells it.
        src: forward's inputs, if `target` is a module.
        device: None or "cpu" in this version.
        direction: "fwd"; a problem's spelling holds its own.
    """
    if device is not None and str(device) != "cpu":
        raise Error(f"candidates: device={str(device)!r}, this version has 'cpu' only")
    if isinstance(target, str):
        problem = _C.parse_problem(target)
        return CandidateList([_layer("", problem, workspace_limit_bytes)])
    if direction != "fwd":
        raise Error(
            f"candidates: direction={direction!r} of a module is not possible in this version, only"
            " 'fwd'; give the problem as a string"
        )
    if src is None:
        raise Error("candidates: a module needs its input: candidates(module, torch.rand(...))")
    inputs = as_inputs(src)
    imported = _C.import_graph(freeze_model(target, inputs)._c, inputs)
    planned = [(node.name, node.problem) for node in imported.graph.nodes]
    return CandidateList(
        [_layer(name, problem, workspace_limit_bytes) for name, problem in planned if problem]
    )


def _layer(name: str, problem: str, workspace_limit_bytes: int) -> LayerCandidates:
    primitives, _, refusals = _C.offers_of(problem, workspace_limit_bytes)
    return LayerCandidates(
        name,
        problem,
        [Offered(p.name, p.src, p.dst, p.workspace_bytes) for p in primitives],
        [Refused(r.primitive, r.reason) for r in refusals],
    )
