# SPDX-License-Identifier: BSD-3-Clause
"""Saved modules and plans."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from torchalgo._C import Error
from torchalgo._capture.freeze import quiet_jit
from torchalgo._capture.shapes import planned_dims, planned_shapes, spell
from torchalgo._ir.plan import Plan, plans_from_json, read_plans, the_only_plan
from torchalgo._plan.result import Result
from torchalgo._run.call_files import CALLS_FILE, form_from_json
from torchalgo._run.optimized import PLAN_FILE, Optimized
from torchalgo._run.shape_dispatch import parts_of

# What zipfile raises for a file that is not as it was written.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError,
)  # fmt: skip


def load(path: str | Path) -> Optimized:
    """Opens a file written by Optimized.save.

    Like torch.jit.load it runs code from the file: open only files you trust.

    Raises: torchalgo.Error if the file is missing, truncated, or not saved by torchalgo.
    """
    if not Path(path).is_file():
        raise Error(f"load: there is no file {path}")
    check_sums("load", path)
    return load_scripted(str(path), str(path))


def check_sums(what: str, path: str | Path) -> None:
    """Raises Error if a checksum in the file is wrong.

    torch.jit.load compares none, so a damaged weight would be a wrong result.
    """
    if not zipfile.is_zipfile(path):
        return  # torch.jit.load says what is wrong
    with _open_archive(what, path) as archive:
        try:
            damaged = archive.testzip()
        except _DAMAGE as problem:
            damaged = str(problem)
    if damaged is not None:
        raise Error(f"{what}: {path} is damaged at {damaged}: copy or save it again")


def _open_archive(what: str, path: str | Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGE as problem:
        raise Error(f"{what}: {path} is damaged or truncated: {problem}") from None


def load_plan(path: str | Path) -> Plan:
    """Reads the plan from its JSON file or out of a saved module; runs nothing of either.

    Raises: torchalgo.Error if the file is missing, truncated, or no plan of this schema, or if it
        holds several; see load_plans.
    """
    return the_only_plan(_read_plans(path), f"load_plan: {path}")


def load_plans(path: str | Path) -> dict[str, Plan]:
    """The same for a file of one plan or several: each by the shapes it was made for, which are
    spelled as in `Optimized.plans`."""
    return {spell(planned_shapes(plan)): plan for plan in _read_plans(path)}


def _read_plans(path: str | Path) -> list[Plan]:
    if not zipfile.is_zipfile(path):
        return read_plans(path)
    with _open_archive("load_plan", path) as archive:
        for name in archive.namelist():
            if name.endswith(f"/extra/{PLAN_FILE}"):
                try:
                    text = archive.read(name)
                except _DAMAGE as problem:
                    raise Error(f"load_plan: {path} is damaged: {problem}") from None
                return plans_from_json(text, f"{path}:{PLAN_FILE}")
    raise Error(f"load_plan: {path} holds no {PLAN_FILE}: it was not saved by torchalgo")


def load_scripted(source: str | io.BytesIO, name: str) -> Optimized:
    """An Optimized from torch.jit.save's bytes."""
    extra: dict[str, Any] = {PLAN_FILE: "", CALLS_FILE: ""}
    device = _device_for(source)
    try:
        with quiet_jit():
            scripted = torch.jit.load(source, map_location=device, _extra_files=extra)
    except (RuntimeError, ValueError, OSError, LookupError) as problem:
        first = (str(problem).splitlines() or ["?"])[0].split(". This is an internal", 1)[0]
        raise Error(f"load: {name} is no TorchScript file, or truncated: {first}") from None
    if not extra[PLAN_FILE]:
        raise Error(
            f"load: {name} holds no {PLAN_FILE}: it was not saved by torchalgo; use torch.jit.load,"
            " or torchalgo.optimize it"
        )
    plans = plans_from_json(extra[PLAN_FILE], f"{name}:{PLAN_FILE}")
    parts = parts_of(scripted) or [scripted]
    if any(planned_dims(plan) is None for plan in plans):
        warnings.warn(
            f"torchalgo: {name} does not say which sizes of inputs it is right for; it was saved by"
            " an older torchalgo. It is right for the planned ones: save the model again",
            stacklevel=3,
        )
    if len(parts) != len(plans):
        raise Error(
            f"load: {name} holds {len(plans)} plans and {len(parts)} modules: it was changed after"
            " torchalgo saved it; save it again"
        )
    results = [Result(*both, device=device) for both in zip(parts, plans, strict=True)]
    calls = extra[CALLS_FILE]
    form = form_from_json(calls, f"load: {name}:{CALLS_FILE}") if calls else None
    return Optimized(*results, form=form)


def _device_for(source: str | io.BytesIO) -> str:
    """Where the module in a file shall run: on a GPU if its plan was made for one and there is one;
    elsewhere its layers fall back."""
    try:
        with zipfile.ZipFile(source) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{PLAN_FILE}")]
            plan = json.loads(archive.read(names[0])) if names else {"environment": {}}
            environment = plan.get("plans", [plan])[0]["environment"]
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error,
    ):  # fmt: skip
        environment = {}  # torch.jit.load says what is wrong
    finally:
        if isinstance(source, io.BytesIO):
            source.seek(0)
    if "gpu" in environment and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def from_bytes(data: bytes) -> Optimized:
    """Is called by pickle."""
    return load_scripted(io.BytesIO(data), "pickled module")
