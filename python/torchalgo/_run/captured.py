# SPDX-License-Identifier: BSD-3-Clause
"""Runs the calls of an optimized module as CUDA graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torchalgo._base.overlap import fork_lock
from torchalgo._C import Error
from torchalgo._capture.freeze import has_own_ops
from torchalgo._capture.shapes import shapes_of
from torchalgo._ir.plan import shapes_text
from torchalgo._measure.guard import time_interleaved
from torchalgo._run.call_times import CallTimes, check_times, compare_calls, pytorchs_graphs

if TYPE_CHECKING:
    from torchalgo._run.optimized import Optimized

WARM_UPS = 3  # calls before a capture: cuDNN's plans are built in the first one
# Two graphs are timed against each other in so many rounds, for at most so many seconds.
ROUNDS, BUDGET_S = 25, 2.0


class CudaGraphs:
    """Holds the memory pool in which CUDA graphs are captured. No other tensor uses it."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._done: torch.cuda.Event | None = None

    def has(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def capture(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Captures what `run` enqueues. Returns its result, and a function that runs it again."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Another thread may allocate memory meanwhile, which the mode "global" forbids.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"
        ):
            result = run()
        return result, graph.replay

    @contextlib.contextmanager
    def turn(self, device: torch.device) -> Iterator[None]:
        """Makes `device` the current one in a block, after the work of earlier blocks."""
        with torch.cuda.device(device):  # streams and graphs belong to the current GPU
            if self._done is not None:
                torch.cuda.current_stream().wait_event(self._done)
            yield
            self._done = torch.cuda.current_stream().record_event()

    def wait(self) -> None:
        """Waits until all work of the current device is done."""
        torch.cuda.synchronize()


@dataclasses.dataclass(frozen=True)
class _Graph:
    inputs: list[Tensor]  # a replay reads these
    result: Any  # and writes the tensors in this
    replay: Callable[[], None]
    results: Any  # of the optimized module at capture: `refresh` replaces them
    module: Optimized  # owns the weights that a replay reads
    runs: str  # "plan" or "baseline"


class CapturedCalls(nn.Module):
    """An Optimized that runs each planned shape as one CUDA graph.

    A graph is one launch for the host, where a plan is one for each operation. This pays where a
    network takes less time on the GPU than the host needs for its launches, as with batches of 1.
    `Optimized.captured` makes it.

        graphed = fast.captured()
        y = graphed(x)

    The first call with a planned shape captures its graph. If the baseline runs because it needs
    less time than the plan with its launches, the plan is captured too. The two graphs are timed,
    and the faster one is kept: `runs` tells which. Calls with other shapes, with keyword
    arguments, with arguments that are no CUDA tensors, or that need gradients run as without
    graphs; `uncaptured_runs` counts them. Results are tensors of their own: later calls do not
    change them. After `refresh()` of the optimized module, graphs are captured again.
    """

    def __init__(self, optimized: Optimized, device: CudaGraphs | None = None) -> None:
        super().__init__()
        self.training = False
        # It owns neither weights nor state, so it is no submodule.
        object.__setattr__(self, "_optimized", optimized)
        self._device = CudaGraphs() if device is None else device
        self._graphs: dict[Hashable, _Graph] = {}
        self._lock = fork_lock()
        self.captured_runs = 0
        self.uncaptured_runs = 0

    _optimized: Optimized

    @property
    def runs(self) -> dict[str, str]:
        """Returns for each shape what its newest graph runs: "plan" or "baseline".

        Returns an empty dict before the first capture.
        """
        with self._lock:
            graphs = list(self._graphs.values())
        return {shapes_text(shapes_of(each.inputs)): each.runs for each in graphs}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the arguments of the optimized module and returns its result.

        Raises: torchalgo.Error as the optimized module does, and if a call cannot be captured.
        """
        key = None if kwargs else self._key(args)
        if key is None or self._optimized._why_original():
            self.uncaptured_runs += 1
            return self._optimized(*args, **kwargs)
        rival = self._prepared(args) if self._graph(key) is None else None
        with self._lock, torch.no_grad(), self._device.turn(args[0].device):
            graph = self._graph(key)
            if graph is None:
                graph = self._graphs[key] = self._capture(args, rival)
            for own, given in zip(graph.inputs, args, strict=True):
                own.copy_(given)
            graph.replay()
            self.captured_runs += 1
            return tree_map_only(Tensor, Tensor.clone, graph.result)

    def compare(self, *inputs: Tensor, rounds: int = 25, budget_s: float = 20.0) -> CallTimes:
        """Times a call as a CUDA graph beside the CUDA graphs that PyTorch makes of the model.

        Those are torch.cuda.make_graphed_callables in nchw and in channels_last, and
        torch.compile(mode="reduce-overhead"), all with cuDNN's benchmark mode.

            print(fast.captured().compare(x))

        Args:
            inputs: CUDA tensors of a planned shape.
            rounds, budget_s: as for `Optimized.compare`. Building the graphs is not timed.

        Returns: CallTimes, whose text is a table.
        Raises: torchalgo.Error if the call is not one that is captured, or if the original model is
            not available, as for a file.
        """
        check_times(rounds, budget_s)
        if self._key(inputs) is None:
            raise Error(
                f"TA1407 compare: a call with {shapes_text(shapes_of(inputs))} is not captured,"
                " expected CUDA tensors of a planned shape that need no gradient"
            )
        model = self._optimized._need_original("compare").model
        own = {
            "plan, as a graph": lambda: self(*inputs),
            "plan, without graphs": lambda: self._optimized(*inputs),
        }
        others = pytorchs_graphs(model, inputs)
        return compare_calls(own, others, inputs[0].device, rounds=rounds, budget_s=budget_s)

    def _key(self, args: Sequence[Any]) -> Hashable | None:
        """Returns what a graph depends on; None if the call is not captured."""
        if not args or not all(isinstance(x, Tensor) and self._device.has(x) for x in args):
            return None
        if torch.is_grad_enabled() and any(x.requires_grad for x in args):
            return None
        if torch.is_autocast_enabled(args[0].device.type):
            return None
        if shapes_of(args) not in self._optimized._scripted_of:
            return None
        return tuple((x.device, x.dtype, x.shape, x.stride()) for x in args)

    def _graph(self, key: Hashable) -> _Graph | None:
        """Returns the graph for these arguments, or None if there is none of the present plans."""
        graph = self._graphs.get(key)
        return None if graph is None or graph.results is not self._optimized._results else graph

    def _prepared(self, args: Sequence[Tensor]) -> Optimized | None:
        """Runs the code of the user that a capture needs, before the lock is held.

        Returns: the module that runs the plan that the guard has refused; None if there is none.
        """
        self._optimized(*args)
        try:
            return self._optimized._with_refused_plan(shapes_of(args))
        except RuntimeError:  # for want of memory
            return None

    def _capture(self, args: Sequence[Tensor], rival: Optimized | None) -> _Graph:
        """Returns the graph of what the optimized module runs, or of `rival` if that is faster."""
        inputs = [torch.empty_like(x).copy_(x) for x in args]
        # Read before: a refresh in another thread meanwhile makes the graph an old one.
        results = self._optimized._results
        is_plan = has_own_ops(self._optimized._scripted_of[shapes_of(args)])
        runs = "plan" if is_plan else "baseline"
        try:
            graph = self._graph_of(self._optimized, inputs, results, runs)
        except RuntimeError as problem:
            if isinstance(problem, Error):
                raise
            raise Error(
                f"TA1406 captured: this call cannot become a CUDA graph ({problem}). Call the"
                " optimized module itself"
            ) from problem
        if rival is None:
            return graph
        try:
            other = self._graph_of(rival, inputs, results, "plan")
        except RuntimeError:
            return graph
        times = time_interleaved(
            {"baseline": graph.replay, "plan": other.replay},
            rounds=ROUNDS, budget_s=BUDGET_S, synchronize=self._device.wait,
        )  # fmt: skip
        is_better = statistics.median(times["plan"]) < statistics.median(times["baseline"])
        return other if is_better else graph

    def _graph_of(self, module: Optimized, inputs: list[Tensor], results: Any, runs: str) -> _Graph:
        result, replay = self._device.capture(lambda: module(*inputs))
        return _Graph(inputs, result, replay, results, module, runs)

    def extra_repr(self) -> str:
        return f"graphs={len(self._graphs)}, {self._optimized.extra_repr()}"
