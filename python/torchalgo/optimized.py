# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize: an nn.Module that runs a plan."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import json
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.freeze import ScriptModule, has_own_ops, quiet_jit
from torchalgo.pareto import Front, Memory
from torchalgo.plan import Plan
from torchalgo.report import write_report
from torchalgo.timings import StepTime

PLAN_FILE = "plan.json"  # in a saved file's extra files


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
    timings: Mapping[str, StepTime] = field(default_factory=dict)


class Optimized(nn.Module):
    """A module that computes what the original computes, by the primitives of a plan.

    It holds no parameters: weights are constants of `scripted`. Inference only, on the device and
    in the dtype it was planned for; inputs of other sizes are right, and as fast as their layouts
    allow.
    """

    is_torchalgo_optimized = True
    _scripted: ScriptModule

    def __init__(
        self,
        result: Result | None = None,
        *,
        plan_for: Callable[[tuple[Any, ...]], Result] | None = None,
    ) -> None:
        """With `plan_for` and no result, the first call's arguments decide."""
        super().__init__()
        self.training = False
        self._result: Result | None = None
        self._dtypes: set[torch.dtype] = set()
        self._device = torch.device("cpu")
        self._plan_for = plan_for
        self._lock = threading.Lock()
        if result is not None:
            self._adopt(result)

    # ---- what it tells -------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan; `print` explains it."""
        return self._known("plan").plan

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs."""
        return self._known("scripted").scripted

    @property
    def costs(self) -> _C.CostTable:
        """The costs the plan was made from; empty after load."""
        return self._known("costs").costs

    @property
    def alternatives(self) -> dict[str, Plan]:
        """The plans behind plan.comparisons, to run them: optimize(model, x, plan=...)."""
        return self._known("alternatives").alternatives

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that the module holds now, beside the model's own weights. After
        calls with other input sizes or numbers of threads that may be more than plan.weight_bytes;
        0 if the baseline runs."""
        module = self._known("weight_bytes").scripted._c
        names = itertools.takewhile(module.hasattr, map("_torchalgo_{}".format, itertools.count()))
        return sum(module.getattr(name).packed_bytes() for name in names)

    def pareto(
        self, memory: Memory = "workspace", *, max_points: int = 32, time_limit_s: float = 10.0
    ) -> Front:
        """The front of predicted time and memory from known costs: see torchalgo.pareto."""
        find_front = self._known("pareto").find_front
        if find_front is None:
            raise Error(
                "pareto: this module was loaded, or made with plan=, or has no convolutions, so"
                " that no costs are in memory; use torchalgo.optimize(model, inputs).pareto()"
            )
        return find_front(memory, max_points, time_limit_s)

    @property
    def timings(self) -> Mapping[str, StepTime]:
        """What optimize spent on each of its steps: wall_s, and cpu_s of this process."""
        return self._known("timings").timings

    @property
    def runs(self) -> Literal["plan", "baseline"]:
        """Whether the plan runs, or the baseline, which was faster."""
        return "plan" if has_own_ops(self._known("runs").scripted) else "baseline"

    def extra_repr(self) -> str:
        if self._result is None:
            return "plans on its first call"
        return f"runs={self.runs!r}, predicted_us={self.plan.cost_us}"

    # ---- running -------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._result is None:
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
        try:
            return self._scripted(*args, **kwargs)
        except RuntimeError as problem:
            raise _own_error(problem) or problem from None

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
            if self._result is None and self._plan_for is not None:
                self._adopt(self._plan_for(args))

    def _adopt(self, result: Result) -> None:
        dtypes = {_dtype(i.dtype) for i in result.plan.inputs}
        self._dtypes = {dtype for dtype in dtypes if dtype.is_floating_point}
        self._device = torch.device(result.device)
        # Not a submodule: .to() and the like must not look for weights in it.
        object.__setattr__(self, "_scripted", result.scripted)
        self._plan_for = None
        self._result = result  # last: a second thread may run from here on

    def _known(self, what: str) -> Result:
        if self._result is None:
            raise Error(f"{what}: not planned yet; call the module once, or pass example_inputs")
        return self._result

    # ---- keeping -------------------------------------------------------------------------------

    def save(self, path: str | Path, portable: bool = False) -> None:
        """Writes a TorchScript file with the plan in it; torch.jit.load opens it where torchalgo is
        imported. `portable`: the frozen module of ATen ops, which needs no torchalgo."""
        result = self._known("save")
        module = result.frozen if portable else result.scripted
        if module is None:
            raise Error(
                "save: portable=True needs the model as optimize saw it, and this one was loaded:"
                " optimize it again, or load the portable file"
            )
        path = Path(path)
        if not path.name or path.is_dir():
            raise Error(f"save: {str(path)!r} is a folder, expected a file such as model.pt")
        part = path.with_name(path.name + ".part")  # a crash leaves no torn file under the name
        try:
            with quiet_jit():
                torch.jit.save(module, str(part), _extra_files={PLAN_FILE: result.plan.to_json()})
            os.replace(part, path)
        except (OSError, RuntimeError) as problem:
            part.unlink(missing_ok=True)
            raise Error(f"save: cannot write {path}: {str(problem).splitlines()[0]}") from None

    def report(self, path: str | Path) -> None:
        """Writes the plan for readers: .html, .txt or .json by the suffix."""
        write_report(self._known("report").plan, Path(path))

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        if self._result is None:
            return Optimized(plan_for=self._plan_for)
        with quiet_jit():
            scripted = copy.deepcopy(self._result.scripted, memo)
        return Optimized(dataclasses.replace(self._result, scripted=scripted))

    def __reduce__(self) -> tuple[Callable[[bytes], Optimized], tuple[bytes]]:
        result = self._known("pickle")
        buffer = io.BytesIO()
        with quiet_jit():
            extra = {PLAN_FILE: result.plan.to_json()}
            torch.jit.save(result.scripted, buffer, _extra_files=extra)
        return _from_bytes, (buffer.getvalue(),)

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


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(f"plan: an input is of dtype {name!r}, expected one of torch's, as float32")
    return dtype


def _own_error(problem: RuntimeError) -> Error | None:
    """What an op of ours said, without the interpreter's traceback around it."""
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
    plan = Plan.from_json(extra[PLAN_FILE], f"{name}:{PLAN_FILE}")
    return Optimized(Result(scripted, plan, device=device))


def _device_for(source: str | io.BytesIO) -> str:
    """Where the module in a file shall run: on a GPU if its plan was made for one and there is one;
    elsewhere its layers fall back."""
    try:
        with zipfile.ZipFile(source) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{PLAN_FILE}")]
            environment = json.loads(archive.read(names[0]))["environment"] if names else {}
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile, zlib.error):
        environment = {}  # torch.jit.load says what is wrong
    finally:
        if isinstance(source, io.BytesIO):
            source.seek(0)
    if "gpu" in environment and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def _from_bytes(data: bytes) -> Optimized:
    return load_scripted(io.BytesIO(data), "pickled module")
