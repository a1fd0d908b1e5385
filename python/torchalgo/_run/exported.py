# SPDX-License-Identifier: BSD-3-Clause
"""Makes one op of an optimized module, for torch.export, torch.compile and .pt2 files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.overlap import keep_fake_device
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, bound_arguments
from torchalgo._capture.formats import Formats, with_formats
from torchalgo._capture.freeze import ScriptModule, tensors_in
from torchalgo._capture.shapes import as_numbers
from torchalgo._ir.plan import Plan
from torchalgo._plan.result import Result


def dtype_named(name: str) -> torch.dtype:
    """Returns torch's dtype for its name in a plan. Raises torchalgo.Error if there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(
            f"TA2101 plan: an input has the dtype {name!r}, expected one of torch's names, such as"
            " float32"
        )
    return dtype


def planned_inputs(plan: Plan) -> list[tuple[Sequence[int], torch.dtype]]:
    """Returns the shape and the type of each input for which a plan was made."""
    return [(planned.shape, dtype_named(planned.dtype)) for planned in plan.inputs]


def plan_object(results: Sequence[Result], watch: _C.ModelWatch | None = None) -> Any:
    """Returns the plans with their weights as one object, which torch.ops.torchalgo.run_plan runs.

    Args:
        watch: of the model from which the plans were made. After a change of it,
            torch.ops.torchalgo.run_held_plan raises an error. None: there is no model.
    Raises: torchalgo.Error if a module branches or loops, or returns anything but tensors.
    """
    plans = [
        (
            result.scripted._c,
            planned_inputs(result.plan),
            [[tuple(dim) for dim in tensor] for tensor in as_numbers(result.dims)],
        )
        for result in results
    ]
    return _C.make_plan_object(plans, results[0].device, watch)


# The form of a module's result: None is a tensor, a tuple is a tuple, and "list" is one list.
ResultType = Any


def result_type(scripted: ScriptModule) -> ResultType:
    """Returns the form of a module's result.

    Raises: torchalgo.Error if its type does not give the number of tensors.
    """
    forward: Any = scripted.forward
    kind = forward.schema.returns[0].type
    if kind.kind() == "ListType" and kind.getElementType().kind() == "TensorType":
        return "list"
    return _result_type(kind)


def _result_type(kind: Any) -> ResultType:
    if kind.kind() == "TensorType":
        return None
    if kind.kind() == "TupleType":
        return tuple([_result_type(each) for each in kind.elements()])
    raise Error(
        f"TA2003 save: the model returns {kind.annotation_str}, expected tensors, tuples of them,"
        " or one list: save it as a .pt file"
    )


def nested(flat: list[torch.Tensor], kind: ResultType) -> Any:
    """Returns the result of a module, built from all tensors in it, which are taken from `flat`."""
    if kind == "list":
        return flat
    return flat.pop(0) if kind is None else tuple([nested(flat, each) for each in kind])


class _OneOp(nn.Module):
    """An optimized module as PyTorch exports it: one op, and what builds the model's result."""

    def __init__(
        self, plan: Any, scripted: ScriptModule, form: CallForm, formats: Formats | None
    ) -> None:
        super().__init__()
        self.plan = plan
        kind = result_type(scripted)

        def forward(*args: Any, **kwargs: Any) -> Any:
            tensors = args if form.inputs is None else form.tensors(args, kwargs)[0]
            flat = torch.ops.torchalgo.run_plan(tensors_in(tensors), self.plan)
            result = nested(list(flat), kind)
            if formats is not None:
                result = with_formats(result, iter(formats))
            return form.result(result)

        # torch.export reads the names of arguments there.
        setattr(forward, "__signature__", form.signature)  # noqa: B010
        self.forward = forward


def _without_data(value: Any) -> Any:
    """Returns zeros that are expanded from one element, so that a file stores one. Keeps others."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)


def exported_bytes(
    results: Sequence[Result],
    form: CallForm,
    formats: Formats | None,
    extra_files: Mapping[str, str],
) -> bytes:
    """Returns the bytes of a .pt2 file of an optimized module.

    Args:
        form: the arguments and results of calls.
        formats: the memory formats of the results for contiguous inputs; None: not known.
        extra_files: the extra files, by name: text.

    Raises: torchalgo.Error if torch.export cannot express the module.
    """
    module = _OneOp(plan_object(results), results[0].scripted, form, formats)
    zeros = [
        torch.zeros(shape, dtype=dtype, device=results[0].device)
        for shape, dtype in planned_inputs(results[0].plan)
    ]
    args, kwargs = tuple(zeros), {}
    if form.inputs is not None:
        bound = bound_arguments(form, zeros)
        args, kwargs = bound.args, bound.kwargs
    file = io.BytesIO()
    keep_fake_device()
    try:
        with torch.no_grad():
            program = torch.export.export(module.eval(), args, kwargs, strict=False)
        program.example_inputs = torch.utils._pytree.tree_map(_without_data, (args, kwargs))
        torch.export.save(program, file, extra_files=dict(extra_files))
    except Error:
        raise
    except Exception as problem:  # torch.export and pickle raise errors of many types
        reason = " ".join(str(problem).split())
        raise Error(
            with_inner_code(
                "TA2003 save: torch.export cannot write this module:"
                f" {reason if len(reason) < 300 else reason[:297] + '...'}; save it as a .pt file"
            )
        ) from None
    return file.getvalue()
