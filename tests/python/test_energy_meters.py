# SPDX-License-Identifier: BSD-3-Clause
"""Meters: RAPL on an invented /sys, NVML on an invented pynvml, and which one is read."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import torchalgo
from torchalgo import _C
from torchalgo._measure import meters
from torchalgo._measure.meters import NvmlMeter, RaplMeter, describe_meters, find_meter

RANGE_UJ = 1000


def add_zone(root: Path, zone: str, name: str, uj: int = 0) -> Path:
    folder = root / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    return folder / "energy_uj"


# ---- RAPL ----------------------------------------------------------------------------------------


def test_packages_and_dram_are_summed_and_what_lies_inside_them_is_not(tmp_path: Path) -> None:
    add_zone(tmp_path, "intel-rapl:0", "package-0", 100)
    add_zone(tmp_path, "intel-rapl:0:0", "core", 60)
    add_zone(tmp_path, "intel-rapl:0:1", "dram", 7)
    add_zone(tmp_path, "intel-rapl:1", "package-1", 200)
    add_zone(tmp_path, "intel-rapl:2", "psys", 999)
    meter = RaplMeter(tmp_path)
    assert meter.read_uj() == 307
    assert meter.name == "RAPL package-0, dram-0, package-1"


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    first = add_zone(tmp_path, "intel-rapl:0", "package-0", 900)
    second = add_zone(tmp_path, "intel-rapl:1", "package-1", 10)
    meter = RaplMeter(tmp_path)
    before = meter.read_uj()
    for uj, more in [(50, 150), (40, 1140), (41, 1141)]:  # past the range once, twice
        first.write_text(str(uj))
        assert meter.read_uj() - before == more
    second.write_text("30")
    assert meter.read_uj() - before == 1161


def test_counters_for_root_only_say_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add_zone(tmp_path, "intel-rapl:0", "package-0")
    path.chmod(0)
    if os.geteuid() == 0:  # root reads whatever the mode is
        read = Path.read_text

        def refuse(self: Path, *args: Any, **kwargs: Any) -> str:
            if self == path:
                raise PermissionError(13, "Permission denied", str(path))
            return read(self, *args, **kwargs)

        monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(torchalgo.Error, match=r"only root may read .*energy_uj: .*chmod a\+r"):
        RaplMeter(tmp_path)


@pytest.mark.parametrize(
    ("zones", "reason"),
    [(None, "there is no"), ([], "no intel-rapl packages"), (["psys"], "no intel-rapl packages")],
)
def test_a_machine_without_counters_says_what_is_missing(
    tmp_path: Path, zones: list[str] | None, reason: str
) -> None:
    root = tmp_path / "powercap"
    if zones is not None:
        root.mkdir()
        for i, name in enumerate(zones):
            add_zone(root, f"intel-rapl:{i}", name)
    with pytest.raises(torchalgo.Error, match=reason):
        RaplMeter(root)


def test_a_torn_counter_is_an_error_of_ours(tmp_path: Path) -> None:
    add_zone(tmp_path, "intel-rapl:0", "package-0").write_text("")
    with pytest.raises(torchalgo.Error, match="RAPL: "):
        RaplMeter(tmp_path)


# ---- NVML ----------------------------------------------------------------------------------------


class FakeNvml:
    """Stands for the module pynvml. Counts 5 mJ in every tenth call."""

    class NVMLError(Exception):
        pass

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.calls = 0
        self.uuid = ""

    def _check(self, call: str) -> None:
        if call == self.refused:
            raise self.NVMLError("Not Supported")

    def nvmlInit(self) -> None:  # noqa: N802
        self._check("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802
        self._check("handle")
        self.uuid = uuid
        return self

    def nvmlDeviceGetTotalEnergyConsumption(self, device: object) -> int:  # noqa: N802
        assert device is self
        self._check("energy")
        self.calls += 1
        return 5 * (self.calls // 10)


def clock(step_s: float = 1e-3) -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: step_s * next(ticks)


def test_nvml_counts_in_microjoules_and_its_interval_is_what_was_seen() -> None:
    library = FakeNvml()
    meter = NvmlMeter("GPU-1234", library, clock())
    assert library.uuid == "GPU-1234"
    assert meter.interval_s == pytest.approx(10e-3)
    library.calls = 1000
    assert meter.read_uj() == 5 * 100 * 1000


@pytest.mark.parametrize("call", ["init", "handle", "energy"])
def test_what_nvml_refuses_is_told(call: str) -> None:
    with pytest.raises(torchalgo.Error, match=r"NVML: nvml\w+: Not Supported"):
        NvmlMeter("GPU-1234", FakeNvml(call), clock())


def test_a_counter_that_stands_still_is_no_meter() -> None:
    with pytest.raises(torchalgo.Error, match="did not move"):
        NvmlMeter("GPU-1234", FakeNvml(), clock(step_s=1.0))


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real package, as after its import."""
    module: Any = pytest.importorskip("pynvml")
    monkeypatch.setattr(module, "nvmlLib", None)
    monkeypatch.setattr(module, "_nvmlGetFunctionPointer_cache", {})
    return module


def test_a_machine_without_nvidias_driver_is_told(
    pynvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "CDLL", Mock(side_effect=OSError("no such file")))
    with pytest.raises(torchalgo.Error, match=r"NVML: nvmlInit: NVML Shared Library Not Found"):
        NvmlMeter("GPU-1234")


def test_a_driver_without_the_counter_is_told(pynvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Mock(spec=["nvmlInitWithFlags", "nvmlInit_v2", "nvmlDeviceGetHandleByUUID"])
    for function in ("nvmlInitWithFlags", "nvmlInit_v2", "nvmlDeviceGetHandleByUUID"):
        getattr(old, function).return_value = 0
    monkeypatch.setattr(pynvml, "CDLL", lambda _: old)
    with pytest.raises(torchalgo.Error, match="TotalEnergyConsumption: Function Not Found"):
        NvmlMeter("GPU-1234")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(torchalgo.Error, match=r"NVML: .*pip install nvidia-ml-py"):
        NvmlMeter("GPU-1234")


# ---- which one is read ---------------------------------------------------------------------------


def test_a_machine_without_a_counter_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RaplMeter.__init__, "__defaults__", (tmp_path,))
    with pytest.raises(torchalgo.Error, match=r"no meter: looked for the CPU's RAPL.*packages"):
        find_meter()
    assert describe_meters()["cpu"].startswith("TA3302 energy: there is no meter")
    add_zone(tmp_path, "intel-rapl:0", "package-0", 42)
    assert find_meter().read_uj() == 42
    assert describe_meters() == {"cpu": "RAPL package-0 (package-0), every 1 ms"}


def test_of_a_gpu_the_nvml_counter_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "abcd"

    asked: list[str] = []
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Properties())
    monkeypatch.setattr(meters, "NvmlMeter", asked.append)
    find_meter(_C.Device(kind="cuda", name="H100", isa="sm_90", index=0))
    assert asked == ["GPU-abcd"]
