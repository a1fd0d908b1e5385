# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo doctor`: versions, devices, the cost database, and what is missing."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch

import torchalgo
from torchalgo import _C
from torchalgo._db import CostStore, files
from torchalgo._db.environment import onednn_version
from torchalgo._ir.names import provider_of
from torchalgo._measure import meters
from torchalgo_cli.doctor import print_facts, wheel_facts

OPTIONAL = ("numpy", "torchvision", "lightgbm", "pynvml")
VARIABLES = (
    "TORCHALGO_CACHE_DIR", "TORCHALGO_IGNORE_LOAD", "TORCHALGO_ISOLATE", "TORCHALGO_POLL_US",
    "TORCHALGO_TRACE_IMPORT", "XDG_CACHE_HOME", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prints the facts. Returns the exit code 0."""
    print_facts(examine(), args.json)
    return 0


def examine() -> dict[str, dict[str, Any]]:
    """Returns facts on this machine and installation, by topic.

    Measures nothing. Opens the database only if there is one.
    """
    return {
        "versions": {
            "torchalgo": _C.version,
            "torch": torch.__version__,
            "built for torch": _C.torch_version,
            "oneDNN": onednn_version() or "not in this torch",
            "Python": platform.python_version(),
            "system": platform.platform(),
            "SQLite": _sqlite_version(),
        },
        "wheel": wheel_facts(),
        "cpu": _cpu(),
        "gpu": _gpu(),
        "energy meters": meters.describe_meters(_devices()),
        "algorithms": _algorithms(),
        "cost database": _database(),
        "optional": {name: importlib.util.find_spec(name) is not None for name in OPTIONAL},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "files": {"package": str(Path(torchalgo.__file__).parent)},
    }


def _cpu() -> dict[str, Any]:
    cpu = _C.cpu_device()
    return {
        "name": cpu.name,
        "kernels built for": cpu.isa,
        "bf16 multiplied by": cpu.bf16_isa or "nothing that is faster than f32",
        "torch's kernels": torch.backends.cpu.get_cpu_capability(),
        "threads of torch": torch.get_num_threads(),
        "processors": len(os.sched_getaffinity(0)),
    }


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = "torch sees no GPU" if built else "this torch was built without CUDA"
        return {"available": False, "reason": reason, "cuDNN": _cudnn_version()}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    driver, runtime = _C.cuda_versions()
    return {
        "available": True,
        "devices": names,
        "driver": driver,
        "CUDA": runtime,
        "cuDNN": _cudnn_version(),
        "kernels for CUDA": Path(torchalgo.__file__).with_name("libtorchalgo_cuda.so").exists(),
    }


def _devices() -> list[_C.Device | None]:
    """Returns None for the CPU, and every GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [None, *map(_C.cuda_device, range(count))]


def _cudnn_version() -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return "none" if version is None else str(version)


def _algorithms() -> dict[str, Any]:
    names: dict[str, list[str]] = {}
    for row in sorted(dict(_C.algorithms())):
        provider, algorithm = provider_of(row)
        names.setdefault(provider, []).append(algorithm)
    return dict(names)


def _database() -> dict[str, Any]:
    try:
        path = files.default_path()
    except RuntimeError as problem:
        return {"path": "none", "trouble": str(problem)}
    if not path.exists():
        return {"path": str(path), "state": "there is none yet", "writable": _is_writable(path)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with CostStore.open(path) as store:
            info = dataclasses.asdict(store.info())
    wanted = ("path", "access", "trouble", "rows", "verdicts", "bytes")
    return {
        **{name: info[name] for name in wanted if info[name] != ""},
        "candidates that failed": sum(info["refusals"].values()),
    }


def _is_writable(path: Path) -> bool:
    """Returns whether files can be created in the nearest folder that exists."""
    folder = next(p for p in path.parents if p.exists())
    return os.access(folder, os.W_OK | os.X_OK)


def _sqlite_version() -> str:
    try:
        import sqlite3
    except ImportError as problem:
        return f"none: {problem}"
    return sqlite3.sqlite_version
