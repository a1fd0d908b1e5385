# SPDX-License-Identifier: BSD-3-Clause
"""Loads models of other programs: load_onnx and load_caffe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from torchalgo._capture.fx_model import FxInputs, fx_model

if TYPE_CHECKING:
    from torchalgo._onnx_ops.network import Calls


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
    from torchalgo._onnx.load import read_onnx

    return _module(read_onnx(path))


def load_caffe(prototxt: str | Path, caffemodel: str | Path | None = None) -> nn.Module:
    """Opens a network of Caffe as a module that `optimize` plans.

    A file holds data only: no code of it runs. This needs the package protobuf. docs/caffe.md lists
    what is read. The layers keep their names, with "." in the place of "/".

        model = torchalgo.load_caffe("deploy.prototxt", "net.caffemodel")
        fast = torchalgo.optimize(model, torch.rand(1, 3, 224, 224))

    Args:
        prototxt: the text that describes the network.
        caffemodel: the file of its weights. None gives random weights from a fixed seed, which
            keep the scale of the values about the same from layer to layer. Such a module is for
            measuring times.

    Returns: a module in eval mode, without the layers for training. It takes the inputs of the file
        in their order, and returns a tensor, or a tuple of the blobs that no layer reads, in the
        order of the file. It takes any batch size, unless a layer needs that of the file.
    Raises: torchalgo.Error if a file is missing or damaged, if the weights do not fit the network,
        or if a part is not supported. The text names the file, the layer and its type.
    """
    from torchalgo._caffe.load import read_caffe

    return _module(read_caffe(prototxt, caffemodel))


def _module(calls: Calls) -> nn.Module:
    names = calls.inputs
    inputs = FxInputs(calls.weights, names, names, calls.sizes, {}, {})
    return fx_model(calls.graph, inputs, root="")
