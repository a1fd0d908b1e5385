# SPDX-License-Identifier: BSD-3-Clause
"""Writes the files that the engines of bench_peers.py open. Needs PyTorch and the converters."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchalgo
from bench_models import tuned
from engines import ncnn_files, onnx_file
from harness import Record
from networks import random_input, random_network
from peer_engines import EMITTED, MODULES_PLAN, OWN, reason_of

Written = tuple[list[str], Record]  # names of files, and what a record says of them


def prepare(network: str, folder: str) -> int:
    """Writes the image, the result in f64, and the network as ONNX. Returns its parameters."""
    model, x = random_network(network), random_input(network)
    np.save(Path(folder, "input.npy"), x.numpy())
    Path(folder, "net.onnx").write_bytes(onnx_file(model, x))
    with torch.no_grad():
        np.save(Path(folder, "reference.npy"), model.double()(x.double()).numpy())
    return sum(weight.numel() for weight in model.parameters())


def write_own(
    model: nn.Module, x: Tensor, folder: Path, tune_s: float, max_error: float
) -> Written:
    optimized, entry = tuned(lambda: model, x, tune_s, max_error, cost_db=False)
    optimized.save(folder / "net.pt")
    optimized.plan.save(folder / "plan.json")
    return ["net.pt"], {"runs": entry["runs"], "predicted_us": entry["predicted_us"]}


def write_emitted(
    model: nn.Module, x: Tensor, folder: Path, tune_s: float, max_error: float
) -> Written:
    """Emits a plan for this processor, and builds the folder with CMake.

    The plan is that of `write_own`. If it cannot be emitted, another one of torchalgo's own kernels
    is tuned.
    """
    emit: Any = getattr(torchalgo, "emit", None)
    if emit is None:
        raise NotImplementedError("this torchalgo has no function emit")
    plan = torchalgo.load_plan(folder.parent / OWN / "plan.json")
    facts: Record = {"plan": MODULES_PLAN}
    try:
        fast = torchalgo.optimize(model, x, plan=plan, settings=torchalgo.Settings(progress=False))
        emit(fast, folder)
    except torchalgo.Error as problem:
        fast, _ = tuned(lambda: model, x, tune_s, max_error, cost_db=False, own_kernels=True)
        emit(fast, folder)
        facts = {"plan": f"of its own: {reason_of(problem)}"}
    build = str(folder / "build")
    for words in (
        ["-S", str(folder), "-B", build, "-DBUILD_SHARED_LIBS=ON"],
        ["--build", build, "--parallel", "2"],
    ):
        subprocess.run(["cmake", *words], check=True, stdout=sys.stderr)
    return ["weights.bin"], facts


def write_onnxruntime(model: nn.Module, x: Tensor, folder: Path) -> Written:
    shutil.copy(folder.parent / "net.onnx", folder)
    return ["net.onnx"], {}


def write_openvino(model: nn.Module, x: Tensor, folder: Path) -> Written:
    import openvino as ov

    network = ov.Core().read_model(folder.parent / "net.onnx")
    ov.save_model(network, folder / "net.xml", compress_to_fp16=False)
    return ["net.xml", "net.bin"], {}


def write_executorch(model: nn.Module, x: Tensor, folder: Path) -> Written:
    """Gives XNNPACK all operations that it takes. It fuses no layer with "-" in its name."""
    for module in [*model.modules()]:
        own = {name.replace("-", "_"): child for name, child in module._modules.items()}
        module._modules = own
    exir = importlib.import_module("executorch.exir")
    xnnpack = importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    program = exir.to_edge_transform_and_lower(
        torch.export.export(model, (x,)), partitioner=[xnnpack.XnnpackPartitioner()]
    ).to_executorch()
    (folder / "net.pte").write_bytes(program.buffer)
    return ["net.pte"], {}


def write_litert(model: nn.Module, x: Tensor, folder: Path) -> Written:
    importlib.import_module("litert_torch").convert(model, (x,)).export(str(folder / "net.tflite"))
    return ["net.tflite"], {}


def write_ncnn(model: nn.Module, x: Tensor, folder: Path) -> Written:
    return [Path(path).name for path in ncnn_files(model, x, folder)], {}


def write_mnn(model: nn.Module, x: Tensor, folder: Path) -> Written:
    """Calls the compiled converter. MNN's script around it installs packages and sends logs."""
    source, target = str(folder.parent / "net.onnx"), str(folder / "net.mnn")
    importlib.import_module("_tools").mnnconvert(
        [
            "mnnconvert",
            "-f",
            "ONNX",
            "--modelFile",
            source,
            "--MNNModel",
            target,
            "--bizCode",
            "net",
        ]
    )
    return ["net.mnn"], {}


def write_iree(model: nn.Module, x: Tensor, folder: Path) -> Written:
    """Compiles for this processor."""
    tools = importlib.import_module("iree.compiler.tools")
    source, middle = str(folder.parent / "net.onnx"), str(folder / "net.mlir")
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", source, "-o", middle]
    subprocess.run(importer, check=True, stdout=sys.stderr)
    options = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
    tools.compile_file(
        middle, input_type="onnx", target_backends=["llvm-cpu"], extra_args=options,
        output_file=str(folder / "net.vmfb"),
    )  # fmt: skip
    return ["net.vmfb"], {}


WRITERS: dict[str, Callable[..., Written]] = {
    OWN: write_own,
    EMITTED: write_emitted,
    "onnxruntime": write_onnxruntime,
    "openvino": write_openvino,
    "executorch": write_executorch,
    "litert": write_litert,
    "ncnn": write_ncnn,
    "mnn": write_mnn,
    "iree": write_iree,
}


def convert(
    engine: str, network: str, folder: str, tune_s: float, max_error: float, threads: int
) -> Record:
    """Writes the files of an engine to its folder below `folder`.

    Returns: their bytes and the time, or the reason why there are none as "failure".
    """
    own = Path(folder, engine.removesuffix("_default"))
    own.mkdir(exist_ok=True)
    programs = str(Path(sys.executable).parent)  # flatc of ExecuTorch, and cmake
    os.environ["PATH"] = os.pathsep.join([programs, os.environ["PATH"]])
    torch.set_num_threads(threads)
    started = time.monotonic()
    try:
        words = (tune_s, max_error) if own.name in (OWN, EMITTED) else ()
        model, x = random_network(network), random_input(network)
        names, facts = WRITERS[own.name](model, x, own, *words)
    except Exception as problem:  # a network that a converter refuses is a result, not an end
        return {"failure": reason_of(problem)}
    sizes: list[Any] = [(own / name).stat().st_size for name in names]
    return {**facts, "file_bytes": sum(sizes), "convert_s": round(time.monotonic() - started, 2)}
