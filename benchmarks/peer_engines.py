# SPDX-License-Identifier: BSD-3-Clause
"""The engines of bench_peers.py, in the processes that open and call a network.

A process imports only what its engine needs, so its start and its memory are those of the engine.
peer_files.py wrote the files that are opened here. All engines compute in f32, on as many threads
as OMP_NUM_THREADS says. Only openvino_default keeps OpenVINO's own precision, maybe bf16, and
torchalgo's plan has the precision for which it was made.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, process_time
from typing import Any, NamedTuple

import numpy as np

Run = Callable[[], Any]
OWN, EMITTED, PYTHON = "torchalgo", "emitted", "python"
MODULES_PLAN = "of the module"  # that the emitted folder runs, if all its kernels are our own
EXECUTORCH = "executorch.extension.pybindings._portable_lib"  # without its converter
CALLS = 5  # after the first one, before memory is read
MOST_PROCESSORS = 1.3  # during these calls, by each thread
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))


# ---- engines -------------------------------------------------------------------------------------


def open_python(folder: Path, x: Any) -> Run:
    """The interpreter with NumPy alone. It gives what the other engines should compute."""
    result = np.load(folder.parent / "reference.npy")
    return lambda: result


def open_own(folder: Path, x: Any) -> Run:
    """The module that torchalgo saved."""
    torch, torchalgo = importlib.import_module("torch"), importlib.import_module("torchalgo")
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    fast, image = torchalgo.load(folder / "net.pt"), torch.from_numpy(x)
    return lambda: fast(image)


class EmittedThreads(ctypes.Structure):
    """<name>_threads of an emitted header: threads on which a network runs."""

    _fields_ = (("run", ctypes.c_void_p), ("pool", ctypes.c_void_p))


def open_emitted(folder: Path, x: Any) -> Run:
    """The library that CMake made of the folder of torchalgo.emit, whose header has the C API."""
    (path,) = folder.glob("build/lib*.so")
    library, name = ctypes.CDLL(str(path)), path.stem.removeprefix("lib")
    sizes = re.search(r"_ARENA_BYTES (\d+)", (folder / f"{name}.h").read_text())
    assert sizes is not None
    network = ctypes.c_void_p()
    if status := library[f"{name}_open"](
        ctypes.byref(network), str(folder / "weights.bin").encode(), None
    ):
        raise RuntimeError(f"{name}_open returned {status}")
    compute, pool_of = library[f"{name}_run"], library[f"{name}_pool"]
    pool_of.restype = EmittedThreads
    pool = ctypes.byref(pool_of(THREADS)) if THREADS > 1 else None
    result = np.empty(np.load(folder.parent / "reference.npy", "r").shape, np.float32)
    memory = np.empty(int(sizes[1]) + 64, np.uint8)
    arena = ctypes.c_void_p(memory.ctypes.data + -memory.ctypes.data % 64)
    sources, targets = ((ctypes.c_void_p * 1)(array.ctypes.data) for array in (x, result))

    def run(kept: Any = (x, memory)) -> Any:  # pointers do not keep their arrays
        if status := compute(network, sources, targets, arena, pool):
            raise RuntimeError(f"{name}_run returned {status}")
        return result

    return run


def onnxruntime_session(model: str | bytes, threads: int, spinning: bool = False) -> Any:
    """Opens a file, or the text of one, with ONNX Runtime's CPU provider and all optimizations.

    With `spinning`, its default, idle threads spin for up to 2^20 pauses after a run. They find
    the next piece of work sooner, and disturb whatever else runs meanwhile.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def open_onnxruntime(folder: Path, x: Any) -> Run:
    session = onnxruntime_session(str(folder / "net.onnx"), THREADS)
    feed = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feed)[0]


def openvino_options(threads: int) -> dict[str, Any]:
    """Returns the options of OpenVINO's CPU device for f32, one request at a time."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
    }


def open_openvino(folder: Path, x: Any, is_default: bool = False) -> Run:
    import openvino as ov

    config = openvino_options(THREADS)
    if is_default:
        del config["INFERENCE_PRECISION_HINT"]
    request = ov.Core().compile_model(folder / "net.xml", "CPU", config).create_infer_request()
    return lambda: request.infer({0: x})[0]


def open_executorch(folder: Path, x: Any) -> Run:
    torch = importlib.import_module("torch")
    library = importlib.import_module(EXECUTORCH)
    library._unsafe_reset_threadpool(THREADS)
    program, image = library._load_for_executorch(str(folder / "net.pte")), torch.from_numpy(x)
    return lambda: program.forward([image])[0]


def open_litert(folder: Path, x: Any) -> Run:
    library = importlib.import_module("ai_edge_litert.interpreter")
    program = library.Interpreter(str(folder / "net.tflite"), num_threads=THREADS)
    program.allocate_tensors()
    (source,), (target,) = program.get_input_details(), program.get_output_details()

    def run() -> Any:
        program.set_tensor(source["index"], x)
        program.invoke()
        return program.get_tensor(target["index"])

    return run


def ncnn_run(layers: str, weights: str, image: Any, threads: int) -> Run:
    """Opens the files of ncnn in f32. Returns a call for one image, which gives an ncnn.Mat."""
    library = importlib.import_module("ncnn")
    net = library.Net()
    net.opt.num_threads = threads
    for half in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{half}", False)
    if net.load_param(layers) or net.load_model(weights):
        raise RuntimeError("ncnn cannot load the converted network")
    source = library.Mat(image).clone()
    name, result = net.input_names()[0], net.output_names()[0]

    def run() -> Any:
        extractor = net.create_extractor()
        extractor.input(name, source)
        return extractor.extract(result)[1]

    return run


def open_ncnn(folder: Path, x: Any) -> Run:
    run = ncnn_run(str(folder / "net.ncnn.param"), str(folder / "net.ncnn.bin"), x[0], THREADS)
    return lambda: np.array(run())


def open_mnn(folder: Path, x: Any) -> Run:
    library = importlib.import_module("MNN")
    program = library.Interpreter(str(folder / "net.mnn"))
    session = program.createSession({"backend": "CPU", "numThread": THREADS, "precision": "high"})
    source, target = program.getSessionInput(session), program.getSessionOutput(session)
    as_in_torch = library.Tensor_DimensionType_Caffe
    image = library.Tensor(x.shape, library.Halide_Type_Float, x, as_in_torch)
    result = np.empty(target.getShape(), np.float32)
    copy = library.Tensor(result.shape, library.Halide_Type_Float, result, as_in_torch)

    def run() -> Any:
        source.copyFrom(image)
        program.runSession(session)
        target.copyToHostTensor(copy)
        return copy.getNumpyData()

    return run


def open_iree(folder: Path, x: Any) -> Run:
    if THREADS > 1:
        raise RuntimeError("is compiled for one thread")
    library = importlib.import_module("iree.runtime")
    module = library.load_vm_flatbuffer_file(str(folder / "net.vmfb"), driver="local-sync")
    names = module.vm_module.function_names  # with those of the interface to C, and of the start
    (name,) = (each for each in names if "$" not in each and not each.startswith("__"))
    return lambda: module[name](x).to_host()


class Engine(NamedTuple):
    open: Callable[[Path, Any], Run]
    modules: tuple[str, ...]  # imported before the time to open begins
    package: str  # whose version a record has
    title: str


ENGINES = {
    PYTHON: Engine(open_python, (), "numpy", "Python with NumPy"),
    OWN: Engine(open_own, ("torch", "torchalgo"), "torch", "torchalgo, module"),
    EMITTED: Engine(open_emitted, (), "torch", "torchalgo, emitted"),
    "onnxruntime": Engine(open_onnxruntime, ("onnxruntime",), "onnxruntime", "ONNX Runtime"),
    "openvino": Engine(open_openvino, ("openvino",), "openvino", "OpenVINO"),
    "openvino_default": Engine(
        partial(open_openvino, is_default=True), ("openvino",), "openvino", "OpenVINO, its default"
    ),
    "executorch": Engine(
        open_executorch, ("torch", EXECUTORCH), "executorch", "ExecuTorch, XNNPACK"
    ),
    "litert": Engine(
        open_litert, ("ai_edge_litert.interpreter",), "ai-edge-litert", "LiteRT, XNNPACK"
    ),
    "ncnn": Engine(open_ncnn, ("ncnn",), "ncnn", "ncnn"),
    "mnn": Engine(open_mnn, ("MNN",), "MNN", "MNN"),
    "iree": Engine(open_iree, ("iree.runtime",), "iree-base-runtime", "IREE"),
}  # fmt: skip


# ---- the process of an engine --------------------------------------------------------------------


def reason_of(problem: BaseException) -> str:
    """Returns the kind of an error's first cause, and the first line of its text."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')[:200]}"


def libraries_of(maps: str) -> list[str]:
    """Returns the shared libraries of /proc/self/maps, without those for GPUs.

    A PyTorch for CPUs only has none of these.
    """
    found = set(re.findall(r"\s(/\S+\.so(?:\.\d[\d.]*)?)$", maps, re.MULTILINE))
    return sorted(p for p in found if not re.search(r"/nvidia|cuda|/libcu|nccl|nvshmem", p))


def memory_of(status: str) -> dict[str, int]:
    """Returns the resident memory of /proc/self/status, and its maximum so far, in bytes."""
    kib = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
    return {"resident_bytes": int(kib["VmRSS"]) << 10, "peak_bytes": int(kib["VmHWM"]) << 10}


def opened(name: str, folder: Path) -> tuple[Run, dict[str, Any]]:
    """Opens the network. Returns its call, and what a record says of the first calls.

    Raises: RuntimeError if the engine uses more threads than THREADS.
    """
    engine = ENGINES[name]
    x = np.load(folder / "input.npy")
    for module in engine.modules:
        importlib.import_module(module)
    imported_s = monotonic()
    run = engine.open(folder / name.removesuffix("_default"), x)
    result = run()
    first_s, cpu_s = monotonic(), process_time()
    for _ in range(CALLS):
        run()
    passed_s, cpu_s = monotonic() - first_s, process_time() - cpu_s
    if name != PYTHON and cpu_s > MOST_PROCESSORS * THREADS * passed_s:
        raise RuntimeError(f"uses {cpu_s / passed_s:.1f} processors, expected {THREADS} thread(s)")
    facts: dict[str, Any] = memory_of(Path("/proc/self/status").read_text())
    facts["libraries"] = {
        path: os.path.getsize(path) for path in libraries_of(Path("/proc/self/maps").read_text())
    }
    want = np.load(folder / "reference.npy").ravel()
    error = np.linalg.norm(np.asarray(result, np.float64).ravel() - want) / np.linalg.norm(want)
    return run, {
        **facts, "rel_error": float(error), "first_s": first_s,
        "open_first_ms": 1e3 * (first_s - imported_s),
    }  # fmt: skip


def serve(name: str, folder: str) -> None:
    """Prints what a record says of the engine, or why it failed, and then what each turn measured.

    Turns are those of torchalgo_cli.turns.
    """
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer

    def answer(value: Any) -> None:
        print(json.dumps(value), file=pipe, flush=True)

    try:
        run, facts = opened(name, Path(folder))
    except Exception as problem:  # an engine that cannot run a network is a result, not an end
        answer({"failure": reason_of(problem)})
        return
    answer(facts)
    from torchalgo_cli.turns import answers, by_call  # not before memory was read

    for measured in answers(by_call(run)):
        answer(measured)
