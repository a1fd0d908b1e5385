# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: what is here, and how fast its CPU is."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from typing import Any

import torch

import torchalgo
from gpu_problems import live
from gpu_stage import Context, Outcome, Row, each_case, outcome_of
from harness import ROOT, read_lines
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


CPU_NETWORKS = ("resnet50", "mobilenet_v2")
CPU_PEERS = "eager,channels_last,optimize_for_inference,onnxruntime,onnxruntime_spinning"


def cpu(context: Context) -> Outcome:
    """Runs bench_models.py with 1 thread to all cores. Its records are in cpu_models.jsonl."""
    cores = os.cpu_count() or 1
    threads = [count for count in (16, 1, 4, 8, 2) if count <= cores]
    names = CPU_NETWORKS[1:] if context.quick else CPU_NETWORKS
    quick = ("--quick",) if context.quick else ("--tune-s", "12", "--budget", "8")
    peers = "eager,channels_last" if context.quick else CPU_PEERS
    out = context.out.resolve() / "cpu_models.jsonl"

    def case(name: str, count: int) -> Row:
        script = ROOT / "benchmarks" / "bench_models.py"
        command = [sys.executable, str(script), name, "--threads", str(count), "--out", str(out)]
        subprocess.run(
            [*command, *quick, "--peers", peers], check=True, timeout=max(10, context.left_s() + 30)
        )
        times = read_lines(out)[-1]["wall_us"]
        return {"ms": {k: round(statistics.median(us) / 1e3, 2) for k, us in times.items()}}

    cases = {
        f"{name} {count}": functools.partial(case, name, count)
        for count in (threads[:1] if context.quick else threads)
        for name in names
    }
    rows, left = each_case(context, cases, needs_s=10.0)
    outcome = outcome_of(rows, left)
    for name, row in rows.items():
        own, *others = sorted(row.get("ms", {"": 0}).items(), key=lambda i: i[0] != "torchalgo")
        outcome.summary += f"{name}: {own[1]} ms, {min(ms for _, ms in others or [own])} the best  "
    return outcome
