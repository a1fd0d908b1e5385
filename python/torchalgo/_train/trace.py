# SPDX-License-Identifier: BSD-3-Clause
"""Traces a model in train mode, and cuts it into regions of known operations and the rest.

A region is a part of the model whose forward pass and gradients can be planned together. All else
runs as in the model: unknown operations, modules with hooks, and modules that a user has derived.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from torchalgo import _C
from torchalgo._base.overlap import one_at_a_time
from torchalgo._train.channel_views import simplify_channel_views
from torchalgo._train.check_trace import check_trace
from torchalgo._train.known_ops import (
    PRODUCTS,
    NormPart,
    calls,
    channel_shuffle,
    is_altered,
    is_norm_with_activation,
    known_op,
    parts_of_concat,
)
from torchalgo._train.stochastic_depth import draw_noise, open_stochastic_depth
from torchalgo._train.tracer import WRITES, run_and_trace

# The key in a node's meta: may its result be changed in place outside of the regions?
MAY_CHANGE = "may_change"


@dataclass(frozen=True)
class Traced:
    """A model in parts. `whole` calls the parts, whose modules are those of the model."""

    whole: fx.GraphModule
    # The parts that get a plan: known operations, among them a convolution. By names in `whole`.
    regions: dict[str, fx.GraphModule]
    entered: list[nn.Module]  # whose forward is a part of the trace
    left_alone: list[str]  # the operations outside of the regions, by layer or by function


def trace(model: nn.Module, inputs: Sequence[Tensor]) -> Traced:
    """Traces `model` and cuts it into regions. The model itself stays as it is.

    Raises: torchalgo.Error if the model cannot be copied, traced, or run with the example.
    """
    with one_at_a_time("it traces a model for training"):
        try:
            if "forward" in vars(model):
                raise RuntimeError("forward was set on the model itself, instead of in its class")
            whole, entered = run_and_trace(model, inputs)
            _leave_out_other_inputs(whole, len(inputs))
            check_trace(model, whole, inputs)
            entered += _open_norms(whole)
        except Exception as problem:
            cause = problem.__cause__ or problem
            raise _C.Error(
                "TA1601 optimize_training: expected a model that torch.fx can trace and that runs"
                f" with the example inputs ({type(cause).__name__}: {str(cause)[:300]})."
                f" {_cure(model, inputs)}, or train the model as it is"
            ) from problem
    entered += open_stochastic_depth(whole)
    modules = dict(whole.named_modules(remove_duplicate=False))
    simplify_channel_views(whole.graph, modules)
    _leave_out_copies(whole.graph, modules)
    _name_results_of_in_place_ops(whole.graph, modules)
    return _split(whole, [model, *entered])


def _cure(model: nn.Module, inputs: Sequence[Tensor]) -> str:
    """Returns what helps if a model was not traced: other inputs, if it fails with these."""
    try:
        copy.deepcopy(model)(*inputs)
    except Exception:
        return "Give inputs that forward accepts"
    return "Mark the part that decides by values with torch.fx.wrap"


def _leave_out_other_inputs(whole: fx.GraphModule, count: int) -> None:
    """Removes arguments of forward that the example does not give, and that no operation reads."""
    for i, node in enumerate([n for n in whole.graph.nodes if n.op == "placeholder"]):
        if i < count and not str(node.target).startswith("*"):
            continue
        if node.users or i < count:
            raise RuntimeError(
                f"forward reads its argument {node.target}, which is not given, or which takes any"
                " number of tensors"
            )
        whole.graph.erase_node(node)
    whole.recompile()


def _open_norms(whole: fx.GraphModule) -> list[nn.Module]:
    """Replaces each BatchNormAct2d by three calls: the norm, `drop` and `act`.

    Returns the modules that were replaced.
    """
    modules = dict(whole.named_modules(remove_duplicate=False))
    found: list[nn.Module] = []
    for node in list(whole.graph.nodes):
        layer = modules[str(node.target)] if node.op == "call_module" else None
        if layer is None or not is_norm_with_activation(layer) or is_altered(layer):
            continue
        if not layer.training or len(node.args) != 1:  # it runs as it is
            continue
        names = [f"torchalgo_norm_{len(found)}", f"{node.target}.drop", f"{node.target}.act"]
        whole.add_module(names[0], NormPart(layer))
        last = node.args[0]
        with whole.graph.inserting_before(node):
            for name in names:
                called = whole.get_submodule(name)
                if type(called) is nn.Identity and not is_altered(called):
                    found.append(called)
                    continue
                last = whole.graph.call_module(name, (last,))
                last.meta["layer"] = name if name != names[0] else node.target
                last.meta["tensor_meta"] = node.meta["tensor_meta"]
        node.replace_all_uses_with(last)
        whole.graph.erase_node(node)
        found.append(layer)
    whole.recompile()
    return found


def _leave_out_copies(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Removes concatenations of one tensor, and contiguous(), which would cut regions.

    A copy is removed only if nobody can notice. Its source must be the result of a planned op, or
    a slice of one. The model must not return the copy. No op outside of the regions may write in
    place.
    """
    called = [n for n in graph.nodes if n.op in ("call_module", "call_function", "call_method")]
    if _has_unplanned_write(called, modules):
        return
    for node in called:
        is_contiguous = calls(node, ("contiguous",)) and not node.kwargs
        parts = node.args if is_contiguous else parts_of_concat(node)
        if len(parts) != 1:
            continue
        source = of = parts[0]
        if known_op(source, modules) is not None and not _makes_tensor(source, modules):
            of = source.args[0]
        is_new = _makes_tensor(of, modules) and _is_planned(of, modules)
        if is_new and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _name_results_of_in_place_ops(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Lets later readers of a tensor that a known op changes in place read the op's result.

    Then the op may as well make a new tensor.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not node.meta.get(WRITES) or not _is_planned(node, modules):
            continue
        changed = node.args[0]
        for reader in list(changed.users):
            if order[reader] > order[node]:
                reader.replace_input_with(changed, node)


def _makes_tensor(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether a known op makes a tensor of its own, unlike a slice of another one.

    A planned op that works in place also makes a new tensor.
    """
    op = known_op(node, modules)
    return op is not None and op.kind != "slice"


def _has_unplanned_write(called: Sequence[fx.Node], modules: dict[str, nn.Module]) -> bool:
    """Returns whether an op outside of the regions may change a tensor that exists already."""
    return any(_may_write(n, modules) and not _is_planned(n, modules) for n in called)


def _is_planned(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether the op can be a part of a region."""
    if known_op(node, modules) is None:
        return False
    if not node.meta.get(WRITES):
        return True
    # A region makes a new tensor and leaves the old one as it was. Nobody notices that if a known
    # op or a product has made the old tensor, and if only known ops have read it so far.
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    is_new = calls(changed, PRODUCTS) or (
        _makes_tensor(changed, modules)
        and (not changed.meta.get(WRITES) or _is_planned(changed, modules))
    )
    readers = [user for user in changed.users if user < node]
    return is_new and all(_makes_tensor(each, modules) for each in readers)


def _may_write(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether the op may change a tensor that exists already.

    It did so with the example, or it is code of a user, which may do anything.
    """
    if node.meta.get(WRITES):
        return True
    if node.op == "call_module":
        module = modules[str(node.target)]
        return is_altered(module) or not type(module).__module__.startswith("torch.nn")
    if node.op == "call_method" or node.target in (channel_shuffle, draw_noise):
        return False
    owner = str(getattr(node.target, "__module__", None))
    return owner.partition(".")[0] not in ("torch", "_operator", "math", "builtins", "None")


class _Levels:
    """Gives each node the number of its part: parts run in the order of their numbers.

    A level has a part of unknown ops, and then one of known ops.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._modules = modules
        self._of: dict[fx.Node, tuple[int, bool]] = {}
        self._last_calls: dict[nn.Module, fx.Node] = {}
        self._least = {False: 0, True: 0}  # of the next node that is unknown, or known
        self._most_known = -1

    def add(self, node: fx.Node, is_known: bool) -> None:
        before = [self._of[source] for source in node.all_input_nodes if source in self._of]
        if node.op == "call_module":  # calls of a batch norm keep their order: each changes it
            module = self._modules[str(node.target)]
            owner = module.layer if isinstance(module, NormPart) else module
            if owner in self._last_calls:
                before.append(self._of[self._last_calls[owner]])
            self._last_calls[owner] = node
        level = max((at + (was_known and not is_known) for at, was_known in before), default=0)
        level = max(level, self._least[is_known])
        if is_known:
            if node.meta.get(WRITES):  # what reads the tensor runs before
                readers = [self._of[n] for n in node.all_input_nodes[0].users if n in self._of]
                level = max([level, *(at for at, _ in readers)])
            self._most_known = max(self._most_known, level)
        else:
            if _may_write(node, self._modules):  # all that comes before it runs before it
                level = max(level, self._most_known + 1)
                self._least[True] = level
            self._least[False] = level  # unknown ops keep their order: they may draw random numbers
        self._of[node] = (level, is_known)

    @property
    def numbers(self) -> dict[fx.Node, int]:
        places = {each: number for number, each in enumerate(sorted(set(self._of.values())))}
        return {node: places[place] for node, place in self._of.items()}


def _split(whole: fx.GraphModule, entered: list[nn.Module]) -> Traced:
    modules = dict(whole.named_modules(remove_duplicate=False))
    nodes = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    slices = [n for n in nodes if (op := known_op(n, modules)) is not None and op.kind == "slice"]
    left_out = set(slices) if _has_unplanned_write(nodes, modules) else set()
    while True:
        known = _known(nodes, modules, left_out)
        _note_changes(nodes, known, modules)
        levels = _Levels(modules)
        for node in nodes:
            levels.add(node, node in known)
        numbers = levels.numbers
        alone = _slices_without_the_rest([n for n in slices if n in known], numbers, modules)
        if not alone:
            break
        left_out |= alone
    _sort_and_rename(whole, nodes, numbers)
    split = split_module(whole, nn.Module(), lambda n: numbers[n], keep_original_order=True)
    regions = {f"submod_{numbers[n]}": split.get_submodule(f"submod_{numbers[n]}") for n in known}
    with_convolution = {
        name: part for name, part in sorted(regions.items(), key=lambda each: int(each[0][7:]))
        if any(type(m) is nn.Conv2d for m in part.modules())
    }  # fmt: skip
    planned = {int(name.removeprefix("submod_")) for name in with_convolution}
    left = [_name_of(n) for n in nodes if numbers[n] not in planned]
    return Traced(split, with_convolution, entered, left)


def _known(
    nodes: Sequence[fx.Node], modules: dict[str, nn.Module], left_out: set[fx.Node]
) -> set[fx.Node]:
    """Returns the ops of regions. An op on which no result depends has no gradient.

    So such an op is left out.
    """
    read: set[fx.Node] = set()
    known: set[fx.Node] = set()
    for node in reversed(nodes):
        is_planned = node not in left_out and _is_planned(node, modules)
        is_read = any(user in read or user.op == "output" for user in node.users)
        if is_read or (not is_planned and _may_write(node, modules)):
            read.add(node)
        if is_read and is_planned:
            known.add(node)
    return known


def _slices_without_the_rest(
    slices: Sequence[fx.Node], numbers: Mapping[fx.Node, int], modules: dict[str, nn.Module]
) -> set[fx.Node]:
    """Returns the slices that no region can have.

    The gradient of a tensor is the concatenation of those of its slices. So they must cover all
    channels once, in one region. A slice that may be changed must be a view, as in the model.
    """
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in slices:
        groups.setdefault(node.all_input_nodes[0], []).append(node)
    found: set[fx.Node] = set()
    for source, group in groups.items():
        end = 0.0
        for begin, k in sorted(known_op(node, modules).numbers for node in group):  # type: ignore[union-attr]
            end = end + k if begin == end else -1.0
        is_whole = end == source.meta["tensor_meta"].shape[1]
        is_in_one = len({numbers[node] for node in group}) == 1
        if not is_whole or not is_in_one or any(node.meta[MAY_CHANGE] for node in group):
            found.update(group)
    return found


def _note_changes(
    nodes: Sequence[fx.Node], known: set[fx.Node], modules: dict[str, nn.Module]
) -> None:
    """Notes for each op whether its result may be changed in place outside of the regions."""

    def may_change(reader: fx.Node) -> bool:
        if reader.op == "output":  # the caller of the model may do anything
            return True
        if reader in known:
            return False
        return _may_write(reader, modules) or bool(reader.meta[MAY_CHANGE])  # it may be a view

    for node in reversed(nodes):
        node.meta[MAY_CHANGE] = any(map(may_change, node.users))


def _name_of(node: fx.Node) -> str:
    """Returns the name of a layer in the model, or of a function."""
    return str(node.meta.get("layer", getattr(node.target, "__name__", node.target)))


def _sort_and_rename(
    whole: fx.GraphModule, nodes: Sequence[fx.Node], numbers: dict[fx.Node, int]
) -> None:
    """Sorts the nodes by their parts, and gives each called module a name without dots.

    split_module would replace the dots, and two names may then be equal.
    """
    end = next(n for n in whole.graph.nodes if n.op == "output")
    names: dict[str, str] = {}
    for node in sorted(nodes, key=lambda n: numbers[n]):
        end.prepend(node)
        if node.op == "call_module":
            node.meta.setdefault("layer", node.target)
            name = names.setdefault(str(node.target), f"torchalgo_layer_{len(names)}")
            whole.add_module(name, whole.get_submodule(str(node.target)))
            node.target = name
    whole.recompile()
