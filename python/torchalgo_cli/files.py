# SPDX-License-Identifier: BSD-3-Clause
"""Checks the files that a command names, before torch is imported."""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

from torchalgo_cli.arguments import near

REPORT_SUFFIXES = (".html", ".txt", ".csv", ".trace.json", ".json")
STDOUT = Path("-")  # of --trace and --csv
_MODEL_SUFFIXES = (
    ".pt", ".pt2", ".pth", ".onnx", ".prototxt", ".caffemodel", ".py", ".json"
)  # fmt: skip
_MODELS = "; expected model.pt2, .pt, .onnx or .prototxt, or package.module:factory"
_PLANS = "; expected model.pt2, .pt or .plan.json of torchalgo, or a model with --input"


class FileError(Exception):
    """The error that the command cannot use a file or folder."""


def check_files(args: argparse.Namespace) -> None:
    """Raises FileError if a file that `args` names cannot be read or written."""
    _check_outputs(args)
    costs = getattr(args, "cost_db", None)
    if isinstance(costs, Path) and costs.is_dir():
        raise FileError(f"TA7102 --cost-db: {costs} is a folder: name a file in it")
    for name in ("model", "original", "target", "source"):
        reference = getattr(args, name, None)
        may_be_problem = name in ("target", "source")
        if isinstance(reference, str) and not (may_be_problem and is_problem(reference)):
            check_model_reference(reference, _PLANS if args.command == "explain" else _MODELS)
    for name in ("file", "first", "second", "plan", "data"):
        if isinstance(path := getattr(args, name, None), Path):
            _check_readable(path)


def is_problem(target: str) -> bool:
    """Returns True if `target` looks like neither a model's file nor a factory.

    Then it is read as the text of a problem.
    """
    path = Path(target)
    return path.suffix not in _MODEL_SUFFIXES and not path.exists() and ":" not in target


def _check_outputs(args: argparse.Namespace) -> None:
    for name in ("output", "plan_out", "report", "trace", "csv"):
        path = getattr(args, name, None)
        if path is not None and not (name in ("trace", "csv") and path == STDOUT):
            _check_writable(path)
    report = getattr(args, "report", None)
    if report is not None and not report.name.lower().endswith(REPORT_SUFFIXES):
        raise FileError(
            f"TA2010 report: {report}, expected a file that ends in one of"
            f" {', '.join(REPORT_SUFFIXES)}"
        )


def check_model_reference(reference: str, expected: str = _MODELS) -> None:
    """Raises FileError unless `reference` is a file, or looks like package.module:factory."""
    path = Path(reference)
    if path.suffix == ".py" or ".py:" in reference:
        source = Path(reference.partition(":")[0]).with_suffix("")
        module = source.name if source.is_absolute() else ".".join(source.parts)
        raise FileError(
            f"TA7104 {reference} is Python source: give the import path of a function that returns"
            f" the model, such as {module}:make_model"
        )
    is_caffe = caffe_files(reference) is not None
    if path.suffix == ".caffemodel" and not is_caffe:
        raise FileError(
            f"TA7103 {reference} holds weights without a network: give net.prototxt:{reference}"
        )
    if not is_caffe and (path.exists() or ":" not in reference):
        _check_readable(path, expected)


def caffe_files(reference: str) -> tuple[Path, Path | None] | None:
    """Returns the two files of a network of Caffe; None if `reference` names another model.

    "net.prototxt" finds net.caffemodel beside it, "net.prototxt:other.caffemodel" names another
    file, and "net.prototxt:random" has no file of weights.

    Raises: FileError if a file cannot be read.
    """
    name, colon, weights = reference.partition(".prototxt:")
    if not colon and not reference.endswith(".prototxt"):
        return None
    network = Path(f"{name}.prototxt" if colon else reference)
    _check_readable(network)
    if weights == "random":
        return network, None
    found = Path(weights) if weights else network.with_suffix(".caffemodel")
    _check_readable(
        found,
        f"; write {network}:weights.caffemodel for other weights, or {network}:random to measure"
        " times with random ones",
    )
    return network, found


def why_unreadable(path: Path) -> str:
    """Returns why `path` cannot be read as a file; "" if it can.

    The file is not opened: a pipe would wait for a writer, and a device may have no end.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no file {path}{_near_file(path)}"
    except OSError as problem:
        return problem.strerror or str(problem)
    except ValueError as problem:  # a NUL in the name, or a character that no name can have
        return f"this is no name of a file ({problem})"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is a pipe, a socket or a device, expected a file"
    return "" if os.access(path, os.R_OK) else "permission denied"


def _check_readable(path: Path, expected: str = "") -> None:
    if why := why_unreadable(path):
        raise FileError(f"TA7101 cannot read {path}: {why}{expected}")
    if path.stat().st_size == 0:
        raise FileError(f"TA7101 cannot read {path}: the file is empty{expected}")


def _near_file(path: Path) -> str:
    try:
        return near(path.name, [item.name for item in path.absolute().parent.iterdir()])
    except OSError:
        return ""


def _check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir():
        raise FileError(f"TA7102 cannot write {path}: it is a folder: name a file in it")
    if not folder.is_dir():
        raise FileError(f"TA7102 cannot write {path}: there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise FileError(f"TA7102 cannot write {path}: permission denied")
