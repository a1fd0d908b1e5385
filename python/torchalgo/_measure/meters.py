# SPDX-License-Identifier: BSD-3-Clause
"""Energy counters of this machine, for objective="energy".

docs/energy.md says what is measured and what that includes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._C import Error

POWERCAP = Path("/sys/class/powercap")

# RAPL's counters step about once per millisecond, by about 61 uJ.
RAPL_INTERVAL_S = 1e-3
RAPL_STEP_UJ = 61

# A measurement lasts this many steps of the counter, so that a missed step is 2 %.
LOOP_STEPS = 50


class Meter(Protocol):
    """A counter of energy.

    Attributes:
        name: stored in the database. Costs of another meter are not used.
        covers: what the counter includes, for people.
        interval_s: the counter steps at least every `interval_s` seconds.
        step_uj: the counter steps by at least `step_uj` microjoules. Measurements last long enough
            that single steps do not matter.
    """

    name: str
    covers: str
    interval_s: float
    step_uj: float

    def read_uj(self) -> int:
        """Returns the microjoules so far. The value never decreases.

        Raises: torchalgo.Error or OSError if the counter cannot be read any more.
        """
        ...


@dataclass
class _Domain:
    """One counter of RAPL. It starts again at 0 after its range."""

    path: Path
    range_uj: int
    last_uj: int
    wrapped_uj: int = 0

    def read_uj(self) -> int:
        now = _number_in(self.path / "energy_uj")
        if now < self.last_uj:
            self.wrapped_uj += self.range_uj
        self.last_uj = now
        return self.wrapped_uj + now


class RaplMeter:
    """The RAPL counters of all CPU packages, and of their DRAM if it has its own counter.

    Linux calls them intel-rapl, also on AMD CPUs. The meter must be read at least once per range of
    a counter, which takes minutes or more.

    Args:
        root: the folder of the counters.
    Raises: torchalgo.Error if there is no counter, or it cannot be read.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        paths = _rapl_paths(root)
        try:
            self._domains = [
                _Domain(
                    path,
                    _number_in(path / "max_energy_range_uj"),
                    _number_in(path / "energy_uj"),
                )
                for _, path in paths
            ]
        except PermissionError as problem:
            raise Error(
                f"TA3302 RAPL: only root may read {problem.filename}: run as root: chmod a+r"
                f" {root}/intel-rapl*/energy_uj"
            ) from None
        except (OSError, ValueError) as problem:
            raise Error(f"TA3302 RAPL: the counters cannot be read: {problem}") from None
        self.covers = ", ".join(name for name, _ in paths)
        self.name = f"RAPL {self.covers}"
        self.interval_s, self.step_uj = RAPL_INTERVAL_S, float(RAPL_STEP_UJ)

    def read_uj(self) -> int:
        return sum(domain.read_uj() for domain in self._domains)


def _rapl_paths(root: Path) -> list[tuple[str, Path]]:
    """Returns names and folders of the counters of packages and of their DRAM.

    Parts of a package (core, uncore) are in its sum. "psys", the whole board, contains the
    packages.

    Raises: torchalgo.Error if there is none.
    """
    if not root.is_dir():
        raise Error(
            f"TA3302 RAPL: there is no {root}: a virtual machine or container hides it, or the"
            " kernel was built without powercap"
        )
    found = []
    for path in sorted(root.glob("intel-rapl:*")):
        try:
            name = (path / "name").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        is_package = path.name.count(":") == 1 and name.startswith("package")
        if is_package or name == "dram":
            number = path.name.split(":")[1]
            found.append((name if is_package else f"dram-{number}", path))
    if not found:
        raise Error(
            f"TA3302 RAPL: {root} has no intel-rapl packages: load the kernel module intel_rapl_msr"
        )
    return found


def _number_in(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


class NvmlMeter:
    """The energy counter of one NVIDIA GPU with its memory, for Volta and later.

    It reads nvmlDeviceGetTotalEnergyConsumption.

    Args:
        uuid: "GPU-..."; the driver's order of GPUs is not torch's.
        library: the module pynvml; None imports it. Tests pass a substitute.
        now_s: a clock, in seconds.
    Raises: torchalgo.Error if there is no pynvml, no driver, no such GPU, or no counter.
    """

    def __init__(
        self, uuid: str, library: Any = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = _import_nvml() if library is None else library
        self._ask("nvmlInit")
        self._device = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        self.name, self.covers = "NVML", f"GPU {uuid}"
        self.step_uj = 1000.0  # it counts millijoules
        self.interval_s = _observed_interval_s(self.read_uj, now_s)

    def read_uj(self) -> int:
        return 1000 * int(self._ask("nvmlDeviceGetTotalEnergyConsumption", self._device))

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as problem:
            raise Error(f"TA3303 NVML: {function}: {problem}") from None


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError as problem:
        raise Error(f"TA3303 NVML: {problem}: pip install nvidia-ml-py") from None
    return pynvml


def _observed_interval_s(
    read_uj: Callable[[], int], now_s: Callable[[], float], steps: int = 8, most_s: float = 2.0
) -> float:
    """Returns the longest time between two steps of a counter, in seconds.

    Drivers differ: 1 to 100 ms. Raises torchalgo.Error if the counter does not move for `most_s`.
    """
    started = stepped = now_s()
    last = read_uj()
    gaps: list[float] = []
    while len(gaps) <= steps and (now := now_s()) - started < most_s:
        if (value := read_uj()) != last:
            gaps.append(now - stepped)
            last, stepped = value, now
    if len(gaps) < 2:
        raise Error(
            f"TA3303 NVML: the energy counter did not move in {most_s:.0f} s, expected a step at"
            " least every 0.1 s"
        )
    return max(gaps[1:])  # the first gap began inside a step


def _nvml_of(device: _C.Device) -> NvmlMeter:
    uuid = getattr(torch.cuda.get_device_properties(device.index), "uuid", None)
    if uuid is None:
        raise Error("TA3303 NVML: this torch does not report the GPU's UUID: update torch")
    return NvmlMeter(f"GPU-{uuid}")


# ---- the meter of a device -----------------------------------------------------------------------


def find_meter(device: _C.Device | None = None) -> Meter:
    """Returns the meter of a device. Tests replace this function.

    Args:
        device: None is the CPU.
    Raises: torchalgo.Error if there is none. It says which one was looked for, why that failed, and
        what to do.
    """
    own: Callable[[], Meter] = RaplMeter if device is None else lambda: _nvml_of(device)
    try:
        return own()
    except Error as problem:
        where = "the CPU's RAPL counters" if device is None else "the GPU's counter through NVML"
        raise Error(
            with_inner_code(
                f"TA3302 energy: there is no meter: looked for {where}. {problem}. Or use"
                " objective='latency'"
            )
        ) from None


def describe_meters(devices: Sequence[_C.Device | None] = (None,)) -> dict[str, str]:
    """Returns a text about the meter of each device, or why it has none, for `torchalgo doctor`.

    Args:
        devices: None is the CPU.
    Returns: a dict from "cpu" or "cuda:<index>" to the text.
    """
    found = {}
    for device in devices:
        where = "cpu" if device is None else f"cuda:{device.index}"
        try:
            meter = find_meter(device)
        except Error as problem:
            found[where] = str(problem)
        else:
            found[where] = f"{meter.name} ({meter.covers}), every {1e3 * meter.interval_s:.3g} ms"
    return found
