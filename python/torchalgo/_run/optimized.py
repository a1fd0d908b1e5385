# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize: an nn.Module that runs a plan."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from torchalgo import _C
from torchalgo._base.fork_lock import fork_lock
from torchalgo._base.timings import StepTime
from torchalgo._base.write_file import write_file
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, form_of_script
from torchalgo._capture.formats import ResultFormats
from torchalgo._capture.freeze import ScriptModule, has_own_ops, quiet_jit
from torchalgo._capture.shapes import Shapes, shapes_of, spell
from torchalgo._capture.tensor_checks import check_tensors, why_original
from torchalgo._ir.plan import Plan, plans_to_json
from torchalgo._plan.pareto import Front, Memory
from torchalgo._plan.result import (
    Result,
    dtype_named,
    own_error,
    packed_bytes,
    plain_error,
    runner_of,
)
from torchalgo._run.call_files import CALLS_FILE, form_to_json
from torchalgo._run.embedded import Embedded
from torchalgo._run.original import Original
from torchalgo._run.report import write_report
from torchalgo._run.shape_dispatch import join
from torchalgo._run.unseen import UnseenShapes

PLAN_FILE = "plan.json"  # in a saved file's extra files
_NO_EXPORT = (
    "{}: an optimized module has ops that only torchalgo has; export the original model, or use"
    " .save(path, portable=True), which writes TorchScript of PyTorch's own ops"
)
MOST_UNSEEN = 1024  # shapes that are counted one by one
OTHERS = "others"  # the key under which the rest is counted


class Optimized(Embedded):
    """A module that computes what the original model computes, by the primitives of a plan.

    It is for inference, on the device and in the dtype it was planned for, and it has a plan for
    each shape it was planned for. It holds the original model, which has the weights and the other
    attributes, and which runs the calls that the plans are not for: see `original_runs`.
    """

    is_torchalgo_optimized = True

    def __init__(
        self,
        *results: Result,
        form: CallForm | None = None,
        original: Original | None = None,
    ) -> None:
        """With `original` and no results, the first call is planned.

        Args:
            form: of all calls; None: the arguments are those of the first result's module.
            original: None if the model is not there, as after load.
        """
        super().__init__()
        self.training = False
        self._results: tuple[Result, ...] = ()
        self._scripted_of: dict[Shapes, ScriptModule] = {}
        self._unseen: Counter[Shapes] = Counter()  # calls
        self._original_runs: Counter[str] = Counter()
        self._others: UnseenShapes | None = None
        self._joined: ScriptModule | None = None
        # By id of the scripted module; and the first plan's. They serve the usual calls.
        self._runners: dict[int, _C.GraphRunner] = {}
        self._first_runner: _C.GraphRunner | None = None
        self._dtypes: set[torch.dtype] = set()
        self._device = torch.device("cpu")
        self._form = form
        self._rebuilds = False  # results are not what the plan returns
        self._formats: ResultFormats | None = None
        self._original = original
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
        return {
            spell(result.shapes): Optimized(
                result,
                form=self._form,
                original=None if self._original is None else self._original.alone(i),
            )
            for i, result in enumerate(results)
        }

    @property
    def unseen(self) -> Counter[str]:
        """How often this module was called with shapes that have no plan of their own, by shapes;
        beyond the first 1024 of these shapes together as "others"."""
        with self._lock:
            counts = dict(self._unseen)
        return Counter({spell(shapes) if shapes else OTHERS: n for shapes, n in counts.items()})

    @property
    def original_runs(self) -> Counter[str]:
        """How often the original model ran in place of a plan, by reason: other values of arguments
        that are not tensors, inputs that require a gradient, torch.autocast, and the like; beyond
        the first 1024 reasons together as "others"."""
        with self._lock:
            return Counter(self._original_runs)

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs. It chooses a plan as this does, and raises for sizes
        that no plan is right for: TorchScript has no original model to run."""
        results = self._known("scripted")
        if len(results) == 1 and results[0].dims is None:
            return results[0].scripted
        with self._lock:
            if self._joined is None:
                joined = _join([r.scripted for r in results], results)
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
        return sum(packed_bytes(result.scripted) for result in self._known("weight_bytes"))

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
        """Names what runs: "plan", "baseline", or "single_layout", the best plan in one layout,
        if that was faster. Of several plans, the first one counts whose plan runs."""
        for result in self._known("runs"):
            if has_own_ops(result.scripted):
                verdict = result.plan.guard
                is_single = verdict is not None and verdict.runs == "single_layout"
                return "single_layout" if is_single else "plan"
        return "baseline"

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended the tuning, so that the plan rests on the costs known by then."""
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
            if self._original is not None and self._original.is_changed():
                self._original.check_weights()
            try:
                result = self._first_runner.run_planned(*args)
            except RuntimeError as problem:
                raise own_error(problem) or problem from None
            if result is not NotImplemented:
                return result if self._is_usual(args) else self._finished(result, args)
        return self._forward(args, kwargs)

    def _is_usual(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """True if what the first plan returns for these tensors is the result as it is."""
        if self._formats is None:
            return not self._rebuilds
        if self._rebuilds or not self._formats.is_exact:
            return False
        for tensor in tensors:  # noqa: SIM110  a generator takes twice the time
            if not tensor.is_contiguous():
                return False
        return True

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What every call may need."""
        self._refuse_tracing()
        if not self._results:
            self._plan_on_first_call(args, kwargs)
        if self._original is not None:
            self._original.check_weights()
        form = self._form
        assert form is not None
        tensors, tree = form.tensors(args, kwargs)
        why = form.difference(tree) or why_original(tensors, form.names, self._device)
        if not why and form.has_numbers and shapes_of(tensors) not in self._scripted_of:
            why = f"results hold numbers, and inputs are {spell(shapes_of(tensors))}"
        if why:
            return self._run_original(why, args, kwargs)
        check_tensors(tensors, form.names, self._device, self._dtypes)
        module = self._module_for(tensors)
        if isinstance(module, str):
            return self._run_original(module, args, kwargs)
        runner = self._runners.get(id(module))
        try:
            result = NotImplemented if runner is None else runner.run(*tensors)
            if result is NotImplemented:
                result = module(*tensors)
        except RuntimeError as problem:
            own = own_error(problem)
            if own is not None or self._original is None:
                raise own or plain_error(problem) from None
            why = f"the plan cannot run inputs {spell(shapes_of(tensors))}"
            return self._run_original(why, args, kwargs)
        return self._finished(result, tensors)

    def _run_original(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's result. The first such call warns."""
        if self._original is None:
            raise Error(
                f"forward: {why}: only the original model can run this call, and it is not there"
                " after load or unpickling: call this module as it was planned, or optimize the"
                " model again"
            )
        result = self._original.run(args, kwargs)
        with self._lock:
            is_first = not self._original_runs
            is_listed = why in self._original_runs or len(self._original_runs) < MOST_UNSEEN
            self._original_runs[why if is_listed else OTHERS] += 1
        if is_first:
            warnings.warn(
                f"torchalgo: {why}: no plan is for this call, so that the original model ran it."
                " This is said once; .original_runs counts all such calls",
                stacklevel=6,
            )
        return result

    def _finished(self, returned: Any, tensors: tuple[Any, ...]) -> Any:
        """The model's result from what a plan returned."""
        if self._formats is not None:
            returned = self._formats.apply(returned, tensors)
        return self._form.result(returned) if self._form is not None else returned

    def _module_for(self, tensors: tuple[Any, ...]) -> ScriptModule | str:
        """The module that runs these tensors, or why none does."""
        shapes = shapes_of(tensors)
        scripted = self._scripted_of.get(shapes)
        return self._unseen_module(shapes, tensors) if scripted is None else scripted

    def _unseen_module(self, shapes: Shapes, tensors: tuple[Any, ...]) -> ScriptModule | str:
        """The module of the nearest plan that is right for these shapes, or why none is."""
        others = self._others
        assert others is not None
        with self._lock:
            is_first = not self._unseen
            self._unseen[shapes if others.is_remembered(shapes) else ()] += 1
        found = others.find(shapes, tensors)
        if isinstance(found, str):
            return found
        if is_first and len(self._results) > 1:
            warnings.warn(
                f"torchalgo: there is no plan for inputs {spell(shapes)}; the nearest, for"
                f" {spell(found.shapes)}, runs. This is said once; .unseen counts all such calls",
                stacklevel=7,
            )
        return found.scripted

    def _refuse_tracing(self) -> None:
        if torch.compiler.is_exporting():
            raise Error(_NO_EXPORT.format("torch.export"))
        if torch._C._get_tracing_state() is None:
            return
        if torch.onnx.is_in_onnx_export():
            raise Error(_NO_EXPORT.format("torch.onnx.export"))
        raise Error(
            "forward: an optimized module cannot be traced; put its .scripted, which is"
            " TorchScript already, into the model that you trace"
        )

    def _plan_on_first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._lock:
            if not self._results and self._original is not None:
                planned = self._original.plan([(args, kwargs)])
                self._form = planned.form
                self._adopt(planned.results)

    def _adopt(self, results: Sequence[Result]) -> None:
        dtypes = {dtype_named(i.dtype) for result in results for i in result.plan.inputs}
        self._dtypes = {dtype for dtype in dtypes if dtype.is_floating_point}
        self._device = torch.device(results[0].device)
        # No submodules: .to() and the like must not look for weights in them.
        self._scripted_of = {result.shapes: result.scripted for result in results}
        self._runners = {
            id(result.scripted): runner
            for result in results
            if (runner := runner_of(result)) is not None
        }
        if self._form is None:
            self._form = form_of_script(results[0].scripted)
        self._joined = None
        self._others = UnseenShapes(results, self._original)
        self._rebuilds = self._form.output is not None
        self._formats = None
        if self._original is not None and self._original.tensor_model is not None:
            self._formats = ResultFormats(self._original.run_tensors, self._original.formats)
        is_usual = self._form.is_positional
        self._first_runner = self._runners.get(id(results[0].scripted)) if is_usual else None
        self._results = tuple(results)  # last: a second thread may run from here on

    def _known(self, what: str) -> tuple[Result, ...]:
        if not self._results:
            raise Error(f"{what}: not planned yet; call the module once, or pass example_inputs")
        return self._results

    def refresh_if_planned(self) -> None:
        if self._results:
            self.refresh()

    def refresh(self) -> Optimized:
        """Packs the present weights of the original model, under the same plans. It measures
        nothing. Returns this module.

        Raises: torchalgo.Error if the original is not there, or has become another model.
        """
        results, original = self._known("refresh"), self._need_original("refresh")
        with self._lock:
            plans = {spell(result.shapes): result.plan for result in results}
            planned = original.plan(original.calls[: len(results)], plans)
            self._form = planned.form
            self._adopt(
                [
                    dataclasses.replace(before, scripted=now.scripted, frozen=now.frozen)
                    for before, now in zip(results, planned.results, strict=True)
                ]
            )
        return self

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

    def _extra_files(self) -> dict[str, str]:
        """The plans, and the form of calls where TorchScript's schema does not tell it."""
        form = "" if self._form is None else form_to_json(self._form)
        return {PLAN_FILE: self._plans_text(), **({CALLS_FILE: form} if form else {})}

    def _portable(self) -> ScriptModule:
        results = self._known("save")
        frozen = [result.frozen for result in results if result.frozen is not None]
        if len(frozen) != len(results):
            raise Error(
                "save: portable=True needs the model as optimize saw it, and this one was loaded:"
                " optimize it again, or load the portable file"
            )
        return _join(frozen, results)

    def __copy__(self) -> Optimized:
        """A module of its own that shares the plans, the weights and the original."""
        return Optimized(*self._results, form=self._form, original=self._original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        original = None if self._original is None else self._original.copy(memo)
        with quiet_jit():
            copies = [copy.deepcopy(result.scripted, memo) for result in self._results]
        results = [
            dataclasses.replace(result, scripted=scripted)
            for result, scripted in zip(self._results, copies, strict=True)
        ]
        return Optimized(*results, form=self._form, original=original)

    def __reduce__(self) -> tuple[Callable[[bytes], Optimized], tuple[bytes]]:
        self._known("pickle")
        from torchalgo._run.load import from_bytes

        return from_bytes, (self._bytes_of(self.scripted),)

    def _bytes_of(self, module: ScriptModule) -> bytes:
        """What torch.jit.save writes, with the plans. In memory, since torch ends the process where
        its own writer finds the disk full."""
        with quiet_jit():
            data: bytes = module.save_to_buffer(_extra_files=self._extra_files())
        return data


def _join(modules: Sequence[ScriptModule], results: Sequence[Result]) -> ScriptModule:
    return join(modules, [r.shapes for r in results], [r.dims for r in results])
