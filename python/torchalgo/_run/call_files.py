# SPDX-License-Identifier: BSD-3-Clause
"""Stores the form of calls in a saved file, and reads it."""

from __future__ import annotations

import inspect
import json
from typing import Any

from torchalgo._base.trees import Constant, from_json, to_json
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm
from torchalgo._ir.plan.json_codec import shorten
from torchalgo._run.exported import dtype_named

CALLS_FILE = "calls.json"  # its name among a saved file's extra files
SCHEMA = 1


class _UnknownDefault:
    """A default value that a file cannot hold."""

    def __repr__(self) -> str:
        return "..."


def form_to_json(form: CallForm) -> str:
    """Returns the form as JSON; "" if TorchScript's schema contains all of it.

    Raises: torchalgo.Error if a constant among the arguments or results cannot be stored.
    """
    if form.inputs is None:
        return ""
    if (
        form.is_positional
        and form.output is None
        and not form.autocast
        and list(form.signature.parameters) == list(form.names)
    ):
        return ""
    parameters = []
    for parameter in form.signature.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not inspect.Parameter.empty:
            entry["default"] = _default_to_json(parameter.default)
        parameters.append(entry)
    output = None if form.output is None else to_json(form.output)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "parameters": parameters,
        "names": form.names,
        "inputs": to_json(form.inputs),
        "output": output,
    }
    if form.autocast:
        data["autocast"] = [str(dtype).removeprefix("torch.") for dtype in form.autocast]
    return json.dumps(data, indent=1)


def _default_to_json(value: Any) -> Any:
    try:
        return to_json(Constant(value))
    except Error:
        return None


def form_from_json(text: str | bytes, where: str) -> CallForm:
    """Reads the text that `form_to_json` wrote. `where` names the file in errors.

    Raises: torchalgo.Error if the text is damaged, has another schema, or names a type whose module
        is not imported.
    """
    try:
        data = json.loads(text)
        _check_schema(data["schema"], where)
        parameters = [_parameter(entry) for entry in data["parameters"]]
        inputs, output = from_json(data["inputs"]), data["output"]
        form = CallForm(
            inspect.Signature(parameters),
            inputs,
            tuple(map(str, data["names"])),
            None if output is None else from_json(output),
            autocast=tuple(map(dtype_named, data.get("autocast", ()))),
        )
        is_positional = form.is_positional  # raises if the parts do not fit
        assert isinstance(is_positional, bool)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        StopIteration,
    ) as problem:
        raise Error(
            f"TA2005 {where} is damaged ({type(problem).__name__}: {problem}): copy or save it"
            " again"
        ) from None
    return form


def _check_schema(schema: Any, where: str) -> None:
    if schema != SCHEMA:
        raise Error(
            f"TA2008 {where}: schema is {shorten(schema)}, this torchalgo reads {SCHEMA}: update"
            " torchalgo, or save the module again"
        )


def _parameter(entry: Any) -> inspect.Parameter:
    default: Any = inspect.Parameter.empty
    if "default" in entry:
        constant = None if entry["default"] is None else from_json(entry["default"])
        default = constant.value if isinstance(constant, Constant) else _UnknownDefault()
    return inspect.Parameter(
        entry["name"], getattr(inspect._ParameterKind, entry["kind"]), default=default
    )
