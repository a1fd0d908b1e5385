# SPDX-License-Identifier: BSD-3-Clause
"""The facts that the costs of each provider depend on. A cost from another environment is not used.

A provider lists only facts that can change its costs. So a new version of torch does not invalidate
the costs of our own kernels, and a new kernel does not invalidate other costs.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32, products_use_tf32
from torchalgo._ir.costs import environment as plan_environment
from torchalgo._ir.costs import longest_match

# Facts by provider, or by algorithm if that has others; the longest match counts. A provider that
# is not listed depends on all facts.
CPU_FACTS = ("cpu", "cpu_id", "isa", "threads", "weights")
GPU_FACTS = ("gpu", "isa", "driver", "weights")
PROBE = "2"  # the version of the probe of the highest rates
MEASURED = ("quantity", "unit", "meter")  # the names in Environment.measured
# Models of these many bytes of weights have all the environments that inference can have.
SIZES = (0, _C.LARGE_CACHE_BYTES, _C.LARGE_CACHE_BYTES + 1)
_ATEN_CPU = (*CPU_FACTS, "torch", "onednn", "capability", "flags")
_CUDNN = (*GPU_FACTS, "cuda", "cudnn")
_ATEN_GPU = (*_CUDNN, "torch", "flags")
ON_CPU: Mapping[str, tuple[str, ...]] = {
    "cpu": CPU_FACTS,
    "layout.tiled": CPU_FACTS,
    "layout.aten": _ATEN_CPU,
    "aten": _ATEN_CPU,
}
ON_GPU: Mapping[str, tuple[str, ...]] = {
    "cuda": GPU_FACTS,
    "layout.cuda_tiled": GPU_FACTS,
    "cudnn9": _CUDNN,
    "cudnn_legacy": _CUDNN,
    "layout.aten": _ATEN_GPU,
    "aten": _ATEN_GPU,
}


@dataclass(frozen=True)
class Environment:
    """The facts that any cost here depends on.

    `versions` holds the version of each algorithm. `measured` says what a cost is if it is not a
    time.
    """

    facts: Mapping[str, str]
    versions: Mapping[str, int]
    measured: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(device: _C.Device | None = None, cold_bytes: int = 0) -> Environment:
        """Returns the environment of a device of this machine, with torch's current flags.

        Args:
            device: None is the CPU.
            cold_bytes: bytes that are read between two samples, so that weights are as cold as
                inside the model.
        """
        facts = {**_facts(device), "weights": _C.weights_in(cold_bytes, device)}
        return Environment(facts, dict(_C.algorithms()))

    def for_energy(self, meter: str) -> Environment:
        """Returns the same environment for energies in 1/1024 nJ, counted by `meter`."""
        return replace(self, measured=dict(zip(MEASURED, ("energy", "nJ", meter), strict=True)))

    @property
    def everything(self) -> str:
        """Returns all facts and versions as JSON. The time of a whole model depends on them."""
        rows = sorted(f"{name} {version}" for name, version in self.versions.items())
        versions = {"rows": ", ".join(rows), "torchalgo": _C.version}
        return _text({**self.facts, **versions, **self.measured})

    @property
    def hardware(self) -> str:
        """Returns the facts that the highest rates of the device depend on, as JSON."""
        names = ("cpu", "cpu_id", "isa", "threads", "gpu")
        facts = {name: self.facts[name] for name in names if name in self.facts}
        return _text({**facts, **self.measured, "torchalgo": _C.version, "probe": PROBE})

    def texts(self) -> list[str]:
        """Returns every environment that a cost of this device may have, as JSON."""
        providers = ON_GPU if "gpu" in self.facts else ON_CPU
        texts = {_text(self._chosen(facts)) for facts in providers.values()}
        return sorted(texts | {_text({**self.facts, **self.measured})})

    def text_of(self, primitive: str) -> str:
        """Returns the facts that a cost of `primitive` depends on, as canonical JSON."""
        providers = ON_GPU if "gpu" in self.facts else ON_CPU
        match = longest_match(primitive, providers)
        return _text(self._chosen(tuple(self.facts) if match is None else providers[match]))

    def version_of(self, primitive: str) -> int | None:
        """Returns the version of the algorithm that offers `primitive`; None if it is not here."""
        match = longest_match(primitive, self.versions)
        return None if match is None else self.versions[match]

    def _chosen(self, names: tuple[str, ...]) -> dict[str, str]:
        return {**{name: self.facts[name] for name in names}, **self.measured}


def texts_here() -> set[str]:
    """Returns the environments of this machine's CPU now, for inference by models of all sizes."""
    return {text for size in SIZES for text in Environment.of(None, size).texts()}


def find_here() -> Callable[[str], bool]:
    """Returns a function that tells whether an environment is one of this machine now.

    It may be that of any device, of training, of an energy or of a verdict.
    """
    devices = (None, *map(_C.cuda_device, range(torch.cuda.device_count())))
    every = [Environment.of(d, size) for d in devices for size in (*SIZES, _C.CHANGED_WEIGHTS)]
    texts = {text for one in every for text in (*one.texts(), one.everything)}

    def is_here(text: str) -> bool:
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):  # not written by torchalgo
            return False
        is_object = isinstance(facts, dict)
        return is_object and _text({k: v for k, v in facts.items() if k not in MEASURED}) in texts

    return is_here


def _text(facts: Mapping[str, str]) -> str:
    return json.dumps(dict(facts), sort_keys=True, separators=(",", ":"))


def _facts(device: _C.Device | None) -> dict[str, str]:
    described = plan_environment(device)
    del described["torchalgo"]  # algorithms have their own versions
    if device is not None and device.kind != "cpu":
        return {**described, "flags": _gpu_flags()}
    return {
        **described,
        "cpu_id": _cpu_id(),
        "onednn": onednn_version(),
        "capability": _capability(),
        "flags": _cpu_flags(),
    }


def _capability() -> str:
    """Returns the instruction set that ATen uses, such as "AVX512", and what multiplies in bf16."""
    in_bf16 = {"amx": "+AMX", "avx512bf16": "+BF16"}.get(_C.cpu_device().bf16_isa, "")
    return torch.backends.cpu.get_cpu_capability() + in_bf16


def _cpu_flags() -> str:
    """Returns the settings of a user that change what ATen's convolutions run."""
    mkldnn = torch.backends.mkldnn
    precision = getattr(getattr(mkldnn, "conv", None), "fp32_precision", "none")
    text = f"onednn={int(bool(getattr(mkldnn, 'enabled', True)))} fp32={precision}"
    matmul = getattr(getattr(mkldnn, "matmul", None), "fp32_precision", "none")
    return text if matmul == "none" else f"{text} matmul={matmul}"


def _gpu_flags() -> str:
    """Returns the settings of a user that change what ATen's operations run on a GPU."""
    cudnn = torch.backends.cudnn
    text = (
        f"cudnn={int(cudnn.enabled)} benchmark={int(cudnn.benchmark)}"
        f" deterministic={int(cudnn.deterministic)} tf32={int(convolutions_use_tf32())}"
    )
    return f"{text} matmul=tf32" if products_use_tf32() else text


@functools.cache
def onednn_version() -> str:
    """Returns the version of the oneDNN inside torch, such as "v3.10.2"; empty if it has none."""
    match = re.search(r"MKL-DNN (\S+)", torch.__config__.show())
    return match[1] if match else ""


@functools.cache
def _cpu_id() -> str:
    """Returns vendor, family, model and stepping.

    The CPU's name says little in a virtual machine.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return ""
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", lines, re.MULTILINE))
    names = ("vendor_id", "cpu family", "model", "stepping")
    return " ".join(fields[name] for name in names if name in fields)
