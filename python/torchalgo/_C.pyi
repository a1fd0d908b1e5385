# SPDX-License-Identifier: BSD-3-Clause
"""The steps, as C++ has them: pure functions over plain values; no files, no output."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, overload

import torch
from typing_extensions import Unpack

torch_version: str  # the torch it was built for, "2.11.0"
version: str

class Error(RuntimeError):
    code: str  # "TA1101", the first word of the text; "" if it has none; see docs/errors.md

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
    reads_shape_only: bool  # it takes its inputs in any layout

class Graph:
    values: list[Value]
    nodes: list[Node]
    inputs: list[int]
    input_layouts: list[str]
    outputs: list[int]
    structure_hash: str
    def structure_hash_of(self, version: int) -> str: ...
    def to_text(self) -> str: ...  # the inverse of parse_graph

class Imported:
    """A frozen module with its data flow; rewrite_graph needs it."""

    graph: Graph
    module: torch._C.ScriptModule
    result_names: list[str]  # by node of `graph`: its first result in the graph of `module`
    def source_calls(
        self, node: int
    ) -> list[str]: ...  # "file(line): function" of the model's code, the innermost call first

class Candidate:
    covers: list[int]
    problem: str
    primitive: Primitive
    inputs: list[int]
    is_componentwise: bool
    def __init__(
        self, covers: list[int], problem: str, primitive: Primitive, inputs: list[int]
    ) -> None: ...

class Refusal:
    problem: str
    primitive: str
    reason: str

class Candidates:
    by_anchor: list[list[Candidate]]
    refusals: list[list[Refusal]]
    def __init__(
        self, by_anchor: list[list[Candidate]], refusals: list[list[Refusal]] = ...
    ) -> None: ...

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
    ) -> None: ...  # source: measured | bound | model | construction
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
    structure_version: int
    status: str  # optimal | feasible
    cost: int
    lower_bound: int
    method: str
    nodes: list[PlanNode]
    transforms: list[PlanTransform]
    certificate: str  # proof of lower_bound; empty: not asked for
    def __init__(self) -> None: ...

class Measurement:
    ns: list[float]
    failure: str
    method: str  # host | events | graph: how time was taken
    control_ratio: float  # of the call: the first task's second samples to its first; 0: none
    disturbed: int  # samples of a race that were dropped

class Device:
    kind: str  # cpu | cuda
    name: str
    isa: str
    threads: int
    l2_bytes: int
    bf16_isa: str  # "amx" | "avx512bf16" | "": the instructions that multiply in bf16 quickly
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
        bf16_isa: str = "",
        properties: str = "",
        provenance: str = "",
        index: int = -1,
    ) -> None: ...

class Traits:
    """What a person should know of a primitive before choosing it."""

    is_deterministic: bool
    is_runtime_compiled: bool
    numerics: list[str]
    is_componentwise: bool
    hidden_bytes: int | None  # copied between layouts inside; None: unknown

Allow = Callable[[Candidate], bool]

def cpu_device() -> Device: ...
def cuda_device(index: int = 0) -> Device: ...  # Error if this process sees no such GPU
def keep_fake_cuda_guard() -> None: ...  # for fake tensors, if there is no GPU
def cuda_versions() -> tuple[int, int]: ...  # of CUDA: the driver's and the loaded runtime's
def with_tf32_convolutions(
    imported: Imported,
) -> Imported: ...  # f32 convolutions become tf32 ones
def algorithms() -> list[tuple[str, int]]: ...  # name and version of every row
def parse_graph(text: str) -> Graph: ...  # Error naming the line that is not of a graph
def matches_name(name: str, pattern: str) -> bool: ...  # as an override's: csrc/ir/primitive.h
def is_view(primitive: str) -> bool: ...  # costs nothing by construction
def has_own_kernel(primitive: str) -> bool: ...  # also of a view: no library and no torch runs it
def activation_names() -> list[str]: ...  # as in problems, and of torch's functions
def parse_problem(text: str) -> str: ...  # the canonical spelling; Error if it is none
def layers_of(problem: str) -> list[str]: ...  # the convolutions of a chain, else itself
def weight_sizes(problem: str) -> list[int]: ...  # kcrs, no chain; empty: it has none
def tensor_sizes(
    problem: str,
) -> tuple[list[list[int]], list[int]]: ...  # logical, of the inputs and of the result
def terms_per_element(problem: str) -> list[float | None]: ...  # of each layer; None: exact
def flop_count(problem: str) -> float: ...
def with_own_unit(module: torch._C.ScriptModule) -> torch._C.ScriptModule: ...
def import_graph(frozen: torch._C.ScriptModule, inputs: tuple[Any, ...]) -> Imported: ...
def find_candidates(
    graph: Graph,
    workspace_limit_bytes: int = 1 << 30,
    device: Device | None = None,
    deterministic: bool = False,  # leave out what gives other bits in another run
    drop_dominated: bool = False,  # leave out what need not be measured
    runtime_compiled: bool = True,  # False: leave out what is compiled when it first runs
    all_knobs: bool = False,  # True: measure knobs of cuDNN that it does not propose
    named: Sequence[str] = (),  # patterns of matches_name, to be measured in any case
    coarse_types: bool = False,  # also primitives that store data in coarser types
) -> Candidates: ...
def transform_candidates(
    graph: Graph, candidates: Candidates, device: Device | None = None
) -> list[Candidate]: ...
def offers_of(
    problem: str,
    workspace_limit_bytes: int = 1 << 30,
    device: Device | None = None,
    coarse_types: bool = False,
) -> tuple[list[Primitive], list[Traits], list[Refusal]]: ...  # traits[i] of primitives[i]
def rounds_coarsely(problem: str, primitive: Primitive) -> bool: ...  # stores coarser types
def computes_coarsely(
    problem: str, primitive: Primitive
) -> bool: ...  # than it stores, as torch is set
def offer_one(
    problem: str, primitive: Primitive, device: Device
) -> tuple[Primitive | None, Traits, str]: ...  # its name and layouts; or the refusal
def cudnn_version() -> str | None: ...  # "9.19.0", of the cuDNN that torch has mapped
def cudnn_absence() -> str: ...  # why there is none; empty if there is one
def cudnn_execution_stats() -> dict[str, int]: ...  # the fields of cudnn::ExecutionStats
def cudnn_properties_of_gpu(index: int) -> str: ...  # JSON, as cuDNN writes it
def cudnn_plan(problem: str, primitive: Primitive, device: Device) -> tuple[int, str]: ...  # JSON

class Erratum:
    """A rule that refuses an engine; -1 for no end."""

    def __init__(
        self, id: str, operation: str, engine: int, first_version: int, end_version: int
    ) -> None: ...

def set_cudnn_errata(rules: Sequence[Erratum]) -> None: ...  # in place of those set before
def legacy_algorithms(direction: str) -> list[tuple[int, str]]: ...  # (number, word) of fwd, ...

class MeasureOptions(TypedDict, total=False):
    """Keyword arguments, as csrc/profiler/measure.h has them."""

    warmup: int
    rounds: int
    budget_s: float
    cold_bytes: int
    seed: int
    race: bool  # losers get few samples, noisy ones more, see csrc/profiler/race.h
    device: Device | None  # None: the CPU
    control: bool  # the first task once more, see Measurement.control_ratio
    board: memoryview | None  # two int64: steps begun, index of the last one's task

def measure(
    tasks: Sequence[tuple[str, Primitive]],  # (problem, primitive)
    **options: Unpack[MeasureOptions],
) -> list[Measurement]: ...  # releases the GIL

CHANGED_WEIGHTS: int  # in place of cold_bytes: weights that each run packs
LARGE_CACHE_BYTES: int  # as much of a last cache as one process can hope for

def weights_in(
    bytes: int, device: Device | None = None
) -> str: ...  # "l2", "past l2", "no cache": where a model of so many bytes finds its weights
def samples_without_noise(
    places: Sequence[int], ns: Sequence[float], rounds: int
) -> list[int]: ...  # that each of a race gets if each of its samples takes ns[i]
def check_primitives(
    problem: str,
    primitives: Sequence[Primitive],
    max_error: float,
    seed: int = 0,
    device: Device | None = None,  # None: the CPU
    board: memoryview | None = None,  # as of measure
) -> list[tuple[float, str]]: ...  # (relative L2, failure or ""); one f64 reference serves all
def componentwise_error(
    problem: str, primitive: Primitive, seed: int = 0, device: Device | None = None
) -> float: ...
def run_primitive(
    problem: str, primitive: Primitive, seed: int = 0, device: Device | None = None
) -> torch.Tensor: ...  # once, on random data and poisoned memory; the result in nchw

class Resource:
    """Something of which a plan may take only so much in all (csrc/planner/make_plan.h)."""

    name: str
    limit: int
    unit: float  # what 1 of these is, for error texts
    def __init__(
        self, name: str, use: Sequence[Sequence[int]], limit: int, unit: float = 1.0
    ) -> None: ...  # use: per candidate, as by_anchor

class PlanOptions(TypedDict, total=False):
    """Keyword arguments, as csrc/planner/make_plan.h has them."""

    allow: Allow | None
    layouts: Sequence[str]
    workspace_limit_bytes: int | None  # of each primitive
    resources: Sequence[Resource]  # two at most; where one binds: no regrets, no certificate
    time_limit_s: float
    with_regrets: bool
    with_certificate: bool

def make_plan(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    **options: Unpack[PlanOptions],
) -> tuple[Plan, list[CostKey]]: ...
def make_local_plan(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    **options: Unpack[PlanOptions],
) -> tuple[Plan, list[CostKey]]: ...
def make_staged_plan(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    **options: Unpack[PlanOptions],
) -> tuple[Plan, list[CostKey]]: ...
def plan_problem_text(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    **options: Unpack[PlanOptions],
) -> str: ...  # the PBQP that make_plan solves, as its certificate names it
def resource_use(
    graph: Graph, candidates: Candidates, resources: Sequence[Resource], plan: Plan
) -> list[int]: ...  # what the plan takes of each

# Fronts (csrc/planner/pareto.h): plans, and what each takes of the memory or the first resource.
def workspace_front(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    **options: Unpack[PlanOptions],
) -> list[tuple[Plan, int]]: ...
def resource_front(
    graph: Graph,
    candidates: Candidates,
    transforms: Sequence[Candidate],
    costs: CostTable,
    max_points: int,
    **options: Unpack[PlanOptions],
) -> list[tuple[Plan, int]]: ...

# Bytes of weights (csrc/provider/packing.h): what a row allocates beside the model's own.
def packed_bytes(problem: str, primitive: Primitive) -> int: ...
def packed_bytes_of(candidates: Candidates) -> list[list[int]]: ...  # as by_anchor
def plain_weight_bytes(problem: str) -> int: ...  # kcrs, without the bias
def training_graph(
    inference: Graph,
    wanted: Sequence[int] = (),  # inputs that get a gradient
    recomputed: Sequence[int] = (),  # some of recomputable_values
) -> Graph: ...
def recomputable_values(inference: Graph) -> list[int]: ...

# What a plan runs, in which order (csrc/ir/schedule.h).
class ScheduleSlot:
    value: int
    layout: str
    bytes: int  # 0: unknown
    writer: int  # step; -1: an input
    last_use: int  # step; the number of steps: the caller gets it
    view_of: int  # the slot whose memory it is; -1: it has its own
    part: tuple[int, int] | None  # buffer and channel where it is written

class ScheduleStep:
    layer: str
    covers: list[int]  # nodes; none: a change of layout
    problem: str | None  # None: PyTorch runs it
    primitive: Primitive
    src: list[int]  # slots
    residual: int | None
    dst: list[int]
    buffer: int | None  # of a view of parts: the buffer that holds them

class Schedule:
    buffers: list[list[int]]  # sizes in memory
    slots: list[ScheduleSlot]
    steps: list[ScheduleStep]
    inputs: list[int]
    outputs: list[int]

def lower(graph: Graph, plan: Plan) -> Schedule: ...
def constant_bytes(candidates: Candidates) -> list[list[int]]: ...  # as by_anchor, of own kernels
@overload
def memory_need(graph: Graph, candidates: Candidates) -> list[list[int]]: ...  # as by_anchor
@overload
def memory_need(graph: Graph, transforms: Sequence[Candidate]) -> list[int]: ...
def problem_code(problem: str) -> str: ...  # statements of C++ that make the variable `problem`
def slice_begin(problem: str) -> int: ...  # elements before the part, in any layout but nhwc
def content_hash(data: bytes) -> int: ...  # of the weights of an emitted program

class ConstantsFile:  # of an emitted program
    def __init__(self, is_packed: bool) -> None: ...
    # Returns the file of a step's algorithm in csrc/cpu_algo, whether its function returns several
    # algorithms, the name of the primitive on `device`, and the bytes of its workspace. `constants`
    # are weights and bias of each layer.
    def add_step(
        self,
        problem: str,
        primitive: Primitive,
        device: Device,
        constants: Sequence[torch.Tensor | None],
    ) -> tuple[str, bool, str, int]: ...
    @property
    def content(self) -> bytes: ...
    @property
    def packed_bytes(self) -> int: ...  # of what the kernels read
    @property
    def instances(self) -> list[int]: ...  # csrc/cpu_algo/kernels/instances.h, as bits

def training_candidates(  # those that a TrainingRegion can run
    graph: Graph,
    device: Device | None,
    deterministic: bool,
    runtime_compiled: bool,
    all_knobs: bool,
    named: Sequence[str],
    coarse_types: bool,
) -> Candidates: ...

class TrainingRegion:
    """Runs a part of a model and its gradients, see csrc/training/region.h."""

    saved: list[tuple[str, str, int]]  # value, layout, bytes
    def __init__(
        self,
        forward: Graph,
        wanted: Sequence[int],
        recomputed: Sequence[int],
        candidates: Candidates,
        plan: Plan,
        parameters: Sequence[tuple[int, int]],  # weights and bias of each node; -1: none
        device: Device | None,  # a GPU; None: the CPU
    ) -> None: ...
    def run(
        self,
        inputs: Sequence[torch.Tensor],
        parameters: Sequence[torch.Tensor],
        statistics: Sequence[
            tuple[int, torch.Tensor, torch.Tensor, float]
        ],  # node, running mean and variance, and the weight of this batch
    ) -> list[torch.Tensor]: ...  # releases the GIL

# csrc/planner/training_graph.h
def single_candidates(
    graph: Graph, primitives: Sequence[Sequence[Primitive]]
) -> Candidates: ...  # one per primitive, each for its node alone: for tests and simulations

STRUCTURE_VERSION: int  # of Graph.structure_hash

def fit_plan(graph: Graph, plan: Plan) -> str: ...  # FittedPlan.structure_hash
def rewrite_graph(imported: Imported, plan: Plan) -> torch._C.ScriptModule: ...
def rewrite_with_origins(
    imported: Imported, plan: Plan
) -> tuple[torch._C.ScriptModule, list[int]]: ...  # Rewritten of csrc/rewrite/rewrite.h

# User settings and counters (csrc/ops/settings.h).
def set_strict(
    strict: bool,
) -> bool: ...  # returns the old value; strict: a fallback at run time raises
def fallbacks() -> dict[str, tuple[int, str]]: ...  # layer -> (count, last reason)
def reset_fallbacks() -> None: ...

# Choices of convolutions (csrc/ops/settings.h); a text is what parse_choice returns. Process-wide.
ChoiceTexts = tuple[str, str, str]  # fwd, bwd_data, bwd_filter

def parse_choice(text: str) -> str: ...  # the canonical text; Error if it is none
def flag_choices() -> ChoiceTexts: ...
def context_choices() -> ChoiceTexts: ...
def set_flag_choices(forward: str, backward_data: str, backward_filter: str) -> ChoiceTexts: ...
def set_context_choices(
    forward: str, backward_data: str, backward_filter: str
) -> ChoiceTexts: ...  # each returns the old ones
def set_planned_choices(choices: dict[str, str]) -> dict[str, str]: ...  # by problem; the old ones
def set_conflict_policy(policy: str) -> str: ...  # error | fallback | honour; the old one
def set_enabled(enabled: bool) -> bool: ...  # torch's own convolutions obey; the old value
def is_enabled() -> bool: ...
def set_recording(recording: bool) -> bool: ...  # the old value
def recorded_runs() -> list[tuple[str, str, str, int]]: ...  # problem, primitive, step, count
def reset_recorded_runs() -> None: ...

# The weights of a model as they were when they were packed (csrc/runner/weight_watch.h).
class WeightWatch:
    # The text of the first change, and whether it is one of a weight; None if there is none.
    def first_change(self) -> tuple[str, bool] | None: ...

# The weights and the layers of a model (csrc/python/layers.h). Each entry is the dict of a module
# that holds a weight or a setting, and its key.
class ModelWatch(WeightWatch):
    why_original: str  # why no plan of the model runs; "" if one may run
    def __init__(
        self,
        names: Sequence[str],
        places: Sequence[tuple[dict[str, Any], str]],
    ) -> None: ...
    def add_layer(
        self,
        module: torch.nn.Module,
        path: str,
        has_layers: bool,
        settings: Sequence[tuple[dict[str, Any], str]],
    ) -> None: ...
    def add_global_hooks(self, hooks: dict[int, Any]) -> None: ...

# A module's forward without TorchScript's interpreter (csrc/runner/graph_runner.h).
class GraphRunner:
    @staticmethod
    def make(
        module: Any, inputs: Sequence[tuple[Sequence[int], torch.dtype]], device: str = "cpu"
    ) -> GraphRunner | None: ...  # of ScriptModule._c; None: not a row of ops
    def run(self, *inputs: Any) -> Any: ...  # NotImplemented: the module itself must run
    def run_planned(self, *inputs: Any) -> Any: ...  # the same for other sizes, types or devices
    def time_left_ops(self, *inputs: Any) -> Any: ...  # [(node, ns)], or NotImplemented as `run`

# One object of several plans (csrc/runner/plan_object.h), each a ScriptModule._c, its inputs and
# the numbers of as_numbers. Returns a torch.ScriptObject.
def make_plan_object(
    plans: Sequence[
        tuple[
            Any,
            Sequence[tuple[Sequence[int], torch.dtype]],
            Sequence[Sequence[tuple[int, ...]]],
        ]
    ],
    device: str,
    weights: WeightWatch | None = None,
) -> Any: ...

# The plans of such an object as modules, each a ScriptModule._c. `names` are those of its inputs.
def modules_of_plan_object(plan: Any, names: Sequence[str]) -> list[Any]: ...

# The solver on its own (csrc/pbqp). Costs come as arrays of 64-bit integers, 2**63 - 1 forbidden;
# None is forbidden in what is returned.
class PbqpProblem:
    def __init__(
        self, node_costs: Sequence[array[int]], edges: Sequence[tuple[int, int, array[int]]]
    ) -> None: ...  # Error, as csrc/pbqp/problem.h says
    @staticmethod
    def parse(text: str) -> PbqpProblem: ...
    def to_text(self) -> str: ...
    def node_costs(self) -> list[list[int | None]]: ...
    def edges(self) -> list[tuple[int, int, list[int | None]]]: ...  # row by row
    def evaluate(self, choice: Sequence[int]) -> int | None: ...
    def solve(
        self,
        *,
        table_cap: int = ...,
        time_limit_s: float,
        with_marginals: bool,
        with_transcript: bool,
        proof_cap: int = ...,
    ) -> dict[str, Any]: ...  # the fields of torchalgo.pbqp.Solution

def least_work(problem: str, primitive: Primitive) -> tuple[float, float]: ...  # flops, bytes
def least_bytes(problem: str) -> float: ...
def probe_peaks() -> tuple[float, list[tuple[int, float]]]: ...  # of the CPU, all threads, per ns:

# flops; bytes by size of what is passed again and again. Takes about half a second
