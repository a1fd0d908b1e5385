# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchalgo
from torchalgo._ir.devices import list_devices, named_device, read_device


@pytest.mark.parametrize("name", list_devices())
def test_a_described_device_is_a_gpu_that_cannot_run(name: str) -> None:
    device = named_device(name.upper())
    properties = json.loads(device.properties)
    assert device.kind == "cuda"
    assert device.index == -1
    assert device.provenance
    assert device.name == properties["deviceName"]
    assert device.isa == f"sm_{properties['deviceVer'] // 10}"
    assert device.l2_bytes == properties["l2CacheSize"]


def test_the_promised_devices_are_there() -> None:
    assert {"h100", "h200", "a100", "l4", "l40", "t4", "b200", "a10"} <= set(list_devices())


def test_an_unknown_device_names_those_that_are_known() -> None:
    with pytest.raises(torchalgo.Error, match=r"'h101' is not a known device, .*a10, a100.*h100"):
        named_device("h101")


def test_a_file_that_is_no_description_says_what_one_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"name": "x"}')
    with pytest.raises(torchalgo.Error, match="expected JSON with name, isa, provenance"):
        read_device(path)
