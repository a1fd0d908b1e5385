# SPDX-License-Identifier: BSD-3-Clause
"""Loads saved modules and plans."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from torchalgo import _C
from torchalgo._base.overlap import quiet_jit
from torchalgo._base.read_file import (
    file_at,
    has_part,
    is_archive,
    open_archive,
    read_object,
    read_part,
)
from torchalgo._base.user_warning import warn_user
from torchalgo._C import Error
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.shapes import planned_dims
from torchalgo._ir.plan import (
    Plan,
    planned_shapes,
    plans_from_json,
    read_plans,
    shapes_text,
    the_only_plan,
)
from torchalgo._ir.plan_threads import nearest_by_threads, other_threads
from torchalgo._plan.held import held_problems
from torchalgo._plan.result import Result
from torchalgo._run.call_files import CALLS_FILE, form_from_json
from torchalgo._run.optimized import GRAPHS_FILE, PLAN_FILE, Optimized
from torchalgo._run.shape_dispatch import parts_of

EXTRA_FILES = (PLAN_FILE, CALLS_FILE, GRAPHS_FILE)


@known_keywords(
    {"map_location": "is an argument of torch.jit.load: the module runs on its plan's device"}
)
def load(path: str | Path | BinaryIO) -> Optimized:
    """Opens a file that Optimized.save wrote.

    Like torch.jit.load, this runs code from the file: open only files that you trust. The module
    runs on the GPU if its plan was made for one and there is one, otherwise on the CPU. A warning
    says if the plan was measured with another number of threads.

        fast = torchalgo.load("model.pt2")

    Args:
        path: the file, or a file object that was opened for reading bytes.

    Returns: an Optimized without the original model.
    Raises: torchalgo.Error if the file is missing, damaged, or not saved by torchalgo.
    """
    if hasattr(path, "read"):
        fast, name = _loaded(read_object(path, "load"), "the file object"), "the file object"
    else:
        file = file_at(path, "load")
        fast, name = _loaded(file, str(file)), str(file)
    if text := other_threads(fast.plan):
        warn_user(f"{name}: {text}")
    return fast


def is_exported(file: Path | io.BytesIO) -> bool:
    """Returns whether torch.export.save wrote the file."""
    return has_part(file, "/archive_format", "load")


def check_sums(caller: str, file: Path | io.BytesIO, name: str = "") -> None:
    """Raises torchalgo.Error if a checksum in the file is wrong. `caller` begins the error's text.

    torch.jit.load does not compare checksums, so a damaged weight would give wrong results.
    """
    if not is_archive(file):
        return  # torch.jit.load raises an error
    with open_archive(file, caller) as archive:
        part = archive.testzip()
    if part is not None:
        raise Error(f"TA2005 {caller}: {name or file} is damaged at {part}: copy or save it again")


def load_plan(path: str | Path) -> Plan:
    """Reads the plan from a plan file (JSON) or a saved module. Runs no code from the file.

        plan = torchalgo.load_plan("model.pt")

    Args:
        path: the file.

    Raises: torchalgo.Error if the file is missing, damaged, or no plan of this schema, or if it
        holds several plans; see load_plans.
    """
    return the_only_plan(_read_plans(path, "load_plan"), f"load_plan: {path}")


def load_plans(path: str | Path) -> dict[str, Plan]:
    """Reads all plans from a plan file (JSON) or a saved module. Runs no code from the file.

        plans = torchalgo.load_plans("model.pt")

    Args:
        path: the file.

    Returns: the plans by the shapes for which they were made, spelled as in `Optimized.plans`. Of
        several plans for the same shapes, it has the one that was measured with the number of
        threads that is nearest to torch's.
    Raises: torchalgo.Error if the file is missing, damaged, or holds no plans of this schema.
    """
    same: dict[str, list[Plan]] = {}
    for plan in _read_plans(path, "load_plans"):
        same.setdefault(shapes_text(planned_shapes(plan)), []).append(plan)
    return {shapes: nearest_by_threads(plans) for shapes, plans in same.items()}


def load_with_graphs(path: str | Path) -> list[tuple[Plan, str | None]]:
    """Reads all plans of a file with their graphs, as far as it has them. Runs no code from it.

    Raises: torchalgo.Error as load_plans does.
    """
    plans = _read_plans(path, "load_plan")
    graphs = _extra_file(Path(path), GRAPHS_FILE, "load_plan") if is_archive(Path(path)) else None
    known = _graphs_of(graphs or b"", len(plans))
    return list(zip(plans, known, strict=True))


def _graphs_of(text: bytes, count: int) -> list[str | None]:
    """Returns the graphs of the plans of a file, which are for reports only.

    There are none if one cannot be read, or in a file of an older version.
    """
    try:
        graphs: list[str | None] = json.loads(text or "[]")
        is_sound = all(_C.parse_graph(graph) for graph in graphs if graph is not None)
    except (ValueError, TypeError, Error):
        is_sound = False
    return graphs if is_sound and len(graphs) == count else [None] * count


def _read_plans(path: str | Path, caller: str) -> list[Plan]:
    file = file_at(path, caller)
    if not is_archive(file):
        return read_plans(file)
    text = _extra_file(file, PLAN_FILE, caller)
    if text is not None:
        return plans_from_json(text, f"{file}:{PLAN_FILE}")
    raise Error(
        f"TA2006 {caller}: {file} holds no {PLAN_FILE}, so it was not saved by torchalgo: name a"
        " plan file or a module that Optimized.save wrote"
    )


def _extra_file(file: Path, extra: str, caller: str) -> bytes | None:
    """Returns the extra file of this name in a saved file, or None if there is none."""
    with open_archive(file, caller) as archive:
        return read_part(archive, f"/extra/{extra}", caller)


def _loaded(file: Path | io.BytesIO, name: str) -> Optimized:
    """Returns an Optimized from a saved file or its bytes. `name` names it in errors.

    Raises: torchalgo.Error if it is damaged or was not saved by torchalgo.
    """
    if not is_archive(file):
        raise _damaged(name, "TorchScript file", "it is no archive")
    is_program = is_exported(file)
    parts: Sequence[torch.jit.ScriptModule] = ()
    with open_archive(file, "load") as archive:
        extra = {each: read_part(archive, f"/extra/{each}", "load") or b"" for each in EXTRA_FILES}
        if not extra[PLAN_FILE]:
            raise Error(
                f"TA2006 load: {name} holds no {PLAN_FILE}, so it was not saved by torchalgo: open"
                f" it with {'torch.export.load' if is_program else 'torch.jit.load or torch.load'},"
                " and call torchalgo.optimize(model, ...)"
            )
        if is_program:
            parts = _exported_modules(archive, name)
    plans = plans_from_json(extra[PLAN_FILE], f"{name}:{PLAN_FILE}")
    device = _device_of(plans[0])
    if not is_program:
        check_sums("load", file, name)
        parts = _scripted_modules(file, device, name)
    return _optimized(parts, plans, extra, device, name)


def _scripted_modules(
    file: Path | io.BytesIO, device: str, name: str
) -> Sequence[torch.jit.ScriptModule]:
    if isinstance(file, io.BytesIO):
        file.seek(0)
    try:
        with quiet_jit():
            source = file if isinstance(file, io.BytesIO) else str(file)
            scripted = torch.jit.load(source, map_location=device)
    except Exception as problem:
        raise _damaged(name, "TorchScript file", problem) from None
    return parts_of(scripted) or [scripted]


def _exported_modules(archive: zipfile.ZipFile, name: str) -> list[torch.jit.ScriptModule]:
    """Returns the modules of the plans in a file of torch.export.

    Only the parts that it needs are read: torch.export.load imports torch's compiler first, which
    takes longer than all the rest.
    """
    try:
        program = json.loads(read_part(archive, "/models/model.json", "load") or "")
        inputs = program["graph_module"]["signature"]["input_specs"]
        names = [
            given["user_input"]["arg"]["as_tensor"]["name"]
            for given in inputs
            if "as_tensor" in given.get("user_input", {}).get("arg", {})
        ]
        held = read_part(archive, "/constants/custom_obj_0", "load", sys.maxsize - 1)
        plan = torch._C._pickle_load_obj(held or b"")
        modules = _C.modules_of_plan_object(plan, names)
    except Error:
        raise
    except Exception as problem:
        raise _damaged(name, "file of torch.export", problem) from None
    return [torch.jit._recursive.wrap_cpp_module(module) for module in modules]


def _damaged(name: str, kind: str, problem: object) -> Error:
    first = (str(problem).splitlines() or ["?"])[0].split(". This is an internal", 1)[0]
    return Error(f"TA2005 load: {name} is no {kind}, or it is truncated: {first}")


def _optimized(
    parts: Sequence[torch.jit.ScriptModule],
    plans: Sequence[Plan],
    extra: Mapping[str, bytes],
    device: str,
    name: str,
) -> Optimized:
    """Returns an Optimized from the modules of its plans and the extra files of a saved file."""
    if any(planned_dims(plan) is None for plan in plans):
        warn_user(
            f"{name} does not say which sizes of inputs it is right for; it was saved by an older"
            " torchalgo. It is right for the planned ones: save the model again"
        )
    if len(parts) != len(plans):
        raise Error(
            f"TA2007 load: {name} holds {len(plans)} plans and {len(parts)} modules, expected as"
            " many of both: it was changed after torchalgo saved it; save it again"
        )
    for part, plan in zip(parts, plans, strict=True):
        _check_problems(part, plan, name)
    graphs = _graphs_of(extra[GRAPHS_FILE], len(plans))
    results = [
        Result(part, plan, device=device, graph=graph)
        for part, plan, graph in zip(parts, plans, graphs, strict=True)
    ]
    calls = extra[CALLS_FILE]
    form = form_from_json(calls, f"load: {name}:{CALLS_FILE}") if calls else None
    return Optimized(*results, form=form)


def _check_problems(scripted: torch.jit.ScriptModule, plan: Plan, name: str) -> None:
    """Raises torchalgo.Error if a module computes a problem that its plan does not have."""
    known = {node.problem for node in plan.nodes} | {t.problem for t in plan.transforms}
    for layer, problem in held_problems(scripted):
        if problem not in known:
            raise Error(
                f"TA2007 load: {name} computes {problem} for layer {layer!r}, and its plan has no"
                " such problem: it was changed after torchalgo saved it; save it again"
            )


def _device_of(plan: Plan) -> str:
    """Returns the device for the module of a plan, as torch names it.

    This is a GPU if the plan was made for one and this machine has one. Otherwise it is the CPU,
    where the layers of a GPU's plan run their fallback.
    """
    if "gpu" in plan.environment and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def from_bytes(data: bytes) -> Optimized:
    """Returns an Optimized from pickled bytes. Pickle calls this."""
    return _loaded(io.BytesIO(data), "pickled module")
