# SPDX-License-Identifier: BSD-3-Clause
"""Descriptions of GPUs in files, with which cuDNN can be asked about them on any machine."""

from __future__ import annotations

import json
from pathlib import Path

from torchalgo import _C
from torchalgo._base.read_file import read_file
from torchalgo._ir.choices import near

FOLDER = Path(__file__).resolve().parents[1] / "share" / "devices"


def list_devices() -> list[str]:
    """Lists the names that `named_device` knows: "a10", "a100", "h100", ..."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def named_device(name: str) -> _C.Device:
    """Returns a description of the GPU `name`. It tells what can run there; it cannot run anything.

    Args:
        name: one of `list_devices()`, in upper or lower case.
    Returns: a device of index -1. Its `provenance` names the source of its figures.
    Raises: torchalgo.Error for an unknown name, with the known names.
    """
    known = list_devices()
    if name.lower() not in known:
        raise _C.Error(
            f"TA4011 '{name}' is not a known device, expected one of"
            f" {', '.join(known)}{near(name.lower(), known)}"
        )
    return read_device(FOLDER / f"{name.lower()}.json")


def read_device(path: str | Path) -> _C.Device:
    """Reads a GPU's description from the JSON file `path`, for devices of your own.

    The file has the fields name, isa ("sm_90"), provenance and cudnn_properties. The last one has
    the form in which cuDNN writes them for a real device
    (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).

    Raises: torchalgo.Error if the file is not such a description.
    """
    try:
        described = json.loads(read_file(path, "read_device"))
        properties = described["cudnn_properties"]
        return _C.Device(
            kind="cuda",
            name=described["name"],
            isa=described["isa"],
            l2_bytes=properties["l2CacheSize"],
            properties=json.dumps(properties, separators=(",", ":")),
            provenance=described["provenance"],
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _C.Error(
            f"TA4011 '{path}' describes no device: expected JSON with name, isa, provenance and"
            f" cudnn_properties: {error!r}"
        ) from error
