# SPDX-License-Identifier: BSD-3-Clause
"""Loads the models and tensors that arguments of a command name."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

from torchalgo._base.overlap import quiet_jit
from torchalgo._base.read_file import file_at, has_part
from torchalgo._C import Error
from torchalgo._capture.file_models import load_caffe, load_onnx
from torchalgo._capture.fx_model import exported_model
from torchalgo._ir.choices import near
from torchalgo._run.load import check_sums, is_exported
from torchalgo_cli.files import caffe_files, check_model_reference


def load_model(reference: str) -> nn.Module:
    """Loads a file of torch.export, TorchScript, ONNX or Caffe, or calls `package.module:factory`.

    Returns: a model in eval mode.
    Raises: torchalgo.Error if there is no such file or function, or if it gives no model.
    """
    check_model_reference(reference)
    if (files := caffe_files(reference)) is not None:
        return load_caffe(*files)
    model = _load_file(reference) if Path(reference).exists() else _call_factory(reference)
    return model.eval() if hasattr(model, "training") else model


def _load_file(path: str) -> nn.Module:
    if Path(path).suffix.lower() == ".onnx":
        return load_onnx(path)
    file = file_at(path, "torchalgo")
    check_sums("torchalgo", file)
    if is_exported(file):
        return _load_exported(file)
    try:
        with quiet_jit():
            scripted: nn.Module = torch.jit.load(path, map_location="cpu")
            return scripted
    except Exception as problem:
        hint = "give package.module:factory for a model in Python"
        # torch.jit.save writes constants.pkl and data.pkl, torch.save only data.pkl.
        parts = [has_part(file, f"/{name}.pkl", "torchalgo") for name in ("data", "constants")]
        if parts == [True, False]:
            hint = (
                "torch.save wrote it, so it holds weights without code; save"
                " torch.jit.script(model), or give package.module:factory"
            )
        raise Error(
            f"TA7103 {path} is no TorchScript file ({_first_line(problem)}); {hint}"
        ) from None


def _load_exported(file: Path) -> nn.Module:
    try:
        with warnings.catch_warnings():  # of torch's own reader, about memory that it never writes
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            program = torch.export.load(file)
    except Exception as problem:
        raise Error(
            f"TA7103 {file} is no file of torch.export, or it is damaged ({_first_line(problem)})"
        ) from None
    return exported_model(program)


def _call_factory(reference: str) -> nn.Module:
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise Error(f"TA7104 {reference!r} names no model: expected package.module:factory")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, name, None)
    except (Exception, SystemExit) as problem:  # an import runs the user's code
        raise Error(f"TA7104 cannot import {reference}: {_told(problem)}") from None
    if not callable(factory):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise Error(
            f"TA7104 cannot import {reference}: {module_name} has no function"
            f" {name!r}{near(name, known)}"
        )
    try:
        model = factory()
    except (Exception, SystemExit) as problem:
        raise Error(
            f"TA7104 {reference}() failed: {_told(problem)}; expected a function without arguments"
            " that returns the model"
        ) from problem
    if not isinstance(model, nn.Module):
        raise Error(
            f"TA7104 {reference}() returned {type(model).__name__}, expected torch.nn.Module"
        )
    return model


def _told(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {_first_line(problem)}"


def _first_line(problem: BaseException) -> str:
    text = (str(problem).strip().splitlines() or ["no message"])[0]
    return text if len(text) <= 200 else f"{text[:197]}..."


def read_data(path: Path) -> torch.Tensor:
    """Reads one tensor from a .npy file or a file that torch.save wrote.

    Raises: torchalgo.Error if the file cannot be read, or does not hold one tensor with samples.
    """
    file = file_at(path, "torchalgo")
    try:
        if file.suffix == ".npy":
            import numpy

            array = numpy.load(file, allow_pickle=False)
            data = torch.from_numpy(array)
        else:
            if has_part(file, "/constants.pkl", "torchalgo"):
                raise Error(
                    f"TA7105 {path} holds a TorchScript module, expected one tensor, batch first"
                )
            data = torch.load(file, map_location="cpu", weights_only=True)
    except Error:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, EOFError) as problem:
        raise Error(f"TA7101 cannot read {path}: {_first_line(problem)}") from None
    except Exception as problem:  # torch.load wraps unpickling errors in a private type
        raise Error(
            f"TA7105 {path} is no tensor file ({type(problem).__name__}), expected one tensor,"
            " batch first, that torch.save wrote"
        ) from None
    if not isinstance(data, torch.Tensor) or data.dim() < 1:
        raise Error(f"TA7105 {path} holds {type(data).__name__}, expected one tensor, batch first")
    if data.numel() == 0:
        raise Error(
            f"TA7105 {path} holds no samples, expected one or more: its sizes are"
            f" {list(data.shape)}"
        )
    return data
