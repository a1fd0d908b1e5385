# SPDX-License-Identifier: BSD-3-Clause
"""A model as a frozen TorchScript module, with batch norm folded. The original is not changed."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn.parameter import is_lazy

from torchalgo import _C
from torchalgo._base.overlap import filter_warnings, one_at_a_time, quiet_jit
from torchalgo._C import Error
from torchalgo._capture.seen import NoCaptureError, Seen

ScriptModule = torch.jit.ScriptModule

NOT_SEEN = Seen()

JOINED = "PlannedShapes"  # class name, in files too, of modules that choose a plan by shape

# Starts of the tracer's warnings about a value of this run that becomes a constant of the graph.
_BAKED_IN = ("Converting a tensor to a Python", "Iterating over a tensor")


def as_inputs(example_inputs: Any) -> tuple[Any, ...]:
    """Returns forward's positional arguments. A tensor is the only one; a sequence holds all.

    Raises: torchalgo.Error for anything else, or for an empty sequence.
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, (tuple, list)) and example_inputs:
        if len(example_inputs) > 1 and all(type(size) is int for size in example_inputs):
            sizes = ", ".join(map(str, example_inputs))
            raise Error(
                f"TA1201 optimize: example_inputs is the sizes ({sizes}), expected tensors: pass"
                f" torch.rand({sizes})"
            )
        return tuple(example_inputs)
    raise Error(
        f"TA1201 optimize: example_inputs is {type(example_inputs).__name__}, expected a tensor or"
        " a non-empty sequence of forward's arguments, such as (torch.rand(1, 3, 224, 224),), or"
        " (batch,) where forward takes one dict; keyword arguments are example_kwargs"
    )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns all tensors inside nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_in(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    return []


def check_model(model: Any) -> None:
    """Raises torchalgo.Error, with a way to fix it, if `model` cannot be planned."""
    if isinstance(model, nn.Module) and getattr(model, "is_torchalgo_optimized", False):
        raise Error("TA1102 optimize: the model is already optimized; pass the original one")
    if not isinstance(model, nn.Module):
        raise Error(f"TA1101 optimize: model is {_not_a_module(model)}")
    if isinstance(model, torch.jit.ScriptModule) and (has_own_ops(model) or is_joined(model)):
        raise Error("TA1102 optimize: the ScriptModule is already optimized; pass the original one")
    for name, module in model.named_modules():
        if getattr(module, "is_torchalgo_optimized", False):
            raise Error(
                f"TA1102 optimize: submodule {name!r} is already optimized; pass the original model"
                " as a whole"
            )
        if getattr(module, "training", False):
            what = f"submodule {name!r}" if name else "the model"
            is_exported = "eval" in vars(module)  # which raises there
            cure = "call model.eval() first" if not is_exported else (
                "pass the ExportedProgram itself, since its module() has no eval mode"
            )  # fmt: skip
            raise Error(f"TA1103 optimize: {what} is in train mode: {cure}")
    weights = [*model.named_parameters(), *model.named_buffers()]
    for name, weight in weights:
        if is_lazy(weight):
            raise Error(
                f"TA1104 optimize: {name!r} has no sizes yet, like the weights of a lazy module"
                " before its first call: call the model once, model(*example_inputs), then optimize"
                " it"
            )
        _check_device(name, weight, *weights[0])
        _check_weight(name, weight, is_buffer=not isinstance(weight, nn.Parameter))


def _not_a_module(model: Any) -> str:
    """Returns a text that says what `model` is, and what to pass instead."""
    expected = "expected torch.nn.Module or ScriptModule"
    if isinstance(model, type):
        return f"the class {model.__name__}, {expected}: make an instance, {model.__name__}(...)"
    if isinstance(model, (str, bytes)):
        return (
            f"text, {model[:60]!r}, {expected}: load the model first, as with torch.jit.load or"
            " torchalgo.load_onnx"
        )
    if isinstance(model, dict):
        return f"a dict, {expected}: load a state_dict into its model, load_state_dict(...)"
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        return f"{type(model).__name__} {name!r}, {expected}: call it, or put it into a Module"
    return f"{type(model).__name__}, {expected}"


def _check_device(
    name: str, weight: torch.Tensor, first_name: str, first_weight: torch.Tensor
) -> None:
    if weight.device.type not in ("cpu", "cuda"):
        raise Error(
            f"TA1105 optimize: parameter {name!r} is on {weight.device}, expected a CPU or a CUDA"
            " device: call model.cpu() or model.cuda() first"
        )
    if weight.device != first_weight.device:
        raise Error(
            f"TA1106 optimize: parameter {first_name!r} is on {first_weight.device} and {name!r} on"
            f" {weight.device}, expected one device: call model.to(device) first"
        )


def device_of(model: nn.Module, inputs: tuple[Any, ...]) -> torch.device:
    """Returns the device of the weights, or of the inputs if the model has none; else the CPU."""
    for tensor in [*model.parameters(), *model.buffers(), *tensors_in(inputs)]:
        return tensor.device
    return torch.device("cpu")


def _check_weight(name: str, weight: torch.Tensor, is_buffer: bool) -> None:
    if not weight.is_floating_point():
        return
    # An infinite buffer can be intended (a mask). An infinite parameter comes from diverged
    # training.
    bad = weight.isnan() if is_buffer else ~weight.isfinite()
    if bad.any():
        raise Error(
            f"TA1107 optimize: parameter {name!r} has NaN or infinite values ({int(bad.sum())} of"
            f" {weight.numel()}), expected finite weights: load a sound checkpoint"
        )


def has_own_ops(module: ScriptModule) -> bool:
    """Returns whether the module's forward calls ops of a plan."""
    graph: Any = getattr(module, "graph", None)
    if graph is None:
        return False
    return any(node.kind().startswith("torchalgo::") for node in graph.nodes())


def has_branches(module: ScriptModule) -> bool:
    """Returns whether the module's forward has a branch or a loop, or checks that it takes one.

    A branch whose other side raises an error does not count.
    """
    graph: Any = module.graph
    return any(
        node.kind() in ("prim::If", "prim::Loop")
        or (node.kind() == "torchalgo::take_branch" and not list(node.inputs())[2].toIValue())
        for node in graph.nodes()
    )


def writes_to_inputs(module: ScriptModule) -> bool:
    """Returns whether the module's forward may change its arguments in place."""
    graph: Any = module.graph
    if graph is None:
        return False
    aliases = graph.alias_db()
    return any(aliases.has_writers(value) for value in list(graph.inputs())[1:])


def constants_in_results(module: ScriptModule) -> frozenset[int]:
    """Returns the addresses of the constants of a graph whose memory a result may share."""
    graph: Any = module.graph
    nodes = [
        node for node in graph.nodes()
        if node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType"
    ]  # fmt: skip
    if not nodes:
        return frozenset()
    aliases, results = graph.alias_db(), list(graph.outputs())
    return frozenset(
        node.t("value").untyped_storage().data_ptr()
        for node in nodes
        if any(aliases.may_contain_alias(result, node.output()) for result in results)
    )


def is_joined(module: ScriptModule) -> bool:
    """Returns whether the module chooses between planned modules; shape_dispatch.py makes these."""
    return getattr(module, "original_name", "") == JOINED


def check_inputs(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raises torchalgo.Error if the device or the dtype of an input differs from the weights'."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    device = device_of(model, inputs)
    for i, tensor in enumerate(tensors_in(inputs)):
        if tensor.device != device:
            raise Error(
                f"TA1203 optimize: input {i} is on {tensor.device} and the weights are on {device}:"
                f" call .to({str(device)!r}) on the input"
            )
        if tensor.is_floating_point() and dtypes and tensor.dtype not in dtypes:
            want = min(dtypes, key=str)
            raise Error(
                f"TA1204 optimize: input {i} is {tensor.dtype} and the weights are {want}: call"
                f" .to({want}) on the input"
            )


def freeze_model(
    model: nn.Module, inputs: tuple[Any, ...], note: Callable[[str], None] = lambda text: None
) -> ScriptModule:
    """Returns a frozen copy of `model`, which TorchScript has not run: a run would fix its graph.

    Args:
        model: in eval mode on the CPU or a GPU; not modified. A ScriptModule is frozen as it is.
        note: called with facts that a user has to know, such as a branch that the trace fixed.
    Raises: torchalgo.Error if the model cannot be planned, traced or scripted, with the reasons.
    """
    return capture_model(model, inputs, note).frozen


@dataclass(frozen=True)
class Capture:
    """A model as TorchScript, before and after torch.jit.freeze."""

    module: ScriptModule
    frozen: ScriptModule
    is_traced: bool  # True if it holds what Python code did in one run
    reads_values: bool = False  # True if Python code may have read a tensor's value then
    # The trace of a scripted model. Numbers that Python code made of tensors are constants there.
    trace: ScriptModule | None = None


def capture_model(
    model: nn.Module,
    inputs: tuple[Any, ...],
    note: Callable[[str], None] = lambda text: None,
    seen: Seen = NOT_SEEN,
) -> Capture:
    """Captures `model` for freeze_model, whose docstring describes the arguments.

    Args:
        seen: what a run of the model on fake tensors shows. If it reads values, it is scripted.
    """
    check_model(model)
    check_inputs(model, inputs)
    with quiet_jit(), torch.no_grad():
        if isinstance(model, torch.jit.ScriptModule):
            return _frozen(model, is_traced=False)
        return _capture(model, inputs, note, seen)


def script_model(model: nn.Module, inputs: tuple[Any, ...]) -> Capture:
    """Compiles the model with torch.jit.script, without running its Python code.

    Raises: RuntimeError or another error of torch.jit.script if it refuses the model.
    """
    what = "it compiles a model with torch.jit.script"
    with one_at_a_time(what), quiet_jit(), torch.no_grad():
        if getattr(model.forward, "is_tensor_forward", False):
            return _frozen(cast(Any, model.forward).scripted(inputs), is_traced=False)
        return _frozen(torch.jit.script(model), is_traced=False)


def freeze_trace(trace: ScriptModule) -> Capture:
    """Freezes the trace of a model whose Python code reads no values."""
    with quiet_jit(), torch.no_grad():
        return _frozen(trace, is_traced=True)


def _frozen(module: ScriptModule, is_traced: bool, reads_values: bool = False) -> Capture:
    frozen = _freeze(module)
    _check_constants(frozen)
    return Capture(module, frozen, is_traced, reads_values)


def _capture(
    model: nn.Module, inputs: tuple[Any, ...], note: Callable[[str], None], seen: Seen
) -> Capture:
    traced, baked_in, trace_error = None, "", None
    if not seen.reads:
        traced, baked_in, trace_error = _trace(model, inputs)
    if traced is not None and not baked_in:
        return _frozen(traced, is_traced=True)
    try:
        return dataclasses.replace(script_model(model, inputs), trace=traced)
    except Exception as problem:
        script_error = problem
    if seen.reads:
        raise NoCaptureError(
            "TA1108 optimize: its Python code reads values that depend on the inputs"
            f" ({seen.reads}), and torch.jit.script refuses it: {first_lines(script_error)}"
        ) from script_error
    if traced is None:
        raise NoCaptureError(
            "TA1108 optimize: the model can be neither traced nor scripted. torch.jit.trace:"
            f" {first_lines(trace_error)}. torch.jit.script: {first_lines(script_error)}"
        ) from script_error
    if seen.is_whole:  # what the tracer warns of depends on sizes
        return _frozen(traced, is_traced=True)
    note(
        f"traced: what depends on values ({baked_in}) is fixed as the example inputs had it,"
        f" since torch.jit.script refuses the model ({first_lines(script_error)})"
    )
    return _frozen(traced, is_traced=True, reads_values=True)


def _trace(
    model: nn.Module, inputs: tuple[Any, ...]
) -> tuple[ScriptModule | None, str, Exception | None]:
    """Returns the traced module, the tracer's warning about fixed values, and its error.

    The module is None if tracing failed, and the error is None if it did not.
    """
    try:
        traced, texts = trace_module(model, inputs)
    except Exception as problem:
        return None, "", problem
    baked_in = next((text for text in texts if text.startswith(_BAKED_IN)), "")
    return traced, baked_in.split(" might cause", 1)[0].lower(), None


def trace_module(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[ScriptModule, list[str]]:
    """Traces with torch.jit.trace, which keeps the names of layers in a variable of the process.

    Returns the module, and the tracer's warnings, which are not shown.
    """
    texts: list[str] = []
    with one_at_a_time("it traces a model"):
        here, before = threading.get_ident(), warnings.showwarning
        undo = filter_warnings("always", "", TracerWarning)

        def show(message: Any, category: Any, *rest: Any, **named: Any) -> None:
            if issubclass(category, TracerWarning) and threading.get_ident() == here:
                texts.append(str(message))
            else:
                before(message, category, *rest, **named)

        warnings.showwarning = show
        try:
            traced = torch.jit.trace(model, inputs, check_trace=False, strict=False)
        finally:
            warnings.showwarning = before
            undo()
    return cast(ScriptModule, traced), texts


def _freeze(model: ScriptModule) -> ScriptModule:
    # Without a compilation unit of its own, the frozen module's weights would never be freed.
    model = torch.jit._recursive.wrap_cpp_module(_C.with_own_unit(model._c))
    try:
        if hasattr(model, "training"):
            frozen: ScriptModule = torch.jit.freeze(model)
        else:
            # torch.jit.freeze refuses a frozen module. This makes a copy of it that may be changed.
            copy = torch._C._freeze_module(model._c, [], True, True)
            frozen = torch.jit._recursive.wrap_cpp_module(copy)
        return frozen
    except RuntimeError as problem:
        raise Error(
            f"TA1109 optimize: torch.jit.freeze failed: {first_lines(problem)}"
        ) from problem


def _check_constants(frozen: ScriptModule) -> None:
    for node in _tensor_constants(frozen):
        tensor = node.t("value")
        if tensor.is_floating_point() and tensor.dim() > 1 and tensor.isnan().any():
            name = node.outputsAt(0).debugName().removeprefix("self.")
            raise Error(
                f"TA1107 optimize: weight {name!r} of the frozen module holds NaN, expected finite"
                " weights: load a sound checkpoint"
            )


def first_lines(problem: Exception | None) -> str:
    """Returns the first lines of an error's text as one line of at most 300 characters.

    It is a part of a sentence, so it does not end with a dot or a colon.
    """
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = " ".join(lines[:3]).rstrip(".:") or type(problem).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def share_weights(frozen: ScriptModule, others: Sequence[ScriptModule]) -> None:
    """Replaces tensors of `frozen` by equal tensors of `others`.

    Several frozen modules of one model then need the memory of one. `frozen` must not have run yet.
    """
    known: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for other in others:
        for node in _tensor_constants(other):
            tensor = node.t("value")
            known.setdefault(_form(tensor), []).append(tensor)
    for node in _tensor_constants(frozen):
        tensor = node.t("value")
        for same in known.get(_form(tensor), ()):
            if torch.equal(tensor, same):
                node.t_("value", same)
                break


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _tensor_constants(module: ScriptModule) -> list[Any]:
    graph: Any = module.graph
    nodes = graph.findAllNodes("prim::Constant")
    return [n for n in nodes if n.hasAttribute("value") and n.kindOf("value") == "t"]


def to_channels_last(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Returns `inputs` with every 4-D tensor in channels_last."""
    return tuple(
        x.contiguous(memory_format=torch.channels_last)
        if isinstance(x, torch.Tensor) and x.dim() == 4
        else x
        for x in inputs
    )
