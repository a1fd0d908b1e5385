# SPDX-License-Identifier: BSD-3-Clause
"""Runs a TorchScript module node by node, so that the layer and line of each operation are known.

TorchScript's interpreter does not tell them. The graphs keep the lines of the Python code from
which they were made, also in a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchalgo._base.compare_outputs import output_error
from torchalgo._lint.source import Lines, SourceLine, is_user_file

_TRACED = re.compile(r"^(.+)\((\d+)\): (.+)$")
_SCRIPTED = re.compile(r'File "(.+)", line (\d+)')
_TRACER = "jit/_trace.py"  # frames outside of it are those of the code that traced the model


class UnknownNodeError(Exception):
    """A node of a kind that cannot be run here."""


class ScriptSteps(nn.Module):
    """A TorchScript module whose nodes run one after the other.

    Its parameters and modules are those of the TorchScript module, with the same names.
    """

    def __init__(self, script: torch.jit.ScriptModule, is_inlined: bool = False) -> None:
        super().__init__()
        self._script = [script]  # a list, so that it is no submodule
        self._is_inlined = is_inlined
        self.layer = ""
        self.training = False

    @staticmethod
    def of(script: torch.jit.ScriptModule, args: tuple[Any, ...]) -> ScriptSteps | None:
        """Returns the steps, or None if they do not give what the module gives.

        A script may call functions. Their graphs can be read only if everything is inlined, and
        then a layer is known only where an operation reads its weights.
        """
        for is_inlined in (False, True):
            steps = ScriptSteps(script, is_inlined)
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    result = steps(*args)
                    torch.manual_seed(0)
                    error = output_error(result, script(*args))
            except Exception:  # the model has a node that is not known here
                continue
            if error < 1e-4:
                return steps
        return None

    def forward(self, *args: Any) -> Any:
        script: Any = self._script[0]
        if self._is_inlined:
            return self._run_block(script.inlined_graph, [script, *args], {}, "", ())[0]
        return self._run_method(script, "forward", [script, *args], "", ())

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        yield from self._script[0].named_modules(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._script[0].named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._script[0].named_buffers(*args, **kwargs)

    # ---- running ---------------------------------------------------------------------------------

    def _run_method(
        self, module: Any, name: str, inputs: Sequence[Any], layer: str, lines: Lines
    ) -> Any:
        graph = module._c._get_method(name).graph
        results = self._run_block(graph, inputs, {}, layer, lines)
        return results[0]

    def _run_block(
        self,
        block: Any,
        inputs: Sequence[Any],
        outer: Mapping[str, Any],
        layer: str,
        lines: Lines,
    ) -> list[Any]:
        values: dict[str, Any] = {**outer, "layers": dict(outer.get("layers", {}))}
        first = next(iter(block.inputs()), None)
        if first is not None and not outer:
            values["layers"][first.debugName()] = layer
        for place, value in zip(block.inputs(), inputs, strict=False):
            values[place.debugName()] = value
        for node in block.nodes():
            own = _lines_of(node) + lines
            self._run_node(node, values, layer, tuple(dict.fromkeys(own)))
        return [values[place.debugName()] for place in block.outputs()]

    def _run_node(self, node: Any, values: dict[str, Any], layer: str, lines: Lines) -> None:
        kind = node.kind()
        given = [values[place.debugName()] for place in node.inputs()] if kind != CONSTANT else []
        outputs = [place.debugName() for place in node.outputs()]
        if kind == "prim::GetAttr":
            name = node.s("name")
            values[outputs[0]] = getattr(given[0], name)
            of = values["layers"].get(node.inputsAt(0).debugName(), "")
            values["layers"][outputs[0]] = f"{of}.{name}" if of else name
        elif kind == "prim::CallMethod":
            of = values["layers"].get(node.inputsAt(0).debugName(), layer)
            values[outputs[0]] = self._run_method(given[0], node.s("name"), given, of, lines)
        elif kind == "prim::If":
            block = list(node.blocks())[0 if given[0] else 1]
            results = self._run_block(block, (), values, layer, lines)
            values.update(zip(outputs, results, strict=True))
        elif kind == "prim::Loop":
            results = self._run_loop(node, given, values, layer, lines)
            values.update(zip(outputs, results, strict=True))
        elif kind in SIMPLE:
            values.update(zip(outputs, SIMPLE[kind](node, given), strict=True))
        elif kind.startswith("aten::"):
            self.layer = self._owner(node, values) if self._is_inlined else layer
            result = _run_operation(node, given)
            results = [result] if len(outputs) == 1 else list(result or ())
            values.update(zip(outputs, results, strict=False))
        else:
            raise UnknownNodeError(kind)

    def _run_loop(
        self, node: Any, given: list[Any], values: dict[str, Any], layer: str, lines: Lines
    ) -> list[Any]:
        most, is_going, *carried = given
        (body,) = node.blocks()
        count = 0
        while is_going and count < most:
            is_going, *carried = self._run_block(body, [count, *carried], values, layer, lines)
            count += 1
        return carried

    @staticmethod
    def _owner(node: Any, values: Mapping[str, Any]) -> str:
        """Returns the layer whose weights an operation reads; "" if it reads none."""
        for place in node.inputs():
            path = values["layers"].get(place.debugName(), "")
            if path:
                return str(path).rpartition(".")[0]
        return ""


CONSTANT = "prim::Constant"
SIMPLE: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    CONSTANT: lambda node, given: [node.output().toIValue()],
    "prim::ListConstruct": lambda node, given: [given],
    "prim::TupleConstruct": lambda node, given: [tuple(given)],
    "prim::ListUnpack": lambda node, given: list(given[0]),
    "prim::TupleUnpack": lambda node, given: list(given[0]),
    "prim::TupleIndex": lambda node, given: [given[0][given[1]]],
    "prim::DictConstruct": lambda node, given: [dict(zip(given[::2], given[1::2], strict=True))],
    "prim::NumToTensor": lambda node, given: [torch.tensor(given[0])],
    "prim::dtype": lambda node, given: [given[0].dtype],
    "prim::device": lambda node, given: [given[0].device],
    "prim::unchecked_cast": lambda node, given: [given[0]],
    "prim::Uninitialized": lambda node, given: [None],
}


def _run_operation(node: Any, given: list[Any]) -> Any:
    schema = torch._C.parse_schema(node.schema())
    operation, _ = torch._C._jit_get_operation(node.kind())
    by_position, by_name = [], {}
    for argument, value in zip(schema.arguments, given, strict=True):
        if argument.kwarg_only:
            by_name[argument.name] = value
        else:
            by_position.append(value)
    return operation(*by_position, **by_name)


def _lines_of(node: Any) -> Lines:
    """Returns the user's lines that a node's source has, the innermost first."""
    found = []
    text, _, _ = node.sourceRange().partition("Serialized ")
    for line in text.splitlines():
        traced, scripted = _TRACED.match(line), _SCRIPTED.search(line)
        if traced is not None:
            if traced[1].endswith(_TRACER):
                break
            found.append(SourceLine(traced[1], int(traced[2]), traced[3]))
        elif scripted is not None:
            found.append(SourceLine(scripted[1], int(scripted[2])))
    return tuple(line for line in found if is_user_file(line.file))
