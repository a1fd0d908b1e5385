# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize: an nn.Module that runs a plan."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from torch import nn

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.overlap import quiet_jit
from torchalgo._base.read_file import path_of
from torchalgo._base.timings import StepTime
from torchalgo._base.write_file import write_file, write_object
from torchalgo._C import Error
from torchalgo._capture.example_calls import ModelCall
from torchalgo._capture.freeze import ScriptModule, has_own_ops
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.shapes import Shapes
from torchalgo._ir.costs import key_of_native
from torchalgo._ir.plan import Plan, plans_to_json, shapes_text
from torchalgo._ir.plan.text_table import monospace
from torchalgo._measure.baselines import Call, baseline_calls
from torchalgo._measure.channels_last import why_not_in_channels_last
from torchalgo._measure.guard import PLAN
from torchalgo._plan.held import held_weight_bytes
from torchalgo._plan.pareto import Front, Quantity
from torchalgo._plan.result import Result
from torchalgo._plan.schedule import Schedule, schedule_of
from torchalgo._run.call_files import CALLS_FILE, form_to_json
from torchalgo._run.call_times import (
    CallTimes,
    check_times,
    compare_calls,
    compiled_call,
    optimized_for_inference,
)
from torchalgo._run.captured import CapturedCalls
from torchalgo._run.exported import exported_bytes
from torchalgo._run.planned_calls import PlannedCalls
from torchalgo._run.shape_dispatch import join

if TYPE_CHECKING:
    from torchalgo._report.subject import Subject

TRIAL_S = 60.0  # seconds for convolutions in channels_last that were not measured
BINDING_SHARE = 0.6  # of the time of a report, for building the modules of other plans
PLAN_FILE = "plan.json"  # its name among a saved file's extra files
# Suffixes that a TorchScript file must not have, since readers expect something else.
OTHER_FORMATS = {
    ".engine", ".h5", ".html", ".json", ".npz", ".onnx", ".pb", ".py", ".safetensors", ".tflite",
    ".txt", ".xml",
}  # fmt: skip
GRAPHS_FILE = "graphs.json"  # the same for a list of the graphs of the plans, for reports


class Optimized(PlannedCalls):
    """A module that computes the same as the original model, with the primitives of a plan.

    It is for inference, on the device and in the dtype for which it was planned. It has a plan for
    each shape for which it was planned. It holds the original model, which owns the weights and the
    other attributes. The original model runs calls for which there is no plan: see `original_runs`.

        fast = torchalgo.optimize(model, x)
        print(fast.plan)
        y = fast(x)
    """

    is_torchalgo_optimized = True

    # ---- properties ----------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan; if there are several, the plan for the first shapes. `print` explains it.

        It is None if the model runs as it was given: `runs` is "parts" or "original".

        Raises: torchalgo.Error before the first call, if `optimize` got no example inputs. All
            properties except `unseen` and `original_runs` raise the same.
        """
        if self._as_given is not None:
            return None  # type: ignore[return-value]  # nearly every model has one
        return self._known("plan")[0].plan

    @property
    def parts(self) -> Mapping[str, Optimized]:
        """The planned parts of a model that runs as it was given, by names of submodules.

        It is empty if the model has a plan of the whole, or if no part has one.
        """
        return {} if self._as_given is None else self._as_given.parts

    @property
    def why_as_given(self) -> str:
        """The reason why the model runs as it was given; empty if it has a plan of the whole."""
        return "" if self._as_given is None else self._as_given.why

    @property
    def original_model(self) -> nn.Module | None:
        """The original model; None after load."""
        return None if self._original is None else self._original.model

    @property
    def plans(self) -> dict[str, Plan]:
        """All plans, by the shapes for which they were made.

        The shapes are spelled as "1x3x224x224", or "1x3x224x224,1x10" for several tensors.
        """
        return {shapes_text(result.shapes): result.plan for result in self._known("plans")}

    @property
    def by_shape(self) -> dict[str, Optimized]:
        """A module for each plan, by the same shapes as `plans`.

        It has this plan only, and shares its weights with this module. Use it to save or report one
        plan alone.
        """
        results = self._known("by_shape")
        if len(results) == 1:
            return {shapes_text(results[0].shapes): self}
        return {
            shapes_text(result.shapes): Optimized(
                result,
                form=self._form,
                original=None if self._original is None else self._original.alone(i),
                watch=self._watch,
            )
            for i, result in enumerate(results)
        }

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs.

        It chooses a plan as this module does. It raises an error for sizes for which no plan is
        right, since it does not contain the original model.
        """
        results = self._known("scripted")
        if len(results) == 1 and results[0].dims is None:
            return results[0].scripted
        joined = self._joined
        if joined is None or joined[0] is not results:
            joined = self._joined = results, _join([r.scripted for r in results], results)
        return joined[1]

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
        return sum(held_weight_bytes(result.scripted) for result in self._known("weight_bytes"))

    def pareto(
        self, over: Quantity = "workspace", *, max_points: int = 32, time_limit_s: float = 10.0
    ) -> Front:
        """Returns the fastest plans for each amount of memory, or error: see torchalgo.pareto.

        If there are several plans, the front is that of the first shapes; `by_shape` has the
        others.

            print(fast.pareto("weights", max_points=8))
            print(fast.pareto("error", max_points=8))

        Raises: torchalgo.Error if no costs are in memory, for example after load, or if an argument
            is invalid.
        """
        find_front = self._known("pareto")[0].find_front
        if find_front is None:
            raise Error(
                "TA2304 pareto: this module was loaded, was made with plan=, or has no"
                " convolutions, so its costs are not in memory; use torchalgo.optimize(model,"
                " inputs).pareto()"
            )
        return find_front(over, max_points, time_limit_s)

    @property
    def timings(self) -> Mapping[str, StepTime]:
        """The time of each step of `optimize` in seconds: wall_s, and cpu_s of this process.

        It is that of the whole call, for all plans.
        """
        return self._known("timings")[0].timings

    @property
    def runs(self) -> Literal["plan", "single_layout", "baseline", "parts", "original"]:
        """The kind of module that runs: "plan", "single_layout", "baseline", "parts" or "original".

        "single_layout" is the best plan in one layout, if it was faster than the plan. With several
        plans, this is the kind of the first one that is not a baseline. "parts" and "original": no
        plan can replace the whole model, which runs as it was given, with plans of its `parts`, or
        without any.
        """
        if self._as_given is not None:
            return "parts" if self._as_given.parts else "original"
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
        if self._as_given is not None:
            return f"runs={self.runs!r}, parts={list(self.parts)}"
        if not self._results:
            return "plans on its first call"
        if len(self._results) == 1:
            return f"runs={self.runs!r}, predicted_us={self.plan.cost_us}"
        each = ", ".join(f"{shapes}: {plan.cost_us}" for shapes, plan in self.plans.items())
        return f"runs={self.runs!r}, predicted_us={{{each}}}"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the module, and its plans as tables."""
        tables = [str(result.plan) for result in self._results]
        return monospace("\n\n".join([repr(self), *tables]))

    def example_calls(self) -> list[ModelCall]:
        """Returns arguments and keyword arguments of the calls for which the plans were made."""
        return self._need_original("example_calls").calls

    def refresh_if_planned(self) -> None:
        if self._results or self._as_given is not None:
            self.refresh()

    def refresh(self) -> Optimized:
        """Applies the same plans to the original model as it is now. Measures nothing.

        It captures the model again and packs its present weights.

            model.load_state_dict(state)
            fast.refresh()

        Returns: this module.
        Raises: torchalgo.Error if the original model is not available, or has become another model.
        """
        if self._as_given is not None:
            for part in self.parts.values():
                part.refresh()
            return self
        results, original = self._known("refresh"), self._need_original("refresh")
        plans = {shapes_text(result.shapes): result.plan for result in results}
        try:
            planned = original.plan(original.calls[: len(results)], plans)
        except Error as problem:
            change = None if self._watch is None else self._watch.first_change()
            if change is None or change[1]:
                raise
            raise Error(with_inner_code(f"TA1404 refresh: {change[0]}. {problem}")) from problem
        if len(planned.results) < len(results):
            raise KeyboardInterrupt  # it has ended the planning
        with self._lock:
            self._form = planned.form
            self._adopt(
                [
                    dataclasses.replace(
                        before, scripted=now.scripted, frozen=now.frozen,
                        # Attributes of the model may decide for which sizes the plan is right.
                        plan=dataclasses.replace(before.plan, inputs=now.plan.inputs),
                    )
                    for before, now in zip(results, planned.results, strict=True)
                ],
                planned.watch,
            )  # fmt: skip
        return self

    def _with_refused_plan(self, shapes: Shapes) -> Optimized | None:
        """Returns a module that runs the plan for `shapes`, although the baseline runs here.

        Returns None if the plan runs anyway, if its outputs are not exact enough, or if the
        original model is not available.
        """
        for number, result in enumerate(self._results):
            # A baseline that won by energy stays: graphs are compared by their times.
            is_planned = bool(result.plan.nodes) and result.plan.objective == "latency"
            is_refused = is_planned and not has_own_ops(result.scripted)
            if result.shapes != shapes or self._original is None or not is_refused:
                continue
            try:
                return self._running(number, result.plan)
            except Error:
                return None
        return None

    def captured(self) -> CapturedCalls:
        """Returns a module that runs each planned shape as one CUDA graph.

        It pays where launches take longer than the work on the GPU. On a CPU it changes nothing.

            graphed = fast.captured()
            y = graphed(x)
        """
        return CapturedCalls(self)

    def compare(
        self, *, rounds: int = 25, budget_s: float = 20.0, compiled: bool = False
    ) -> CallTimes:
        """Times the example call beside PyTorch's own ways to run it, in the same rounds.

        These are the original model as it is ("eager"), in channels_last, and as a TorchScript
        module that was frozen ("frozen"). On a CPU, "optimize_for_inference" is a fourth way. On a
        GPU, each of the three also runs with cuDNN's benchmark mode.
        `optimize` has made this comparison before, so that the faster one runs. This makes it
        again. With several plans, it is about the first one; `by_shape` has the others.

            print(fast.compare())

        Args:
            rounds: each way runs once in each round, after some untimed ones.
            budget_s: after so many seconds, warm-up included, no further round begins.
            compiled: also times torch.compile(model). This compiles first, which may take a minute.

        Returns: CallTimes, whose text is a table.
        Raises: torchalgo.Error if an argument is invalid, or after load, which has no original
            model.
        """
        check_times(rounds, budget_s)
        result, original = self._known("compare")[0], self._need_original("compare")
        args, kwargs = original.calls[0]
        form, model, frozen = self._form, original.tensor_model, result.frozen
        assert form is not None and model is not None and frozen is not None
        tensors, _ = form.tensors(args, kwargs)
        inputs, why_not = tuple(tensors), ""
        if self._device.type == "cpu":
            graph = _C.parse_graph(result.graph or "")
            known = {
                key_of_native(key)
                for key, _, source in result.costs.items()
                if source == "measured"
            }
            why_not = why_not_in_channels_last(graph, known, TRIAL_S)
        others = baseline_calls(model, frozen, inputs, not why_not)
        if self._device.type == "cpu":
            others["optimize_for_inference"] = optimized_for_inference(model, inputs)
        if compiled:
            others["torch.compile"] = compiled_call(model, inputs)
        own: dict[str, Call] = {self.runs: lambda: self(*args, **kwargs)}
        times = compare_calls(own, others, self._device, rounds=rounds, budget_s=budget_s)
        why = {"channels_last": why_not} if why_not else {}
        return dataclasses.replace(times, failures={**times.failures, **why})

    # ---- saving --------------------------------------------------------------------------------

    @known_keywords({})
    def save(self, path: str | Path | BinaryIO, portable: bool = False) -> None:
        """Writes a file with all plans and their weights in it.

        A name that ends with .pt2 makes a file of torch.export, any other name a TorchScript file.
        `torchalgo.load` opens both, with all plans. After `import torchalgo`, torch.export.load
        opens a .pt2 file, which takes inputs of the first plan's shapes there. torch.jit.load opens
        a TorchScript file, which chooses among several plans as this module does.

            fast.save("model.pt")
            fast.save("model.pt2")

        Args:
            path: the file, or a file object that was opened for writing bytes. A file object whose
                name does not end with .pt2 gets a TorchScript file.
            portable: True saves the frozen module of ATen's ops instead, which needs no torchalgo,
                as TorchScript.

        Raises: torchalgo.Error if the file cannot be written. Also with `portable` after load,
            which has no frozen module, and if the plans cannot become one TorchScript module or
            one op of a .pt2 file.
        """
        is_object = hasattr(path, "write")
        name = getattr(path, "name", "") if is_object else path
        file = Path() if is_object and not isinstance(name, str) else path_of(name, "save")
        if not is_object and (not file.name or os.path.isdir(file)):
            raise Error(f"TA2002 save: {str(path)!r} is a folder, expected a file such as model.pt")
        if file.suffix in OTHER_FORMATS:
            raise Error(
                f"TA2003 save: {str(name)!r} names a file of another format: end it in .pt for"
                " TorchScript, or in .pt2 for torch.export"
            )
        self._check_unchanged("save")
        data = self._file_bytes(file.suffix == ".pt2", portable)
        if is_object:
            write_object(path, data, "save")
        else:
            write_file(file, data, "save")

    def _file_bytes(self, is_exported: bool, portable: bool) -> bytes:
        results, form = self._known("save"), self._form
        if not is_exported:
            return self._bytes_of(self._portable() if portable else self.scripted)
        if portable:
            raise Error(
                "TA1001 save: portable=True writes TorchScript, and a .pt2 file holds none: name"
                " the file .pt, or use torch.export.export on the original model"
            )
        assert form is not None
        formats = None if self._formats is None else self._formats.of_contiguous
        return exported_bytes(results, form, formats, self._extra_files())

    def schedule(self) -> Schedule:
        """Returns what runs, in which order, and in which memory.

        If there are several plans, it is that of the first shapes; `by_shape` has the others. It
        shows the plan, also if the baseline runs.

            print(fast.schedule())

        Raises: torchalgo.Error if the graph of the plan is not known, as after load of a file of an
            older version.
        """
        result, graph = self._first_with_graph()
        return schedule_of(result.plan, graph)

    def _first_with_graph(self) -> tuple[Result, _C.Graph]:
        """Returns the first plan and its graph. Raises: torchalgo.Error if that is not known."""
        result = self._known("schedule")[0]
        if result.graph is None:
            raise Error(
                "TA2304 schedule: the graph of this plan is not known: its file was saved by an"
                " older version, or the model has no operations to plan; optimize the model again"
            )
        return result, _C.parse_graph(result.graph)

    def report(
        self, path: str | Path, *, front: Front | None = None, measure_s: float | None = None
    ) -> None:
        """Writes a report of all plans to a file. Measures nothing unless `measure_s` is given.

        An .html file is one page that works offline. A .csv file has a line for each operation, and
        a .trace.json file opens in Perfetto. docs/report.md says how to read them.

            fast.report("report.html")
            fast.report("report.html", front=fast.pareto("weights", max_points=8))
            fast.report("report.html", measure_s=60)

        Args:
            path: the file. Its suffix selects the format: .html, .txt, .csv, .trace.json or .json.
            front: a front of `pareto`, which the page then shows. If there are several plans, it is
                shown with the first one.
            measure_s: times the first plan beside the plans of `alternatives`, for about so many
                seconds at most. The page then shows these times beside the predicted ones.

        Raises: torchalgo.Error for any other suffix, if `front` is not a front, if `measure_s` is
            no number above 0, or if the file cannot be written. With `measure_s`, also after load,
            which has neither the original model nor alternatives.
        """
        if front is not None and not isinstance(front, Front):
            raise Error(
                f"TA1001 report: front is {type(front).__name__}, expected what fast.pareto()"
                " returns"
            )
        from torchalgo._report.page import write_report

        model = None if self._original is None else type(self._original.model).__name__
        measured, subjects = None, report_subjects(self)
        if measure_s is not None:
            measured = self._timed_beside_alternatives(self._known("report")[0], measure_s)
        subjects[0] = dataclasses.replace(subjects[0], front=front, measured=measured)
        write_report(subjects, path_of(path, "report"), model or "")

    def _timed_beside_alternatives(self, result: Result, limit_s: float) -> CallTimes:
        """Times whole calls of the first plan and of the plans in `alternatives`, in rounds.

        Plans for which there is no time, or that cannot run here, are left out. Building the
        modules takes at most a part of the time.
        """
        if type(limit_s) not in (int, float) or not limit_s > 0:
            raise Error(
                f"TA1001 report: measure_s={limit_s!r}, expected a number of seconds above 0, such"
                " as 60"
            )
        args, kwargs = self._need_original("report").calls[0]
        began = time.monotonic()
        calls: dict[str, Callable[[], Any]] = {
            PLAN: functools.partial(self._running(0, result.plan), *args, **kwargs)
        }
        for name, plan in result.alternatives.items():
            if time.monotonic() - began > BINDING_SHARE * limit_s:
                break
            with contextlib.suppress(Error):
                calls[name] = functools.partial(self._running(0, plan), *args, **kwargs)
        left_s = max(limit_s - (time.monotonic() - began), 0.0)
        return compare_calls(calls, {}, self._device, rounds=25, budget_s=left_s)

    def _running(self, number: int, plan: Plan) -> Optimized:
        """Returns a module that runs a plan for the shapes of a result, whatever its verdict is."""
        original = self._need_original("report").alone(number)
        shapes = shapes_text(self._results[number].shapes)
        planned = original.plan(original.calls, {shapes: dataclasses.replace(plan, guard=None)})
        return Optimized(*planned.results, form=planned.form, original=original)

    def _extra_files(self) -> dict[str, str]:
        """Returns the extra files of a saved file, by name: text.

        These are the plans, their graphs as far as they are known, and the form of calls if
        TorchScript's schema does not contain it.
        """
        form = "" if self._form is None else form_to_json(self._form)
        graphs = [result.graph for result in self._results]
        return {
            PLAN_FILE: plans_to_json([result.plan for result in self._results]),
            **({GRAPHS_FILE: json.dumps(graphs)} if any(graphs) else {}),
            **({CALLS_FILE: form} if form else {}),
        }

    def _portable(self) -> ScriptModule:
        results = self._known("save")
        frozen = [result.frozen for result in results if result.frozen is not None]
        if len(frozen) != len(results):
            raise Error(
                "TA1403 save: portable=True needs the original model, and this module was loaded"
                " without it: optimize the model again, or load the portable file"
            )
        return _join(frozen, results)

    def __copy__(self) -> Optimized:
        """Returns another module that shares the plans, the weights and the original model."""
        return Optimized(
            *self._results, form=self._form, original=self._original, watch=self._watch,
            as_given=self._as_given,
        )  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        self._check_unchanged("deepcopy")
        original = None if self._original is None else self._original.copy(memo)
        as_given = copy.deepcopy(self._as_given, memo)  # its parts have the modules in `memo`
        with quiet_jit():
            copies = [copy.deepcopy(result.scripted, memo) for result in self._results]
        results = [
            dataclasses.replace(result, scripted=scripted)
            for result, scripted in zip(self._results, copies, strict=True)
        ]
        return Optimized(*results, form=self._form, original=original, as_given=as_given)

    def __reduce__(self) -> tuple[Callable[[bytes], Optimized], tuple[bytes]]:
        self._known("pickle")
        self._check_unchanged("pickle")
        from torchalgo._run.load import from_bytes

        return from_bytes, (self._bytes_of(self.scripted),)

    def _bytes_of(self, module: ScriptModule) -> bytes:
        """Returns the bytes that torch.jit.save would write, with the plans as extra files.

        They are made in memory, because torch's own writer ends the process if the disk is full.
        """
        with quiet_jit():
            data: bytes = module.save_to_buffer(_extra_files=self._extra_files())
        return data


def report_subjects(optimized: Optimized) -> list[Subject]:
    """Returns the plans with what their run knows of them, for reports."""
    from torchalgo._report.subject import Subject

    known = optimized._known("report")
    return [Subject(each.plan, each.graph, each.find_facts) for each in known]


def _join(modules: Sequence[ScriptModule], results: Sequence[Result]) -> ScriptModule:
    return join(modules, [r.shapes for r in results], [r.dims for r in results])
