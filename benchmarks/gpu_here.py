# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: what is here."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import torchalgo
from gpu_problems import (
    live,
    offers,
    spell,
)
from gpu_stage import Context, Outcome
from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32
from torchalgo._ir.devices import list_devices, named_device


def command_output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"unknown: {problem}"
    return done.stdout.strip()


def env(context: Context) -> Outcome:
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
    data: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torchalgo": torchalgo.__version__,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "git": command_output("git", "rev-parse", "HEAD"),
        "dirty": bool(command_output("git", "status", "--porcelain")),
        "cpu": _C.cpu_device().name,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "nvidia_smi": command_output("nvidia-smi", f"--query-gpu={query}", "--format=csv"),
        "allow_tf32": convolutions_use_tf32(),
    }
    gpu = ", ".join(data["gpus"]) or "no GPU"
    return Outcome(f"torch {data['torch']}, cuDNN {data['cudnn']}, {gpu}", data=data)


def deviceprop(context: Context) -> Outcome:
    device = live()
    properties = json.loads(device.properties)
    own = json.loads(_C.cudnn_properties_of_gpu(device.index))
    described = {
        "name": device.name,
        "isa": device.isa,
        "provenance": f"dumped by gpu_check, torch {torch.__version__}",
        "cudnn_properties": properties,
    }
    path = context.out / "live_device.json"
    path.write_text(json.dumps(described, indent=2) + "\n")
    outcome = Outcome(data={"device": described, "cudnn": own})
    # torchalgo also writes keys of newer versions of cuDNN, which an older one ignores.
    common = {key: properties.get(key) for key in own}
    wrong = {k: v for k, v in differences(own, common).items() if k != "cudaDeviceId"}
    outcome.expect(not wrong, f"other than cuDNN's own properties: {wrong}")
    fixture = fixture_of(device)
    if fixture is None:
        outcome.summary = f"{device.name}, {device.isa}: no description of it yet ({path})"
        return outcome
    expected = json.loads(named_device(fixture).properties)
    different = differences(expected, properties)
    outcome.data["different"] = different
    outcome.summary = f"{device.name}: {len(different)} fields differ from share/devices/{fixture}"
    outcome.expect(
        not expected.keys() - properties.keys(),
        f"the live properties lack {sorted(expected.keys() - properties.keys())}",
    )
    return outcome


def differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values of both by key, where they differ; None for a key that one lacks."""
    return {k: (a.get(k), b.get(k)) for k in a.keys() | b.keys() if a.get(k) != b.get(k)}


def fixture_of(device: _C.Device) -> str | None:
    """The description of the same GPU: by its name, else by ISA and number of multiprocessors."""
    words = re.findall(r"\w+", device.name.lower())
    for name in list_devices():  # H100 and H200 have the same ISA and 132 multiprocessors
        if name in words and named_device(name).isa == device.isa:
            return name
    count = json.loads(device.properties)["multiProcessorCount"]
    for name in list_devices():
        known = named_device(name)
        if known.isa == device.isa and json.loads(known.properties)["multiProcessorCount"] == count:
            return name
    return None


def import_(context: Context) -> Outcome:
    rows = dict(_C.algorithms())
    library = Path(torchalgo.__file__).with_name("libtorchalgo_cuda.so")
    h100 = named_device("h100")
    transform = "transform_f16_n8c64h56w56_nchw_nhwc"
    listed = offers(spell("3x3_56", "f16", 8), h100, "cudnn9.")
    outcome = Outcome(
        f"{len(rows)} rows, {len(listed)} cuDNN primitives for a 3x3 on a described H100",
        data={"rows": rows, "cuda_library": library.exists()},
    )
    if torch.version.cuda:
        outcome.expect(bool(listed), "cuDNN offers nothing for a described H100")
    if library.exists() and torch.version.cuda:
        names = [p.name for p, _ in offers(transform, h100, "layout.")]
        outcome.expect("layout.cuda_tiled" in names, f"layout.cuda_tiled is missing among {names}")
    return outcome
