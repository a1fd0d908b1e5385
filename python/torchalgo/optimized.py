# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize: an nn.Module that runs a plan."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import json
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.fork_lock import fork_lock
from torchalgo.freeze import ScriptModule, has_own_ops, quiet_jit
from torchalgo.joined import join, parts_of
from torchalgo.pareto import Front, Memory
from torchalgo.plan import Plan, plans_from_json, plans_to_json
from torchalgo.report import write_report
from torchalgo.shapes import Shapes, nearest, planned_shapes, shapes_of, spell
from torchalgo.timings import StepTime
from torchalgo.write_file import write_file

PLAN_FILE = "plan.json"  # in a saved file's extra files
MOST_UNSEEN = 1024  # shapes that are counted one by one
OTHERS = "others"  # the key under which the rest is counted


@dataclass(frozen=True)
class Result:
    """What optimize found; all of it but `scripted` and `plan` is gone after save and pickle."""

    scripted: ScriptModule
    plan: Plan
    frozen: ScriptModule | None = None
    costs: _C.CostTable = field(default_factory=_C.CostTable)
    alternatives: dict[str, Plan] = field(default_factory=dict)
    device: str = "cpu"  # where it runs: "cuda:0"
    find_front: Callable[[Memory, int, float], Front] | None = None  # memory, points, seconds each
    is_interrupted: bool = False  # by Ctrl-C
    timings: Mapping[str, StepTime] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        """What the plan was made for."""
        return planned_shapes(self.plan)


class Optimized(nn.Module):
    """A module that computes what the original computes, by the primitives of a plan.

    It holds no parameters: weights are constants of `scripted`. Inference only, on the device and
    in the dtype it was planned for.

    It has a plan for each shape it was planned for. Inputs of other sizes are right as well: the
    nearest plan runs them (`torchalgo.shapes.nearest` is the rule), nothing is measured, and
    `unseen` counts the call.
    """

    is_torchalgo_optimized = True

    def __init__(
        self,
        *results: Result,
        plan_for: Callable[[tuple[Any, ...]], Result] | None = None,
    ) -> None:
        """With `plan_for` and no results, the first call's arguments decide."""
        super().__init__()
        self.training = False
        self._results: tuple[Result, ...] = ()
        self._scripted_of: dict[Shapes, ScriptModule] = {}
        self._unseen: Counter[Shapes] = Counter()  # calls
        self._nearest_of: dict[Shapes, Result] = {}  # of the first unseen shapes
        self._joined: ScriptModule | None = None
        # By id of the scripted module; and the first plan's. They serve the usual calls.
        self._runners: dict[int, _C.GraphRunner] = {}
        self._first_runner: _C.GraphRunner | None = None
        self._dtypes: set[torch.dtype] = set()
        self._device = torch.device("cpu")
        self._plan_for = plan_for
        self._lock = fork_lock()
        if results:
            self._adopt(results)

    # ---- what it tells -------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan, of several that for the first shapes; `print` explains it."""
        return self._known("plan")[0].plan

    @property
    def plans(self) -> dict[str, Plan]:
        """Each plan by the shapes it was made for, spelled as "1x3x224x224", with several tensors
        as "1x3x224x224,1x10"."""
        return {spell(result.shapes): result.plan for result in self._known("plans")}

    @property
    def by_shape(self) -> dict[str, Optimized]:
        """The same with a module for each plan, which shares its weights with this one: to save,
        report or question one plan alone."""
        results = self._known("by_shape")
        if len(results) == 1:
            return {spell(results[0].shapes): self}
        return {spell(result.shapes): Optimized(result) for result in results}

    @property
    def unseen(self) -> Counter[str]:
        """How often this module was called with shapes that have no plan of their own, by shapes;
        beyond the first 1024 of these shapes together as "others"."""
        with self._lock:
            counts = dict(self._unseen)
        return Counter({spell(shapes) if shapes else OTHERS: n for shapes, n in counts.items()})

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs; with several plans one that chooses as this does."""
        results = self._known("scripted")
        if len(results) == 1:
            return results[0].scripted
        with self._lock:
            if self._joined is None:
                joined = join([r.scripted for r in results], [r.shapes for r in results])
                object.__setattr__(self, "_joined", joined)  # no submodule
            return self._joined  # type: ignore[return-value]

    @property
    def costs(self) -> _C.CostTable:
        """The costs that all plans were made from; empty after load."""
        results = self._known("costs")
        if len(results) == 1:
            return results[0].costs
        table = _C.CostTable()
        for key, ticks, source in (item for result in results for item in result.costs.items()):
            if source == "measured" or table.get(key) is None:
                table.set(key, ticks, source)
        return table

    @property
    def alternatives(self) -> dict[str, Plan]:
        """The plans behind plan.comparisons, to run them: optimize(model, x, plan=...)."""
        return self._known("alternatives")[0].alternatives

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that the module holds now for all plans, beside the model's own
        weights. After calls with other input sizes or numbers of threads that may be more than
        plan.weight_bytes; 0 if the baseline runs."""
        return sum(_packed_bytes(result.scripted) for result in self._known("weight_bytes"))

    def pareto(
        self, memory: Memory = "workspace", *, max_points: int = 32, time_limit_s: float = 10.0
    ) -> Front:
        """The front of predicted time and memory from known costs: see torchalgo.pareto. Of several
        plans that for the first shapes; `by_shape` has the others."""
        find_front = self._known("pareto")[0].find_front
        if find_front is None:
            raise Error(
                "pareto: this module was loaded, or made with plan=, or has no convolutions, so"
                " that no costs are in memory; use torchalgo.optimize(model, inputs).pareto()"
            )
        return find_front(memory, max_points, time_limit_s)

    @property
    def timings(self) -> Mapping[str, StepTime]:
        """What optimize spent on each of its steps: wall_s, and cpu_s of this process."""
        return self._known("timings")[0].timings

    @property
    def runs(self) -> Literal["plan", "single_layout", "baseline"]:
        """What runs: "plan"; "single_layout", the best plan in one layout, which was faster; or
        "baseline". Of several plans the first counts that is no baseline."""
        for result in self._known("runs"):
            if has_own_ops(result.scripted):
                verdict = result.plan.guard
                is_single = verdict is not None and verdict.runs == "single_layout"
                return "single_layout" if is_single else "plan"
        return "baseline"

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the tuning, so that the plan rests on the costs known by then."""
        return any(result.is_interrupted for result in self._known("is_interrupted"))

    def extra_repr(self) -> str:
        if not self._results:
            return "plans on its first call"
        if len(self._results) == 1:
            return f"runs={self.runs!r}, predicted_us={self.plan.cost_us}"
        each = ", ".join(f"{shapes}: {plan.cost_us}" for shapes, plan in self.plans.items())
        return f"runs={self.runs!r}, predicted_us={{{each}}}"

    # ---- running -------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._first_runner is not None and not kwargs:
            try:
                result = self._first_runner.run_planned(*args)
            except RuntimeError as problem:
                raise _own_error(problem) or problem from None
            if result is not NotImplemented:
                return result
        return self._forward(args, kwargs)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What every call may need."""
        if not self._results:
            self._plan_on_first_call(args, kwargs)
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                self._check_input(i, value)
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                self._check_input(name, value)
        if torch._C._get_tracing_state() is not None:
            raise Error(
                "forward: an optimized module cannot be traced; put its .scripted, which is"
                " TorchScript already, into the model that you trace"
            )
        module = self._module_for(args, kwargs)
        runner = None if kwargs else self._runners.get(id(module))
        try:
            if runner is not None:
                result = runner.run(*args)
                if result is not NotImplemented:
                    return result
            return module(*args, **kwargs)
        except RuntimeError as problem:
            raise _own_error(problem) or problem from None

    def _module_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScriptModule:
        shapes = shapes_of(self._in_order(args, kwargs) if kwargs else args)
        scripted = self._scripted_of.get(shapes)
        return self._unseen_module(shapes) if scripted is None else scripted

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in forward's order."""
        forward: Any = self._results[0].scripted.forward
        names = [argument.name for argument in forward.schema.arguments[1:]]
        return (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))

    def _unseen_module(self, shapes: Shapes) -> ScriptModule:
        """The module of the nearest plan."""
        with self._lock:
            is_first = not self._unseen
            nearest_before = self._nearest_of.get(shapes)
            is_listed = nearest_before is not None or len(self._nearest_of) < MOST_UNSEEN
            self._unseen[shapes if is_listed else ()] += 1
        if nearest_before is not None:
            return nearest_before.scripted
        planned = [[list(sizes) for sizes in result.shapes] for result in self._results]
        result = self._results[nearest([list(sizes) for sizes in shapes], planned)]
        if is_listed:
            self._nearest_of[shapes] = result
        if is_first and len(self._results) > 1:
            warnings.warn(
                f"torchalgo: there is no plan for inputs {spell(shapes)}; the nearest, for"
                f" {spell(result.shapes)}, runs. This is said once; .unseen counts all such calls",
                stacklevel=7,
            )
        return result.scripted

    def _check_input(self, i: int | str, value: torch.Tensor) -> None:
        if value.device != self._device:
            raise Error(
                f"forward: input {i} is on {value.device}, expected {self._device}:"
                f" call .to({str(self._device)!r}) on it"
            )
        if self._dtypes and value.dtype not in self._dtypes and value.is_floating_point():
            want = " or ".join(sorted(map(str, self._dtypes)))
            raise Error(
                f"forward: input {i} is {value.dtype}, the plan was made for {want}: convert it,"
                " or optimize the model in that dtype"
            )

    def _plan_on_first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs:
            raise Error(
                "optimize: the first call plans and takes positional inputs only, got"
                f" {list(kwargs)}"
            )
        with self._lock:
            if not self._results and self._plan_for is not None:
                self._adopt([self._plan_for(args)])

    def _adopt(self, results: Sequence[Result]) -> None:
        dtypes = {_dtype(i.dtype) for result in results for i in result.plan.inputs}
        self._dtypes = {dtype for dtype in dtypes if dtype.is_floating_point}
        self._device = torch.device(results[0].device)
        # No submodules: .to() and the like must not look for weights in them.
        self._scripted_of = {result.shapes: result.scripted for result in results}
        self._runners = {
            id(result.scripted): runner
            for result in results
            if (runner := _runner_of(result)) is not None
        }
        self._first_runner = self._runners.get(id(results[0].scripted))
        self._plan_for = None
        self._results = tuple(results)  # last: a second thread may run from here on

    def _known(self, what: str) -> tuple[Result, ...]:
        if not self._results:
            raise Error(f"{what}: not planned yet; call the module once, or pass example_inputs")
        return self._results

    # ---- keeping -------------------------------------------------------------------------------

    def save(self, path: str | Path, portable: bool = False) -> None:
        """Writes a TorchScript file with the plan in it; torch.jit.load opens it where torchalgo is
        imported. Of several plans it holds all, and chooses as this module does. `portable`: the
        frozen module of ATen ops, which needs no torchalgo."""
        module = self._portable() if portable else self.scripted
        if not Path(path).name or Path(path).is_dir():
            raise Error(f"save: {str(path)!r} is a folder, expected a file such as model.pt")
        write_file(path, self._bytes_of(module), "save")

    def report(self, path: str | Path) -> None:
        """Writes the plan, or all plans, for readers: .html, .txt or .json by the suffix."""
        write_report([result.plan for result in self._known("report")], Path(path))

    def _plans_text(self) -> str:
        return plans_to_json([result.plan for result in self._results])

    def _portable(self) -> ScriptModule:
        results = self._known("save")
        frozen = [result.frozen for result in results if result.frozen is not None]
        if len(frozen) != len(results):
            raise Error(
                "save: portable=True needs the model as optimize saw it, and this one was loaded:"
                " optimize it again, or load the portable file"
            )
        return frozen[0] if len(frozen) == 1 else join(frozen, [r.shapes for r in results])

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        if not self._results:
            return Optimized(plan_for=self._plan_for)
        with quiet_jit():
            copies = [copy.deepcopy(result.scripted, memo) for result in self._results]
        return Optimized(
            *(
                dataclasses.replace(result, scripted=scripted)
                for result, scripted in zip(self._results, copies, strict=True)
            )
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Optimized], tuple[bytes]]:
        self._known("pickle")
        return _from_bytes, (self._bytes_of(self.scripted),)

    def _bytes_of(self, module: ScriptModule) -> bytes:
        """What torch.jit.save writes, with the plans. In memory, since torch ends the process where
        its own writer finds the disk full."""
        with quiet_jit():
            data: bytes = module.save_to_buffer(_extra_files={PLAN_FILE: self._plans_text()})
        return data

    # ---- what nn.Module has and this has not ---------------------------------------------------

    def train(self, mode: bool = True) -> Optimized:
        if mode:
            raise Error(
                "train: an optimized module is for inference, its batch norms are folded;"
                " train the original model and optimize it afterwards"
            )
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Error(
            "state_dict: an optimized module has no parameters, its weights are folded constants;"
            " use the original model's state_dict, or Optimized.save"
        )

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Error(
            "load_state_dict: an optimized module has no parameters; load into the original model"
            " and optimize that with plan=optimized.plan, which measures nothing"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Optimized:
        for dtype in self._dtypes or {torch.float32}:
            before = torch.empty(1, dtype=dtype, device=self._device)
            try:
                after = fn(before)
            except (RuntimeError, AssertionError) as problem:  # no such device here
                why = str(problem).splitlines()[0]
                raise Error(
                    f"to: an optimized module stays on {self._device}, its plan was measured there;"
                    f" convert the original model and optimize that ({why})"
                ) from None
            if after.dtype != before.dtype or after.device != before.device:
                change = (
                    f"from {before.dtype} on {before.device} to {after.dtype} on {after.device}"
                )
                raise Error(
                    f"to: an optimized module cannot be moved {change}: its plan was measured for"
                    " the former; convert the original model and optimize that"
                )
        return self


def _packed_bytes(scripted: ScriptModule) -> int:
    module: Any = scripted._c
    names = itertools.takewhile(module.hasattr, map("_torchalgo_{}".format, itertools.count()))
    return sum(module.getattr(name).packed_bytes() for name in names)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(f"plan: an input is of dtype {name!r}, expected one of torch's, as float32")
    return dtype


def _runner_of(result: Result) -> _C.GraphRunner | None:
    if not result.device.startswith("cpu"):
        return None
    inputs = [(planned.shape, _dtype(planned.dtype)) for planned in result.plan.inputs]
    return _C.GraphRunner.make(result.scripted._c, inputs)


def _own_error(problem: RuntimeError) -> Error | None:
    """What an op of ours said, without the interpreter's traceback around it."""
    if isinstance(problem, Error):  # from a runner
        return Error(f"forward: {str(problem).removeprefix('torchalgo: ')}")
    _, mark, text = str(problem).rpartition("RuntimeError: torchalgo: ")
    return Error(f"forward: {text.strip()}") if mark else None


def load_scripted(source: str | io.BytesIO, name: str) -> Optimized:
    """An Optimized from torch.jit.save's bytes."""
    extra: dict[str, Any] = {PLAN_FILE: ""}
    device = _device_for(source)
    try:
        with quiet_jit():
            scripted = torch.jit.load(source, map_location=device, _extra_files=extra)
    except (RuntimeError, ValueError, OSError, LookupError) as problem:
        first = (str(problem).splitlines() or ["?"])[0].split(". This is an internal", 1)[0]
        raise Error(f"load: {name} is no TorchScript file, or truncated: {first}") from None
    if not extra[PLAN_FILE]:
        raise Error(
            f"load: {name} holds no {PLAN_FILE}: it was not saved by torchalgo; use torch.jit.load,"
            " or torchalgo.optimize it"
        )
    plans = plans_from_json(extra[PLAN_FILE], f"{name}:{PLAN_FILE}")
    parts = parts_of(scripted) if len(plans) > 1 else [scripted]
    if len(parts) != len(plans):
        raise Error(
            f"load: {name} holds {len(plans)} plans and {len(parts)} modules: it was changed after"
            " torchalgo saved it; save it again"
        )
    results = zip(parts, plans, strict=True)
    return Optimized(*(Result(part, plan, device=device) for part, plan in results))


def _device_for(source: str | io.BytesIO) -> str:
    """Where the module in a file shall run: on a GPU if its plan was made for one and there is one;
    elsewhere its layers fall back."""
    try:
        with zipfile.ZipFile(source) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{PLAN_FILE}")]
            plan = json.loads(archive.read(names[0])) if names else {"environment": {}}
            environment = plan.get("plans", [plan])[0]["environment"]
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error,
    ):  # fmt: skip
        environment = {}  # torch.jit.load says what is wrong
    finally:
        if isinstance(source, io.BytesIO):
            source.seek(0)
    if "gpu" in environment and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def _from_bytes(data: bytes) -> Optimized:
    return load_scripted(io.BytesIO(data), "pickled module")
