# SPDX-License-Identifier: BSD-3-Clause
"""Energy counters of this machine, and which of them objective="energy" and "edp" read.

    with torchalgo.energy.use(MyMeter()):  # one of your own: a plug with a serial line, a BMC
        fast = torchalgo.optimize(model, (x,), objective="energy")

docs/energy.md tells what is measured and what that includes.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from torchalgo import _C
from torchalgo._C import Error

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"

# RAPL's counters step about once in a millisecond, and by some 61 uJ.
RAPL_INTERVAL_S = 1e-3
RAPL_STEP_UJ = 61

# What is measured lasts so many steps of the counter: one that is missed is 2 %.
LOOP_STEPS = 50


class Meter(Protocol):
    """A counter of energy.

    `name` goes to the database: costs of another meter are a miss. `covers` is for people. The
    counter steps at least every `interval_s`, by `step_uj` at least: what is measured lasts long
    enough that this does not matter.
    """

    name: str
    covers: str
    interval_s: float
    step_uj: float

    def read_uj(self) -> int:
        """Microjoules so far; never less than before.

        Raises: torchalgo.Error or OSError if it cannot be read any more.
        """
        ...


@dataclass
class _Domain:
    """One counter of RAPL, which starts again at 0 after its range."""

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
    """All CPU packages and, where it counts apart, their DRAM: what Linux calls intel-rapl, on AMD
    as well.

    It must be read once while a counter passes its range, which takes minutes at the least.
    Raises: torchalgo.Error if there is no counter, or it may not be read.
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
                f"RAPL: {problem.filename} may be read by root only; as root: chmod a+r"
                f" {root}/intel-rapl*/energy_uj"
            ) from None
        except (OSError, ValueError) as problem:
            raise Error(f"RAPL: {problem}") from None
        self.covers = ", ".join(name for name, _ in paths)
        self.name = f"RAPL {self.covers}"
        self.interval_s, self.step_uj = RAPL_INTERVAL_S, float(RAPL_STEP_UJ)

    def read_uj(self) -> int:
        return sum(domain.read_uj() for domain in self._domains)


def _rapl_paths(root: Path) -> list[tuple[str, Path]]:
    """Names and folders of the packages and of DRAM beside them; what lies inside a package (core,
    uncore) is in its sum, and "psys", the whole board, holds the packages."""
    if not root.is_dir():
        raise Error(
            f"RAPL: there is no {root}: a virtual machine or container hides it, or the kernel was"
            " built without powercap"
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
        raise Error(f"RAPL: {root} has no intel-rapl packages; is the module intel_rapl_msr there?")
    return found


def _number_in(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


class NvmlMeter:
    """One NVIDIA GPU with its memory: nvmlDeviceGetTotalEnergyConsumption, of Volta and later.

    Args:
        uuid: "GPU-..."; the driver's order of GPUs is not torch's.
        library: NVML itself; tests pass another one.
    Raises: torchalgo.Error if there is no NVML, no such GPU, or it does not count.
    """

    def __init__(
        self, uuid: str, library: Any = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = _open_nvml() if library is None else library
        self._ask("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))
        self.name, self.covers = "NVML", f"GPU {uuid}"
        self.step_uj = 1000.0  # it counts millijoules
        self.interval_s = _observed_interval_s(self.read_uj, now_s)

    def read_uj(self) -> int:
        millijoules = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(millijoules))
        return millijoules.value * 1000

    def _ask(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._nvml, function)(*arguments)
        except AttributeError:
            raise Error(f"NVML: the driver has no {function}, a newer one has") from None
        if status != 0:
            raise Error(f"NVML: {function}: {self._reason(status)}")

    def _reason(self, status: int) -> str:
        name = self._nvml.nvmlErrorString
        name.restype = ctypes.c_char_p
        text = name(status)
        return text.decode() if text else f"error {status}"


def _open_nvml() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(NVML)
    except OSError as problem:
        raise Error(f"NVML: {problem}; it comes with NVIDIA's driver") from None


def _observed_interval_s(
    read_uj: Callable[[], int], now_s: Callable[[], float], steps: int = 8, most_s: float = 2.0
) -> float:
    """The longest time between two steps of a counter: drivers differ, from 1 to 100 ms."""
    started = stepped = now_s()
    last = read_uj()
    gaps: list[float] = []
    while len(gaps) <= steps and (now := now_s()) - started < most_s:
        if (value := read_uj()) != last:
            gaps.append(now - stepped)
            last, stepped = value, now
    if len(gaps) < 2:
        raise Error(f"NVML: the counter did not move in {most_s:.0f} s")
    return max(gaps[1:])  # the first began somewhere within a step


def _nvml_of(device: _C.Device) -> NvmlMeter:
    uuid = getattr(torch.cuda.get_device_properties(device.index), "uuid", None)
    if uuid is None:
        raise Error("NVML: this torch does not tell the GPU's UUID")
    return NvmlMeter(f"GPU-{uuid}")


# ---- which one is read ---------------------------------------------------------------------------

_chosen: Meter | None = None


def set_meter(meter: Meter | None) -> Meter | None:
    """Has `meter` read wherever energy counts, in this process; None: the machine's own, again.

    Returns: the one set before.
    """
    global _chosen
    before, _chosen = _chosen, meter
    return before


@contextlib.contextmanager
def use(meter: Meter) -> Iterator[Meter]:
    """The same within a `with`."""
    before = set_meter(meter)
    try:
        yield meter
    finally:
        set_meter(before)


def find_meter(device: _C.Device | None = None) -> Meter:
    """The meter for a device (None: the CPU): the one that was set, else the machine's own.

    Raises: torchalgo.Error saying what was looked for, why that failed, and what to do.
    """
    if _chosen is not None:
        return _chosen
    own: Callable[[], Meter] = RaplMeter if device is None else lambda: _nvml_of(device)
    try:
        return own()
    except Error as problem:
        where = "the CPU's RAPL counters" if device is None else "the GPU's counter through NVML"
        raise Error(
            f"energy: no meter: looked for {where}. {problem}. Or set a meter of your own with"
            " torchalgo.energy.use(meter), or use objective='latency'"
        ) from None


def describe_meters(devices: Sequence[_C.Device | None] = (None,)) -> dict[str, str]:
    """Per device what find_meter gives, or why there is none; for `torchalgo doctor`."""
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
