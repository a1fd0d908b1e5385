# SPDX-License-Identifier: BSD-3-Clause
"""The steps, as C++ has them: pure functions over plain values; no files, no output."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

torch_version: str  # the torch it was built for, "2.11.0"
version: str

class Error(RuntimeError): ...

class Primitive:
    name: str
    src: str
    dst: str
    workspace_bytes: int
    def __init__(self, name: str, src: str, dst: str, workspace_bytes: int = 0) -> None: ...

class Value:
    name: str
    sizes: list[int]
    dtype: str | None
    producer: int

class Node:
    name: str
    kind: str
    inputs: list[int]
    outputs: list[int]
    problem: str | None
    note: str

class Graph:
    values: list[Value]
    nodes: list[Node]
    inputs: list[int]
    input_layouts: list[str]
    outputs: list[int]
    structure_hash: str

class Imported:
    """A frozen module with its data flow; rewrite_graph needs it."""

    graph: Graph

class Candidate:
    covers: list[int]
    problem: str
    primitive: Primitive
    inputs: list[int]

class Refusal:
    problem: str
    primitive: str
    reason: str

class Candidates:
    by_anchor: list[list[Candidate]]
    refusals: list[list[Refusal]]

class CostKey:
    problem: str
    primitive: str
    src: str
    dst: str
    def __init__(self, problem: str, primitive: str, src: str, dst: str) -> None: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...

class CostTable:
    """Mutable: the one accumulator of the measuring loop."""

    def __init__(self) -> None: ...
    def set(
        self, key: CostKey, ticks: int, source: str
    ) -> None: ...  # source: measured | bound | model
    def get(self, key: CostKey) -> tuple[int, str] | None: ...
    def items(self) -> list[tuple[CostKey, int, str]]: ...
    def __len__(self) -> int: ...

class PlanNode:
    name: str
    problem: str
    primitive: Primitive
    absorbed_by: str
    cost: int
    cost_source: str
    runner_up: str
    regret: int | None
    def __init__(self) -> None: ...

class PlanTransform:
    value: str
    producer: str
    problem: str
    primitive: Primitive
    cost: int
    def __init__(self) -> None: ...

class Plan:
    structure_hash: str
    status: str  # optimal | feasible
    cost: int
    lower_bound: int
    method: str
    nodes: list[PlanNode]
    transforms: list[PlanTransform]
    def __init__(self) -> None: ...

class Samples:
    ns: list[float]
    failure: str

class Device:
    kind: str  # cpu | cuda
    name: str
    isa: str
    threads: int
    l2_bytes: int
    properties: str  # of a GPU: cuDNN's device property JSON
    provenance: str  # of a GPU: where the properties come from
    index: int  # of a GPU in this process; -1: it is only described
    def __init__(
        self,
        *,
        kind: str,
        name: str,
        isa: str,
        threads: int = 1,
        l2_bytes: int = 1 << 20,
        properties: str = "",
        provenance: str = "",
        index: int = -1,
    ) -> None: ...

class Traits:
    """What a person should know of a primitive before choosing it."""

    is_deterministic: bool
    is_runtime_compiled: bool
    numerics: list[str]
    hidden_bytes: int | None  # copied between layouts inside; None: unknown

Allow = Callable[[Candidate], bool]

def cpu_device() -> Device: ...
def algorithms() -> list[tuple[str, int]]: ...  # name and version of every row
def parse_problem(text: str) -> str: ...  # the canonical spelling; Error if it is none
def weight_sizes(problem: str) -> list[int]: ...  # kcrs; empty: it has none
def flop_count(problem: str) -> float: ...
def import_graph(frozen: torch._C.ScriptModule, inputs: tuple[Any, ...]) -> Imported: ...
def find_candidates(
    graph: Graph, workspace_limit_bytes: int = 1 << 30, device: Device | None = None
) -> Candidates: ...
def transform_candidates(
    graph: Graph, candidates: Candidates, device: Device | None = None
) -> list[Candidate]: ...
def offers_of(
    problem: str, workspace_limit_bytes: int = 1 << 30, device: Device | None = None
) -> tuple[list[Primitive], list[Traits], list[Refusal]]: ...  # traits[i] of primitives[i]
def measure(
    tasks: Sequence[tuple[str, Primitive]],  # (problem, primitive)
    *,
    warmup: int = 2,
    rounds: int = 9,
    budget_s: float = 0.25,
    cold_bytes: int = 48 << 20,
    seed: int = 0,
) -> list[Samples]: ...  # releases the GIL
def check_primitives(
    problem: str, primitives: Sequence[Primitive], max_rel_error: float, seed: int = 0
) -> list[tuple[float, str]]: ...  # (relative L2, failure or ""); one f64 reference serves all
def make_plan(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    *,
    allow: Allow | None = None,
    layouts: Sequence[str] = (),
    time_limit_s: float = 10.0,
    with_regrets: bool = False,
) -> tuple[Plan, list[CostKey]]: ...
def make_local_plan(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    *,
    allow: Allow | None = None,
    layouts: Sequence[str] = (),
    time_limit_s: float = 10.0,
) -> tuple[Plan, list[CostKey]]: ...
def rewrite_graph(imported: Imported, plan: Plan) -> torch._C.ScriptModule: ...

# User settings and counters (csrc/ops/settings.h).
def set_strict(
    strict: bool,
) -> bool: ...  # returns the old value; strict: a fallback at run time raises
def fallbacks() -> dict[str, tuple[int, str]]: ...  # layer -> (count, last reason)
def reset_fallbacks() -> None: ...
