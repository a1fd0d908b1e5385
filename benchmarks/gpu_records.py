# SPDX-License-Identifier: BSD-3-Clause
"""The files of gpu_check.py: a record and results of each stage, and the archive of all of them."""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_stage import Stage

SCHEMA = 1
ARCHIVE = "gpu_check.tar.gz"


def head_of(stage: Stage) -> dict[str, Any]:
    return {"schema": SCHEMA, "stage": stage.name, "title": stage.title}


def record_path(out: Path, stage: Stage) -> Path:
    return out / f"{stage.name}.json"


def results_path(out: Path, stage: Stage) -> Path:
    """Returns the file of the stage's results, one per line, also if the stage did not end."""
    return out / f"{stage.name}.jsonl"


def write_record(record: Mapping[str, Any], path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    part.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """Returns the record in a file, or None if there is none or half of one."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if record.get("schema") == SCHEMA else None


def write_archive(out: Path) -> None:
    """Puts all that the stages wrote into one archive; readers never see half of it."""
    part = out / f"{ARCHIVE}.part"
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(out.iterdir()):
            if path.suffix in (".json", ".jsonl", ".log") or path.name.endswith(".json.gz"):
                archive.add(path, arcname=path.name)
    part.replace(out / ARCHIVE)


def unpack_missing(out: Path) -> None:
    """Unpacks the archive of an earlier call, except for files that exist."""
    with contextlib.suppress(FileNotFoundError), tarfile.open(out / ARCHIVE) as archive:
        for member in archive.getmembers():
            if not (out / member.name).exists():
                archive.extract(member, out, filter="data")
