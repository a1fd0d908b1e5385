# SPDX-License-Identifier: BSD-3-Clause
"""The ways to run a network that bench_models.py compares, each as a callable."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchalgo
from peer_engines import ncnn_run, onnxruntime_session, openvino_options
from torchalgo import _C

Run = Callable[[], Any]


def frozen_trace(model: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    """`model` traced and frozen, without running the result."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x, check_trace=False)
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced.eval())
        return frozen


def eager(model: nn.Module, x: Tensor) -> Run:
    """PyTorch as it is."""
    return lambda: model(x)


def channels_last(model: nn.Module, x: Tensor) -> Run:
    """PyTorch with model and input in channels_last."""
    nhwc_model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nhwc_x = x.contiguous(memory_format=torch.channels_last)
    return lambda: nhwc_model(nhwc_x)


def optimize_for_inference(model: nn.Module, x: Tensor) -> Run:
    """torch.jit.optimize_for_inference of the frozen trace."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = torch.jit.optimize_for_inference(frozen_trace(model, x))
    return lambda: module(x)


def inductor(model: nn.Module, x: Tensor) -> Run:
    """torch.compile with the weights frozen into the program."""
    import torch._inductor.config as config

    config.freezing = True
    compiled = torch.compile(model)
    return lambda: compiled(x)


def onnx_file(model: nn.Module, x: Tensor) -> bytes:
    """The model as ONNX, by the TorchScript exporter."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), buffer, opset_version=17, dynamo=False)  # type: ignore[arg-type]
    return buffer.getvalue()


def onnxruntime(model: nn.Module, x: Tensor, spinning: bool = False) -> Run:
    """ONNX Runtime's CPU provider with all graph optimizations."""
    session = onnxruntime_session(onnx_file(model, x), torch.get_num_threads(), spinning)
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def onnxruntime_spinning(model: nn.Module, x: Tensor) -> Run:
    """ONNX Runtime with spinning threads."""
    return onnxruntime(model, x, spinning=True)


def openvino_config() -> dict[str, Any]:
    """OpenVINO's CPU device in f32, on as many threads as torch, one request at a time."""
    return openvino_options(torch.get_num_threads())


def openvino_compiled(model: nn.Module, x: Tensor, config: dict[str, Any]) -> Any:
    """The network for OpenVINO's CPU device."""
    import openvino as ov

    converted = ov.Core().read_model(io.BytesIO(onnx_file(model, x)))
    return ov.Core().compile_model(converted, "CPU", config)


def openvino(model: nn.Module, x: Tensor) -> Run:
    """OpenVINO's CPU device in f32, latency hint."""
    request = openvino_compiled(model, x, openvino_config()).create_infer_request()
    array = x.numpy()
    return lambda: request.infer({0: array})


def zentorch(model: nn.Module, x: Tensor) -> Run:
    """torch.compile with AMD's backend. Its version must fit torch's: 2.11.0.3 fits 2.11."""
    import torch._inductor.config as config

    importlib.import_module("zentorch")  # it registers the backend
    config.freezing = True
    compiled = torch.compile(model, backend="zentorch")
    return lambda: compiled(x)


def ncnn_files(model: nn.Module, x: Tensor, folder: Path) -> tuple[str, str]:
    """Converts the model with pnnx. Returns the paths of the layers and of the weights.

    Raises: RuntimeError if ncnn has no layer for an op of the model.
    """
    pnnx = importlib.import_module("pnnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, x, check_trace=False).save(str(folder / "net.pt"))
    words = ["net.pt", f"inputshape={list(x.shape)}".replace(" ", ""), "fp16=0"]
    subprocess.run(  # an error names the program without its folder
        ["pnnx", *words], executable=pnnx.EXEC_PATH, cwd=folder, check=True, capture_output=True,
        timeout=300,
    )  # fmt: skip
    layers = folder / "net.ncnn.param"
    kinds = {line.split()[0] for line in layers.read_text().splitlines()[2:] if line}
    if unknown := sorted(kind for kind in kinds if "." in kind):  # left as ops of PyTorch
        raise RuntimeError(f"ncnn has no layer for {', '.join(unknown)}")
    return str(layers), str(folder / "net.ncnn.bin")


def ncnn(model: nn.Module, x: Tensor) -> Run:
    """ncnn in f32, one image at a time. Its convolutions may be Winograd's."""
    if x.shape[0] != 1:
        raise ValueError("ncnn takes one image at a time")
    with tempfile.TemporaryDirectory() as folder:
        files = ncnn_files(model, x, Path(folder))
        return ncnn_run(*files, x[0].numpy(), torch.get_num_threads())


PEERS: dict[str, Callable[[nn.Module, Tensor], Run]] = {
    "eager": eager,
    "channels_last": channels_last,
    "optimize_for_inference": optimize_for_inference,
    "inductor": inductor,
    "onnxruntime": onnxruntime,
    "onnxruntime_spinning": onnxruntime_spinning,
    "openvino": openvino,
    "ncnn": ncnn,
    "zentorch": zentorch,
}
RARE = ("ncnn", "zentorch")  # only when asked for by name


def peer_names(text: str) -> list[str]:
    """The type of an option: names of PEERS, comma-separated."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(PEERS)}, comma-separated; got {', '.join(unknown)!r}"
        )
    return names


def peer_version(name: str) -> str:
    """Version of the library behind a peer."""
    from importlib.metadata import version

    library = name.removesuffix("_spinning").removesuffix("_compile")
    library = library if library in ("onnxruntime", "openvino", *RARE) else "torch"
    return version(library)


def machine() -> dict[str, Any]:
    """Describes the machine for a record."""
    device = _C.cpu_device()
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": device.name,
        "isa": device.isa,
        "bf16_isa": device.bf16_isa,
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "torch": torch.__version__,
        "torchalgo": torchalgo.__version__,
    }
