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

PLAN_FILE = "plan.json"  # its name among a saved file's extra files
_NO_EXPORT = (
    "{}: an optimized module has ops that only torchalgo has; export the original model, or use"
    " .save(path, portable=True), which writes TorchScript of PyTorch's own ops"
)
MOST_UNSEEN = 1024  # the most shapes, or reasons, that are counted one by one
OTHERS = "others"  # all others are counted under this key


class Optimized(Embedded):
    """A module that computes the same as the original model, with the primitives of a plan.

    It is for inference, on the device and in the dtype for which it was planned. It has a plan for
    each shape for which it was planned. It holds the original model, which owns the weights and the
    other attributes. The original model runs calls for which there is no plan: see `original_runs`.

        fast = torchalgo.optimize(model, x)
        print(fast.plan)
        y = fast(x)
    """

    is_torchalgo_optimized = True

    def __init__(
        self,
        *results: Result,
        form: CallForm | None = None,
        original: Original | None = None,
    ) -> None:
        """Holds the results of planning. `optimize` and `load` call this.

        Args:
            results: one result per shape. If there is none, the first call is planned.
            form: the arguments and results of calls. None: those of the first result's module.
            original: the original model; None if it is not available, for example after load.
        """
        super().__init__()
        self.training = False
        self._results: tuple[Result, ...] = ()
        self._scripted_of: dict[Shapes, ScriptModule] = {}
        self._unseen: Counter[Shapes] = Counter()  # number of calls by shapes
        self._original_runs: Counter[str] = Counter()
        self._others: UnseenShapes | None = None
        self._joined: ScriptModule | None = None
        # The runners by id of the scripted module, and the first plan's. They run usual calls.
        self._runners: dict[int, _C.GraphRunner] = {}
        self._first_runner: _C.GraphRunner | None = None
        self._dtypes: set[torch.dtype] = set()
        self._device = torch.device("cpu")
        self._form = form
        self._rebuilds = False  # True: the model's result is built from what the plan returns
        self._formats: ResultFormats | None = None
        self._original = original
        self._lock = fork_lock()
        if results:
            self._adopt(results)

    # ---- properties ----------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan; if there are several, the plan for the first shapes. `print` explains it.

        Raises: torchalgo.Error before the first call, if `optimize` got no example inputs. All
            properties except `unseen` and `original_runs` raise the same.
        """
        return self._known("plan")[0].plan

    @property
    def plans(self) -> dict[str, Plan]:
        """All plans, by the shapes for which they were made.

        The shapes are spelled as "1x3x224x224", or "1x3x224x224,1x10" for several tensors.
        """
        return {spell(result.shapes): result.plan for result in self._known("plans")}

    @property
    def by_shape(self) -> dict[str, Optimized]:
        """A module for each plan, by the same shapes as `plans`.

        It has this plan only, and shares its weights with this module. Use it to save or report one
        plan alone.
        """
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
        """The number of calls with shapes that have no plan of their own, by shapes.

        After the first 1024 shapes, all further ones are counted together as "others".
        """
        with self._lock:
            counts = dict(self._unseen)
        return Counter({spell(shapes) if shapes else OTHERS: n for shapes, n in counts.items()})

    @property
    def original_runs(self) -> Counter[str]:
        """The number of calls that the original model ran instead of a plan, by reason.

        Reasons are, for example, other values of arguments that are not tensors, inputs that
        require a gradient, or torch.autocast. After the first 1024 reasons, all further ones are
        counted together as "others".
        """
        with self._lock:
            return Counter(self._original_runs)

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs.

        It chooses a plan as this module does. It raises an error for sizes for which no plan is
        right, since it does not contain the original model.
        """
        results = self._known("scripted")
        if len(results) == 1 and results[0].dims is None:
            return results[0].scripted
        with self._lock:
            if self._joined is None:
                joined = _join([r.scripted for r in results], results)
                object.__setattr__(self, "_joined", joined)  # it must not become a submodule
            return self._joined  # type: ignore[return-value]

    @property
    def costs(self) -> _C.CostTable:
        """The costs from which all plans were made; empty after load."""
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
        """The plans whose costs are in `plan.comparisons`, by name; empty after load.

        `optimize(model, x, plan=fast.alternatives[name])` applies one.
        """
        return self._known("alternatives")[0].alternatives

    @property
    def weight_bytes(self) -> int:
        """The bytes of packed weights that the module holds now, for all plans.

        The model's own weights are not included. After calls with other input sizes or numbers of
        threads, this may be more than `plan.weight_bytes`. It is 0 if the baseline runs.
        """
        return sum(packed_bytes(result.scripted) for result in self._known("weight_bytes"))

    def pareto(
        self, memory: Memory = "workspace", *, max_points: int = 32, time_limit_s: float = 10.0
    ) -> Front:
        """Returns the fastest plans for each amount of memory: see torchalgo.pareto.

        If there are several plans, the front is that of the first shapes; `by_shape` has the
        others.

            print(fast.pareto("weights", max_points=8))

        Raises: torchalgo.Error if no costs are in memory, for example after load, or if an argument
            is invalid.
        """
        find_front = self._known("pareto")[0].find_front
        if find_front is None:
            raise Error(
                "pareto: this module was loaded, or made with plan=, or has no convolutions, so"
                " that no costs are in memory; use torchalgo.optimize(model, inputs).pareto()"
            )
        return find_front(memory, max_points, time_limit_s)

    @property
    def timings(self) -> Mapping[str, StepTime]:
        """The time of each step of `optimize` in seconds: wall_s, and cpu_s of this process."""
        return self._known("timings")[0].timings

    @property
    def runs(self) -> Literal["plan", "single_layout", "baseline"]:
        """The kind of module that runs: "plan", "single_layout" or "baseline".

        "single_layout" is the best plan in one layout, if it was faster than the plan. With several
        plans, this is the kind of the first one that is not a baseline.
        """
        for result in self._known("runs"):
            if has_own_ops(result.scripted):
                verdict = result.plan.guard
                is_single = verdict is not None and verdict.runs == "single_layout"
                return "single_layout" if is_single else "plan"
        return "baseline"

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended the tuning. Then the plan uses only the costs known at that time."""
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
        """Takes the original model's arguments and returns its result, up to rounding.

        Runs the plan for the inputs' shapes, the nearest plan, or the original model.

        Raises: torchalgo.Error if a weight was changed without `refresh`, or if the module is
            traced or exported. Also if only the original model can run the call, and it is not
            available.
        """
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
        """Returns True if the first plan's result for these tensors is returned unchanged."""
        if self._formats is None:
            return not self._rebuilds
        if self._rebuilds or not self._formats.is_exact:
            return False
        for tensor in tensors:  # noqa: SIM110  a generator takes twice the time
            if not tensor.is_contiguous():
                return False
        return True

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of any form: plans it if needed, checks the inputs, chooses what runs."""
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
        """Runs the original model and returns its result. The first such call warns.

        Raises: torchalgo.Error if the original model is not available.
        """
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
        """Returns the model's result, built from what a plan returned."""
        if self._formats is not None:
            returned = self._formats.apply(returned, tensors)
        return self._form.result(returned) if self._form is not None else returned

    def _module_for(self, tensors: tuple[Any, ...]) -> ScriptModule | str:
        """Returns the module that runs these tensors, or the reason why there is none."""
        shapes = shapes_of(tensors)
        scripted = self._scripted_of.get(shapes)
        return self._unseen_module(shapes, tensors) if scripted is None else scripted

    def _unseen_module(self, shapes: Shapes, tensors: tuple[Any, ...]) -> ScriptModule | str:
        """Returns the module of the nearest plan that is right for these shapes, which have none.

        Returns the reason if there is no such plan. Counts the call in `unseen`.
        """
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
        # These are no submodules, so that .to() and the like do not look for weights in them.
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
        self._results = tuple(results)  # last: other threads may run plans from here on

    def _known(self, what: str) -> tuple[Result, ...]:
        if not self._results:
            raise Error(f"{what}: not planned yet; call the module once, or pass example_inputs")
        return self._results

    def refresh_if_planned(self) -> None:
        if self._results:
            self.refresh()

    def refresh(self) -> Optimized:
        """Packs the present weights of the original model, for the same plans. Measures nothing.

            model.load_state_dict(state)
            fast.refresh()

        Returns: this module.
        Raises: torchalgo.Error if the original model is not available, or has become another model.
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

    # ---- saving --------------------------------------------------------------------------------

    def save(self, path: str | Path, portable: bool = False) -> None:
        """Writes a TorchScript file with all plans in it.

        `torchalgo.load` opens it, and so does torch.jit.load after `import torchalgo`. It chooses
        among several plans as this module does.

            fast.save("model.pt")

        Args:
            path: the file.
            portable: True saves the frozen module of ATen's ops instead, which needs no torchalgo.

        Raises: torchalgo.Error if the file cannot be written. Also with `portable` after load,
            which has no frozen module, and if several plans cannot become one TorchScript module.
        """
        module = self._portable() if portable else self.scripted
        if not Path(path).name or Path(path).is_dir():
            raise Error(f"save: {str(path)!r} is a folder, expected a file such as model.pt")
        write_file(path, self._bytes_of(module), "save")

    def report(self, path: str | Path) -> None:
        """Writes a report of all plans to a file.

            fast.report("plan.html")

        Args:
            path: the file. Its suffix selects the format: .html, .txt or .json.

        Raises: torchalgo.Error for any other suffix, or if the file cannot be written.
        """
        write_report([result.plan for result in self._known("report")], Path(path))

    def _plans_text(self) -> str:
        return plans_to_json([result.plan for result in self._results])

    def _extra_files(self) -> dict[str, str]:
        """Returns the extra files of a saved file, by name: text.

        These are the plans, and the form of calls if TorchScript's schema does not contain it.
        """
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
        """Returns another module that shares the plans, the weights and the original model."""
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
        """Returns the bytes that torch.jit.save would write, with the plans as extra files.

        They are made in memory, because torch's own writer ends the process if the disk is full.
        """
        with quiet_jit():
            data: bytes = module.save_to_buffer(_extra_files=self._extra_files())
        return data


def _join(modules: Sequence[ScriptModule], results: Sequence[Result]) -> ScriptModule:
    return join(modules, [r.shapes for r in results], [r.dims for r in results])
