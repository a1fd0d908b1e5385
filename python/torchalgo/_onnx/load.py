# SPDX-License-Identifier: BSD-3-Clause
"""Loads ONNX files: load_onnx."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from torchalgo._base.read_file import path_of
from torchalgo._C import Error
from torchalgo._onnx.read_file import no_model, parse_file, read_model
from torchalgo._onnx.refusal import RefusalError
from torchalgo._onnx.to_fx import as_error, make_model


def load_onnx(path: str | Path) -> nn.Module:
    """Opens an ONNX file as a module that `optimize` plans.

    A file holds data only: no code of it runs. This needs the package onnx. docs/onnx.md lists what
    is read. A model that torch.onnx.export wrote keeps the layer names of the original model, as
    far as the file has them.

        model = torchalgo.load_onnx("model.onnx")
        fast = torchalgo.optimize(model, torch.rand(1, 3, 224, 224))

    Args:
        path: the file. Data files of its weights must be in the same folder or below it.

    Returns: a module in eval mode. It takes the inputs of the file in their order, and returns a
        tensor, or a tuple if the file has several outputs. Sizes that the file fixes are checked.
    Raises: torchalgo.Error if the file is missing, damaged or no ONNX model, if its weights are
        outside of its folder, or if it has a part that is not supported. The text names the file,
        the node, its op and the opset.
    """
    file = path_of(path, "load_onnx")
    try:
        try:
            proto = parse_file(file)
            model = read_model(proto, file.absolute().parent)
        except RefusalError as refusal:
            raise as_error(refusal, file, "") from None
        except (UnicodeError, ValueError, OverflowError) as problem:
            raise no_model(file, f", or it is damaged ({type(problem).__name__})") from None
        del proto
        return make_model(model, file)
    except MemoryError:
        raise Error(f"TA1506 load_onnx: {file}: the model does not fit into the memory") from None
