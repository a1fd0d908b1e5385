# SPDX-License-Identifier: BSD-3-Clause
"""Converts a call to a list of tensors, and a list of tensors to the call's result.

Plans, TorchScript modules and runners take tensors and return tensors. `CallForm` records in which
lists, dicts and other containers the tensors of a call lie, and those of its result. Every later
call must have the same form; only its tensors may differ.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import itertools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from torchalgo._base.error_code import with_inner_code
from torchalgo._base.f32_precision import EXACT_CPU
from torchalgo._base.kept_model import KeptModel
from torchalgo._base.trees import (
    CONSTANTS,
    Constant,
    Node,
    Tree,
    check_rebuilds,
    copied,
    flatten,
    has_values,
    lowered,
    rebuild,
    tree_text,
    type_text,
)
from torchalgo._C import Error
from torchalgo._capture.formats import Formats, Key, formats_of, key_of, order_of
from torchalgo._capture.freeze import check_inputs, check_model, tensors_in
from torchalgo._capture.reference import Reference
from torchalgo._capture.scripted_calls import check_parameters, script_tensor_model
from torchalgo._capture.seen import NoCaptureError, Seen, look_at

# ---- calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallForm:
    """The form of a call of a model, and the form of its result.

    Args:
        signature: the signature of the model's forward.
        inputs: the form of the arguments, without arguments that have their default value. None if
            the module takes the arguments unchanged, as a ScriptModule does.
        names: the position of each tensor among the arguments, as "batch['image']".
        output: the form of the result. None if the module returns the result itself.
        orders: the order in memory of each tensor, if Python code of the model asks for it. Empty
            if every order is right.
        autocast: the type of each tensor of the result, if the call was planned for calls inside of
            torch.autocast in bf16. Empty: it was planned for calls outside of it.
    """

    signature: inspect.Signature
    inputs: Tree | None = None
    names: tuple[str, ...] = ()
    output: Tree | None = None
    orders: tuple[str | tuple[int, ...], ...] = ()
    autocast: tuple[torch.dtype, ...] = ()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Returns the arguments by name, without those that have their default value.

        Raises: torchalgo.Error if they do not fit forward's signature.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise Error(f"TA1205 {what}: {problem}; expected forward{self.signature}") from None
        parameters = self.signature.parameters
        return {
            name: value
            for name, value in bound.arguments.items()
            if not _is_default(value, parameters[name].default)
        }

    def tensors(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Tree | None]:
        """Returns the module's arguments and the form of this call.

        The caller compares the form with `inputs`. It is None if `inputs` is None.

        Raises: torchalgo.Error if the arguments do not fit forward's signature.
        """
        arguments = self.bind(args, kwargs, "forward")
        if self.inputs is None:
            bound = inspect.BoundArguments(self.signature, collections.OrderedDict(arguments))
            bound.apply_defaults()
            return (tuple(args) if not kwargs else bound.args), None
        tensors: list[torch.Tensor] = []
        try:
            tree = _flatten_arguments(arguments, tensors, [])
        except Error as problem:
            raise Error(with_inner_code(f"TA1205 forward: {problem}")) from None
        return tuple(tensors), tree

    def difference(self, tree: Tree | None) -> str:
        """Describes the first difference between the form of a call and the planned form.

        Example: "flag=True, planned with flag=False". Returns "" if there is none.
        """
        if not isinstance(tree, Node) or not isinstance(self.inputs, Node):
            return ""
        given = dict(zip(tree.keys, tree.children, strict=True))
        planned = dict(zip(self.inputs.keys, self.inputs.children, strict=True))
        for name in self.signature.parameters:
            if given.get(name) != planned.get(name):
                here, there = tree_text(given.get(name)), tree_text(planned.get(name))
                return f"{name}={here}, planned with {name}={there}"
        return "" if tree == self.inputs else "arguments in another order"

    def other_order(self, tensors: Sequence[torch.Tensor]) -> str:
        """Describes the first tensor whose order in memory has no plan; "" if there is none."""
        for name, tensor, planned in zip(self.names, tensors, self.orders, strict=False):
            if (order := order_of(tensor)) != planned:
                return f"{name} is in the order {order}, planned in {planned}"
        return ""

    @functools.cached_property
    def is_positional(self) -> bool:
        """Returns whether all arguments of the planned call were tensors, passed by position."""
        if self.inputs is None:
            return True
        bound = bound_arguments(self, [torch.empty(0)] * len(self.names))
        return not bound.kwargs and all(isinstance(a, torch.Tensor) for a in bound.args)

    @functools.cached_property
    def has_numbers(self) -> bool:
        """Returns whether the result holds numbers or text.

        These may depend on the inputs' sizes.
        """
        return self.output is not None and has_values(self.output)

    def result(self, returned: Any) -> Any:
        """Builds the model's result from the module's result."""
        if self.autocast:
            types = iter(self.autocast)
            returned = tree_map_only(torch.Tensor, lambda x: x.to(next(types)), returned)
        return returned if self.output is None else rebuild(self.output, iter(tensors_in(returned)))


def _is_default(value: Any, default: Any) -> bool:
    if default is inspect.Parameter.empty:
        return False
    if value is default:
        return True
    return isinstance(value, CONSTANTS) and Constant(value) == Constant(default)


def _flatten_arguments(
    arguments: Mapping[str, Any], tensors: list[torch.Tensor], names: list[str]
) -> Node:
    children = [flatten(value, name, tensors, names) for name, value in arguments.items()]
    return Node(dict, tuple(arguments), tuple(children))


def form_of_script(module: Any) -> CallForm:
    """Returns the form of calls of a ScriptModule: its arguments and results stay unchanged."""
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(a.name, kind, default=a.default_value if a.has_default_value() else empty)
        for a in module.forward.schema.arguments[1:]
    ]
    return CallForm(inspect.Signature(parameters), names=tuple(p.name for p in parameters))


def signature_of(model: nn.Module) -> inspect.Signature:
    """Returns the signature of forward, without annotations."""
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # a built-in function
        rest = [
            inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
        return inspect.Signature(rest)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return inspect.Signature(plain)


# ---- models of tensors ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorModel:
    """A model that takes a tuple of tensors and returns only types that TorchScript can return."""

    model: nn.Module
    form: CallForm
    inputs: tuple[Any, ...]
    formats: Mapping[Key, Formats] = field(default_factory=dict)  # results' formats by inputs'
    reference: Reference | None = None  # of the recorded run; None if there was none
    seen: Seen = field(default_factory=Seen)  # what a run on fake tensors shows


def bind_call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TensorModel:
    """Checks arguments of `model`, and runs a copy of it on fake tensors of their sizes.

    Raises: torchalgo.Error if the arguments do not fit the model, or if a type among them cannot be
        rebuilt from its parts.
    """
    is_script = isinstance(model, torch.jit.ScriptModule)
    form = form_of_script(model) if is_script else CallForm(signature_of(model))
    arguments = form.bind(args, kwargs, "optimize")
    if is_script:
        return TensorModel(model, form, form.tensors(args, kwargs)[0])
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    try:
        inputs = _flatten_arguments(arguments, tensors, names)
        check_rebuilds(arguments, inputs, tensors, "arguments")
    except Error as problem:
        raise Error(with_inner_code(f"TA1207 optimize: argument {problem}")) from None
    check_examples(tensors, names)
    form = CallForm(form.signature, inputs, tuple(names))

    def given(fakes: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        bound = bound_arguments(form, fakes)
        return bound.args, bound.kwargs

    seen = look_at(model, tensors, given)
    if seen.reads_strides:
        form = dataclasses.replace(form, orders=tuple(map(order_of, tensors)))
    return TensorModel(model, form, tuple(tensors), seen=seen)


def as_tensor_model(call: TensorModel) -> TensorModel:
    """Runs the model once with the arguments of `call`, and records the form of the result.

    The model is `call.model` itself if it takes tensors and returns tensors in tuples, lists and
    dicts, or if it is a ScriptModule. Otherwise it is a shallow copy with another forward: its
    submodules have the same names as in `call.model`.

    Raises: torchalgo.Error if the model raises, or if a type among the results cannot be rebuilt
        from its parts. NoCaptureError if each run changes the model.
    """
    model, form, tensors = call.model, call.form, call.inputs
    if call.seen.writes:
        raise NoCaptureError(f"TA1108 optimize: each call changes {call.seen.writes!r}")
    if form.inputs is None:
        reference = Reference.of(lambda *args: _run(model, args, {}), tensors)
        return dataclasses.replace(call, reference=reference)
    after = tuple(map(copy_of, tensors))
    bound = bound_arguments(form, after)
    started = time.monotonic()
    result = _run(model, bound.args, bound.kwargs)
    seconds = time.monotonic() - started
    output, returned, results = _record_output(result)
    form = dataclasses.replace(form, output=None if output == returned else output)
    outputs = tuple(results) if returned is None else rebuild(returned, iter(results))
    reference = Reference(copied(tensors), copied(outputs), after, seconds)
    if not form.is_positional or form.output is not None:
        model = _copy_with_forward(model, _TensorForward(model, form, output, returned))
    if form.has_numbers and not call.seen.is_whole:
        _check_numbers(model, tensors)
    formats = {key_of(tensors, results): formats_of(results)}
    return TensorModel(model, form, tensors, formats, reference, call.seen)


@EXACT_CPU.block()
def as_tensor_models(
    model: nn.Module,
    calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
    kept: KeptModel,
    autocast: bool = False,
) -> list[TensorModel]:
    """Returns a tensor model for each of several calls. All results must have the same form.

    Args:
        kept: keeps the weights of `model`, which may be written to.
        autocast: True if later calls are inside of torch.autocast in bf16.
    Raises: torchalgo.Error as `as_tensor_model`, or if results differ in more than their tensors.
    """
    refuse_autocast("optimize")
    models = []
    for args, kwargs in calls:
        arguments = (*args, *kwargs.values())
        check_model(model)
        check_inputs(model, arguments)
        try:
            call = bind_call(model, args, kwargs)
            if not call.seen.is_whole:
                kept.copy_weights()
            one = as_tensor_model(call)
            if autocast:
                one = dataclasses.replace(one, form=_in_autocast(one.form, model, args, kwargs))
            models.append(one)
        except NoCaptureError:
            raise
        except Error as problem:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors_in(arguments))
            if not shapes:
                raise
            raise Error(
                with_inner_code(f"TA1110 {problem} (inputs of sizes {shapes})")
            ) from problem
    for name in kept.written():
        raise NoCaptureError(f"TA1108 optimize: each call changes {name!r}")
    first = models[0].form
    for i, other in enumerate(models[1:], start=1):
        if first.output != other.form.output:
            here, there = tree_text(other.form.output), tree_text(first.output)
            raise Error(
                f"TA1117 optimize: the result is {here} for shapes[{i}] and {there} for shapes[0];"
                " expected shapes for which the model returns results of the same form"
            )
    return models


def refuse_autocast(caller: str) -> None:
    """Raises torchalgo.Error inside of torch.autocast."""
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise Error(
            f"TA1118 {caller}: torch.autocast is on, which changes dtypes inside the model. Call"
            f" {caller} outside of torch.autocast, with a model of the wanted dtype, such as"
            ' model.bfloat16(), or for a model on the CPU inside of torch.autocast("cpu",'
            " dtype=torch.bfloat16)"
        )


def _in_autocast(
    form: CallForm, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CallForm:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = _run(model, *copied((tuple(args), dict(kwargs))))
    return dataclasses.replace(form, autocast=tuple(x.dtype for x in _record_output(result)[2]))


def check_examples(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raises torchalgo.Error if outputs cannot be compared for these example inputs."""
    if not tensors:
        raise Error(
            "TA1201 optimize: the example inputs contain no tensor; expected forward's arguments,"
            " such as (torch.rand(1, 3, 224, 224),)"
        )
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.is_floating_point() and not tensor.is_meta and bool(tensor.isnan().any()):
            raise Error(
                f"TA1202 optimize: input {name} holds NaN, so outputs cannot be compared; expected"
                " finite values, such as those of torch.rand"
            )


def _record_output(value: Any) -> tuple[Tree, Tree | None, list[torch.Tensor]]:
    """Returns the form of the model's result, its nearest TorchScript form, and its tensors.

    The second one is the form that TorchScript can return instead, or None if there is none.
    """
    tensors: list[torch.Tensor] = []
    try:
        output = flatten(value, "the model's result", tensors, [])
        for tensor in tensors:
            if type(tensor) not in (torch.Tensor, nn.Parameter):
                raise Error(f"TA1116 the model's result holds a {type_text(type(tensor))}")
        check_rebuilds(value, output, tensors, "the model's result")
        if not tensors:
            raise Error("TA1116 the model's result holds no tensor")
    except Error as problem:
        raise Error(
            with_inner_code(
                f"TA1116 optimize: {problem}. Every call must return the same types. Optimize a"
                " part of the model that returns tensors, or tuples, lists, dicts or dataclasses of"
                " tensors"
            )
        ) from None
    return output, lowered(output), tensors


def copy_of(tensor: Any) -> Any:
    """Copies a tensor with its strides, because a model may write to its inputs.

    Returns the tensor itself if its elements share memory. Returns anything else unchanged.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    dense = tensor.detach().clone()
    if dense.stride() == tensor.stride():
        return dense
    if _shares_elements(tensor):
        return tensor
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return empty.copy_(dense)


def _shares_elements(tensor: torch.Tensor) -> bool:
    """Returns whether two elements of a tensor may have one address, as after expand()."""
    last = 0  # the offset of the last element of the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= last:
            return True
        last += stride * (size - 1) if size > 1 else 0
    return False


def _check_numbers(model: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Raises torchalgo.Error if numbers in the result depend on the values of the inputs.

    Args:
        model: one with a _TensorForward, which compares the form of the result.
    """
    nearby = [t * 0.5 + 0.25 if t.is_floating_point() else t for t in tensors]
    far = [-t if t.is_floating_point() else _other_integers(t) for t in tensors]
    for others, is_sure_to_run in ((nearby, True), (far, False)):
        try:
            _run(model, others, {})
        except Error as problem:
            if is_sure_to_run or problem.code == "TA1117":  # the model may refuse such values
                raise


def _other_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns other numbers in the same range, or the opposite truth values."""
    return ~tensor if tensor.dtype is torch.bool else tensor - (tensor > 0).to(tensor.dtype)


def _run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        with torch.no_grad():
            return model(*args, **kwargs)
    except Error:
        raise
    except Exception as problem:
        first = (str(problem).strip().splitlines() or [""])[0]
        raise Error(
            f"TA1110 optimize: the model raises {type(problem).__name__} for these example inputs:"
            f" {first}"
        ) from problem


def bound_arguments(form: CallForm, tensors: Sequence[torch.Tensor]) -> inspect.BoundArguments:
    """Returns the arguments of a planned call with these tensors in it."""
    assert form.inputs is not None
    return _bound(form.signature, rebuild(form.inputs, iter(tensors)))


def _bound(signature: inspect.Signature, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
    bound = inspect.BoundArguments(signature, collections.OrderedDict(arguments))
    kinds = {signature.parameters[name].kind for name in arguments}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        bound.apply_defaults()  # a default before them has a position, too
    return bound


class _TensorForward:
    """The forward of a tensor model.

    It returns a value of the form `returned`, or a tuple of all tensors if `returned` is None. It
    is a class, not a closure, so that a deep copy of the tensor model uses the copied weights.
    """

    is_tensor_forward = True

    def __init__(
        self, model: nn.Module, form: CallForm, output: Tree, returned: Tree | None
    ) -> None:
        self.model, self.form, self.output, self.returned = model, form, output, returned
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = script_names(form.names)
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, *tensors: torch.Tensor) -> Any:
        bound = bound_arguments(self.form, tensors)
        value = self.model(*bound.args, **bound.kwargs)
        found: list[torch.Tensor] = []
        form = flatten(value, "the model's result", found, [])
        if form != self.output:
            raise Error(
                f"TA1117 the model's result is {tree_text(form)} here and was"
                f" {tree_text(self.output)} for the example inputs; expected the same form for all"
                " calls. Return numbers that depend on the inputs as tensors"
            )
        return tuple(found) if self.returned is None else rebuild(self.returned, iter(found))

    def scripted(self, tensors: Sequence[torch.Tensor]) -> torch.jit.ScriptModule:
        """Compiles this forward with torch.jit.script.

        Raises: the errors of `scripted_calls.script_tensor_model`.
        """
        check_parameters(self.form.signature)
        assert self.form.inputs is not None
        bound = bound_arguments(self.form, tensors)
        expected: list[torch.Tensor] = []
        flatten(self.model(*bound.args, **bound.kwargs), "", expected, [])
        names = script_names(self.form.names)
        return script_tensor_model(
            self.model, self.form.inputs, names, self.returned, tensors, expected
        )


def _copy_with_forward(model: nn.Module, forward: _TensorForward) -> nn.Module:
    """Returns a copy of `model` that shares its submodules and weights and runs `forward`."""
    other = copy.copy(model)
    # The model's own hooks run inside `forward`, with the model's own arguments.
    other._forward_hooks = collections.OrderedDict()
    other._forward_pre_hooks = collections.OrderedDict()
    other.forward = forward  # type: ignore[method-assign]
    return other


def script_names(names: Sequence[str]) -> list[str]:
    """Returns unique names of TorchScript arguments: "batch['image']" becomes "batch_image"."""
    taken = {"self"}
    result = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "input"
        numbered = (f"{plain}_{i}" for i in itertools.count(1))
        chosen = next(n for n in itertools.chain([plain], numbered) if n not in taken)
        taken.add(chosen)
        result.append(chosen)
    return result
