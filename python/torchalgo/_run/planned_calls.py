# SPDX-License-Identifier: BSD-3-Clause
"""Runs each call of an optimized module: by a plan, or by the original model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.utils._pytree import tree_map_only

from torchalgo import _C
from torchalgo._base.error_code import own_error, plain_error
from torchalgo._base.overlap import Claims, fork_lock
from torchalgo._base.user_warning import warn_user
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, form_of_script
from torchalgo._capture.formats import Formats, ResultFormats, format_of
from torchalgo._capture.freeze import ScriptModule, constants_in_results
from torchalgo._capture.shapes import Shapes, shapes_of
from torchalgo._capture.tensor_checks import check_tensors, why_original
from torchalgo._ir.plan import shapes_text
from torchalgo._plan.result import Result
from torchalgo._run.as_given import AsGiven
from torchalgo._run.as_op import AsOp
from torchalgo._run.embedded import Embedded
from torchalgo._run.exported import dtype_named, planned_inputs
from torchalgo._run.model_watch import changed_layers
from torchalgo._run.original import Original
from torchalgo._run.unseen_shapes import UnseenShapes

_NO_EXPORT = (
    "TA1402 {}: an optimized module has ops that only torchalgo has; use .save('model.pt2'), which"
    " writes a file of torch.export, or .save(path, portable=True), which writes TorchScript of"
    " PyTorch's own ops, or export the original model"
)
MOST_UNSEEN = 1024  # the most shapes, or reasons, that are counted one by one
OTHERS = "others"  # all others are counted under this key
_REFRESH = " .refresh() applies the plan to the model as it is then."


class PlannedCalls(Embedded):
    """A module that runs the plan for a call's shapes, the nearest plan, or the original model."""

    def __init__(
        self,
        *results: Result,
        form: CallForm | None = None,
        original: Original | None = None,
        watch: _C.ModelWatch | None = None,
        as_given: AsGiven | None = None,
    ) -> None:
        """Holds the results of planning. `optimize` and `load` call this.

        Args:
            results: one result per shape. If there is none, the first call is planned.
            form: the arguments and results of calls. None: those of the first result's module.
            original: the original model; None if it is not available, for example after load.
            watch: the model as the results were made from it. None: as the last plan of `original`
                was.
            as_given: runs the calls if there can be no results.
        """
        super().__init__()
        self.training = False
        self._results: tuple[Result, ...] = ()
        self._scripted_of: dict[Shapes, ScriptModule] = {}
        self._unseen: Counter[Shapes] = Counter()  # number of calls by shapes
        self._original_runs: Counter[str] = Counter()
        self._others: UnseenShapes | None = None
        self._joined: tuple[tuple[Result, ...], ScriptModule] | None = None
        # The runners by id of the scripted module, and the first plan's. They run usual calls.
        self._runners: dict[int, _C.GraphRunner | None] = {}
        self._first_runner: _C.GraphRunner | None = None
        self._as_op: AsOp | None = None
        self._dtypes: list[set[torch.dtype]] = []  # of each input
        self._watch: _C.ModelWatch | None = None  # of the model from which the plans were made
        self._no_plan = ""  # says why no plan of the model runs
        self._device = torch.device("cpu")
        self._form = form
        self._rebuilds = False  # True: the model's result is built from what the plan returns
        self._formats: ResultFormats | None = None
        self._original = original
        self._as_given = as_given
        self._constants: frozenset[int] = frozenset()  # addresses of those that are results
        self._first_call = Claims()
        self._lock = fork_lock()  # no code of the user runs while it is held
        if results:
            self._adopt(results, watch)

    @property
    def unseen(self) -> Counter[str]:
        """The number of calls with shapes that have no plan of their own, by shapes.

        After the first 1024 shapes, all further ones are counted together as "others".
        """
        with self._lock:
            counts = dict(self._unseen)
        return Counter(
            {shapes_text(shapes) if shapes else OTHERS: n for shapes, n in counts.items()}
        )

    @property
    def original_runs(self) -> Counter[str]:
        """The number of calls that the original model ran instead of a plan, by reason.

        Reasons are, for example, other values of arguments that are not tensors, inputs that
        require a gradient, torch.autocast, or a layer that was replaced. After the first 1024
        reasons, all further ones are counted together as "others".
        """
        with self._lock:
            return Counter(self._original_runs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the original model's arguments and returns its result, up to rounding.

        Runs the plan for the inputs' shapes, the nearest plan, or the original model. The original
        model also runs if its layers or hooks were changed without `refresh`.

        Raises: torchalgo.Error if a weight was changed without `refresh`, or if the module is
            traced or exported. Also if only the original model can run the call, and it is not
            available.
        """
        if torch.compiler.is_dynamo_compiling():
            if self._as_given is not None and self._original is not None:
                return self._original.model(*args, **kwargs)
            return self._compiled(args, kwargs)
        why = self._why_original()
        if self._first_runner is not None and not kwargs and not why:
            try:
                result = self._first_runner.run_planned(*args)
            except RuntimeError as problem:
                raise own_error(problem, "forward") or problem from None
            if result is not NotImplemented:
                return result if self._is_usual(args) else self._finished(result, args)
        return self._forward(args, kwargs, why)

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call inside of a compiled model. torch.compile reads this code.

        The call becomes one op if its arguments are tensors for which there is a plan. Any other
        call runs outside of the compiled code.
        """
        as_op = self._as_op
        shapes, dtypes, devices, formats = [], [], [], []
        is_plain = not kwargs
        for argument in args:
            if not _is_plain(argument):
                is_plain = False
                break
            # range() needs numbers, so torch.compile replaces symbolic sizes by their values.
            shapes.append(tuple([len(range(size)) for size in argument.shape]))
            dtypes.append(argument.dtype)
            devices.append(argument.device.type)
            formats.append(format_of(argument))
        if is_plain and as_op is not None:
            handle, wanted = self._handle(
                tuple(shapes), dtypes, devices, tuple(formats), as_op.number
            )
            if handle:
                # The op's strides are known while torch compiles if its inputs are contiguous.
                inputs = [argument.contiguous() for argument in args]
                return as_op.result(torch.ops.torchalgo.run_held_plan(inputs, handle), wanted)
        return self._outside(args, kwargs)

    def _handle(
        self,
        shapes: Shapes,
        dtypes: Sequence[torch.dtype],
        devices: Sequence[str],
        formats: Formats,
        number: int,
    ) -> tuple[int, Formats | None]:
        """Returns AsOp.handle and AsOp.formats; 0 if formats are needed and not known.

        torch.compile runs this while it compiles and keeps the result. If `number`, that of the
        AsOp, is another one in a later call, it compiles again.
        """
        del number
        if torch.compiler.is_exporting():  # with strict=True; a handle is of this process only
            self._refuse_tracing()
        handle = 0 if self._as_op is None else self._as_op.handle(shapes, dtypes, devices)
        if not handle or self._as_op is None:
            return 0, None
        wanted = self._as_op.formats(shapes, dtypes, formats)
        is_contiguous = all(each is torch.contiguous_format for each in formats)
        return (handle, wanted) if is_contiguous or wanted is not None else (0, None)

    # This is what torch.compiler.assume_constant_result does. A call of it here would import
    # torch._dynamo whenever torchalgo is imported, which takes seconds.
    _handle._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @_disable_dynamo  # like torch.compiler.disable, which imports torch._dynamo at once
    def _outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._forward(args, kwargs, self._why_original())

    def _why_original(self) -> str:
        """Returns why the original runs each call, whatever its inputs are; "" if a plan may run.

        Raises: torchalgo.Error if a weight of the original was changed.
        """
        if self._watch is None or not self._results:
            return ""
        return self._no_plan or changed_layers(self._watch)

    def _check_unchanged(self, what: str) -> None:
        """Raises torchalgo.Error if the original was changed after it was planned."""
        change = changed_layers(self._watch) if self._watch is not None and self._results else ""
        if change:
            raise Error(
                f"TA1404 {what}: {change}, and the plan is of the model before: call .refresh() on"
                " the optimized module"
            )

    def _is_usual(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Returns True if the first plan's result for these tensors is returned unchanged."""
        if self._constants:
            return False
        if self._formats is None:
            return not self._rebuilds
        if self._rebuilds or not self._formats.is_exact:
            return False
        for tensor in tensors:  # noqa: SIM110  a generator takes twice the time
            if not tensor.is_contiguous():
                return False
        return True

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        """Runs a call of any form: plans it if needed, checks the inputs, chooses what runs.

        If `why` is not empty, the original runs.
        """
        if self._as_given is None:
            self._refuse_tracing()
            if not self._results and not self._plan_on_first_call(args, kwargs):
                return self._run_original("another call is planning the model", args, kwargs)
            why = why or self._no_plan
        if self._as_given is not None and self._original is not None:
            return self._as_given.run(self._original.model, args, kwargs)
        if why:
            return self._run_original(why, args, kwargs, is_of_model=True)
        form = self._form
        assert form is not None
        tensors, tree = form.tensors(args, kwargs)
        why = form.difference(tree)
        why = why or why_original(tensors, form.names, self._device, bool(form.autocast))
        why = why or form.other_order(tensors)
        if not why and form.has_numbers and shapes_of(tensors) not in self._scripted_of:
            why = f"results hold numbers, and inputs are {shapes_text(shapes_of(tensors))}"
        if why:
            return self._run_original(why, args, kwargs)
        check_tensors(tensors, form.names, self._device, self._dtypes)
        shapes = shapes_of(tensors)
        module: ScriptModule | str | None = self._scripted_of.get(shapes)
        if module is None:
            module = self._unseen_module(shapes, tensors)
        if isinstance(module, str):
            return self._run_original(module, args, kwargs)
        runner = self._runners.get(id(module))
        try:
            with torch.autocast("cpu", enabled=False) if form.autocast else nullcontext():
                result = NotImplemented if runner is None else runner.run(*tensors)
                if result is NotImplemented:
                    result = module(*tensors)
        except RuntimeError as problem:
            own = own_error(problem, "forward")
            if own is not None or self._original is None:
                raise own or plain_error(problem, "forward") from None
            why = f"the plan cannot run inputs {shapes_text(shapes)}"
            return self._run_original(why, args, kwargs)
        return self._finished(result, tensors)

    def _run_original(
        self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_of_model: bool = False
    ) -> Any:
        """Runs the original model and returns its result. The first such call warns.

        The first call after a change of the model, which `is_of_model`, warns too.

        Raises: torchalgo.Error if the original model is not available.
        """
        if self._original is None:
            raise Error(
                f"TA1403 forward: {why}: only the original model can run this call, and it is not"
                " available after load or unpickling. Call this module as it was planned, or"
                " optimize the model again"
            )
        result = self._original.run(args, kwargs)
        with self._lock:
            is_first = not self._original_runs or (is_of_model and why not in self._original_runs)
            is_listed = why in self._original_runs or len(self._original_runs) < MOST_UNSEEN
            self._original_runs[why if is_listed else OTHERS] += 1
        if is_first:
            warn_user(
                f"{why}: there is no plan for this call, so the original model ran."
                f"{_REFRESH if is_of_model else ''}"
                " This warning appears once per module; .original_runs counts all such calls"
            )
        return result

    def _finished(self, returned: Any, tensors: tuple[Any, ...]) -> Any:
        """Returns the model's result, built from what a plan returned."""
        if self._constants:  # the caller may change its results in place
            returned = tree_map_only(torch.Tensor, self._copied_constant, returned)
        if self._formats is not None:
            returned = self._formats.apply(returned, tensors)
        return self._form.result(returned) if self._form is not None else returned

    def _copied_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        is_constant = tensor.untyped_storage().data_ptr() in self._constants
        return tensor.clone() if is_constant else tensor

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
            warn_user(
                f"there is no plan for inputs {shapes_text(shapes)}, so the nearest plan runs,"
                f" which was made for {shapes_text(found.shapes)}. This warning appears once per"
                " module; .unseen counts all such calls"
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
            "TA1402 forward: an optimized module cannot be traced: put its .scripted, which is"
            " TorchScript already, into the model that you trace"
        )

    def _plan_on_first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Plans the model for this call. Returns False if another call is planning it."""
        assert self._original is not None
        with self._first_call.claim() as is_mine:
            if is_mine and not self._results:
                planned = self._original.plan([(args, kwargs)])
                with self._lock:
                    self._form, self._as_given = planned.form, planned.as_given
                    if planned.results:
                        self._adopt(planned.results, planned.watch)
        return bool(self._results) or self._as_given is not None

    def _adopt(self, results: Sequence[Result], watch: _C.ModelWatch | None = None) -> None:
        every = [[dtype_named(i.dtype) for i in result.plan.inputs] for result in results]
        self._dtypes = list(map(set, zip(*every, strict=True)))
        self._device = torch.device(results[0].device)
        # These are no submodules, so that .to() and the like do not look for weights in them.
        self._scripted_of = {result.shapes: result.scripted for result in results}
        # None: the module needs TorchScript's interpreter.
        self._runners = {
            id(result.scripted): _C.GraphRunner.make(
                result.scripted._c, planned_inputs(result.plan), result.device
            )
            for result in results
        }
        if self._form is None:
            self._form = form_of_script(results[0].scripted)
        self._constants = frozenset().union(
            *(constants_in_results(result.scripted) for result in results)
        )
        self._others = UnseenShapes(results, self._original)
        self._rebuilds = self._form.output is not None
        self._formats = None
        if self._original is not None and self._original.tensor_model is not None:
            self._formats = ResultFormats(self._original.run_tensors, self._original.formats)
        if watch is None and self._original is not None:
            watch = self._original.watch
        self._watch = watch
        self._no_plan = "" if watch is None else watch.why_original
        is_any = not self._form.orders and not self._form.autocast and not self._no_plan
        self._as_op = (
            AsOp(results, self._form, self._formats, watch, self._others) if is_any else None
        )
        is_usual = self._form.is_positional and is_any
        self._first_runner = self._runners.get(id(results[0].scripted)) if is_usual else None
        self._results = tuple(results)  # last: other threads may run plans from here on

    def _known(self, what: str) -> tuple[Result, ...]:
        if self._as_given is not None:
            raise self._as_given.error(what)
        if not self._results:
            raise Error(
                f"TA1405 {what}: the model is not planned yet: call the module once, or pass"
                " example_inputs to optimize"
            )
        return self._results


def _is_plain(argument: Any) -> bool:
    """Returns whether an argument may become an input of the op of a plan in compiled code."""
    if not isinstance(argument, torch.Tensor) or argument.device.type not in ("cpu", "cuda"):
        return False
    if torch.is_autocast_enabled(argument.device.type):
        return False
    has_gradient = argument.requires_grad and torch.is_grad_enabled()
    return not has_gradient and format_of(argument) is not None
