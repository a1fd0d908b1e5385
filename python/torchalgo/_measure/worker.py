# SPDX-License-Identifier: BSD-3-Clause
"""The worker: a process that runs candidates for its parent. A crash ends only the worker.

    python -I worker.py ANSWERS BOARD PARENT

It is started as a file, so that it imports only the packages that the first request names. It
imports no script of the user and no site packages of another interpreter.

Requests are lines of JSON on stdin. Answers are lines of JSON on the file descriptor ANSWERS.
Output that libraries print goes to stdout and stderr, so it cannot mix with the answers.

BOARD is memory shared with the parent, two int64: the number of steps begun, and the index of the
candidate that the last step runs. With it the parent knows which candidate crashed or hangs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import mmap
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# If memory runs out, the operating system ends the worker before any other process.
FIRST_TO_END = "1000"

# The settings in torch.backends that decide which kernel a library runs.
FLAGS = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.allow_tf32",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)

Request = Mapping[str, Any]

_opened: set[int] = set()  # the GPUs that this process uses


def flushes_denormals() -> bool:
    """Returns whether this thread's arithmetic treats denormal numbers as zero."""
    return sys.float_info.min * 0.5 == 0.0


def read_state() -> dict[str, Any]:
    """Returns torch's settings in this process that influence how long kernels run."""
    import torch

    flags: dict[str, Any] = {}
    for name in FLAGS:
        owner, _, attribute = name.rpartition(".")
        # Some torch releases lack a flag. Reading allow_tf32 raises if its parts differ.
        with contextlib.suppress(AttributeError, RuntimeError):
            flags[name] = getattr(_backend(owner), attribute)
    return {
        "threads": torch.get_num_threads(),
        "flush_denormal": flushes_denormals(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flags": flags,
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Sets torch in this process to `state`, which read_state() returned in another one."""
    import torch

    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    if flushes_denormals() != state["flush_denormal"]:
        torch.set_flush_denormal(state["flush_denormal"])
    if torch.are_deterministic_algorithms_enabled() != state["deterministic"]:
        torch.use_deterministic_algorithms(state["deterministic"])
    for name, value in state["flags"].items():
        owner, _, attribute = name.rpartition(".")
        with contextlib.suppress(AttributeError, RuntimeError):
            setattr(_backend(owner), attribute, value)


def _backend(name: str) -> Any:
    import torch

    backend: Any = torch.backends
    for part in name.split("."):
        backend = getattr(backend, part)
    return backend


def main(arguments: Sequence[str]) -> None:
    """Answers requests until the parent closes stdin or ends."""
    answers, board_file, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_END)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    status = 1
    try:
        _serve(answers, memoryview(mmap.mmap(board_file, 16)).cast("q"))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # torch's usual cleanup takes long


def _serve(answers: int, board: memoryview) -> None:
    for number, request in enumerate(map(json.loads, sys.stdin.buffer)):
        answer = _attempt(request, board) if number else _start(request)
        _answer(answers, request, answer)


def _end_with(parent: int) -> None:
    """Ends this process when its parent ends, whatever it runs.

    PR_SET_PDEATHSIG cannot do this: it fires when the thread that started this process ends.
    """
    poll = select.poll()
    poll.register(0, 0)  # POLLHUP is reported in any case
    with contextlib.suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(parent), select.POLLIN)
    while os.getppid() == parent:
        if poll.poll(1000):
            break
    os._exit(0)


def _start(first: Request) -> dict[str, Any]:
    sys.path[:] = first["sys_path"]
    for name in ("torch", "torchalgo"):
        if name not in sys.modules:
            _load(name, Path(first["packages"][name]))
    from torchalgo import _C

    return {"isa": _C.cpu_device().isa, "version": _C.version}


def _load(name: str, folder: Path) -> None:
    """Imports a package from `folder`, the parent's copy, regardless of sys.path."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _attempt(request: Request, board: memoryview) -> dict[str, Any]:
    from torchalgo import _C

    if reason := _closed_device(request):
        return {"closed": reason}
    try:
        set_state(request["state"])
        results = run_request(request, board)
    except _C.Error as error:
        return {"error": str(error)}
    return {"results": results, "lost": _lost_device(request)}


def run_request(request: Request, board: memoryview | None = None) -> list[Any]:
    """Returns the results of a request, one for each of its tasks.

    Args:
        board: gets the number of steps and the task; None in a process that nobody watches.
    """
    steps: dict[str, Callable[[Request, memoryview | None], list[Any]]] = {
        "start": lambda request, _: _start_device(request),
        "measure": _measure,
        "check": _check,
        "componentwise": _componentwise,
        "release": lambda *_: _release(),
    }
    return steps[request["do"]](request, board)


def _closed_device(request: Request) -> str:
    """Returns why this process cannot open the GPU of a request; "" if it can, or on the CPU.

    In the compute mode "exclusive process", a GPU has one process: the user's. A GPU may also have
    too little memory left for a second one.
    """
    device = request["device"]
    if device is None or device["index"] in _opened:
        return ""
    import torch

    if why := _why_not(lambda: torch.zeros(1, device=f"cuda:{device['index']}")):
        return why
    _opened.add(device["index"])
    return ""


def _why_not(run: Callable[[], object]) -> str:
    """Runs a function. Returns the first line of the error that it raises; "" if none."""
    try:
        run()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _release() -> list[Any]:
    """Gives memory that no tensor uses back to the GPU."""
    import torch

    torch.cuda.empty_cache()
    return []


def _start_device(request: Request) -> list[Any]:
    """Makes a GPU ready: its first convolution loads CUDA and cuDNN, which takes seconds.

    It is no task of the request, so the board tells nothing of it.
    """
    from torchalgo import _C

    if request["device"] is not None:
        problem = "fwd_f16_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1"
        task = (problem, _C.Primitive("aten.conv", "nhwc", "nhwc"))
        _C.measure([task], device=_device(request))
    return []


def _measure(request: Request, board: memoryview | None) -> list[Any]:
    from torchalgo import _C

    options = request["options"]
    taken = _C.measure(_tasks(request), **options, device=_device(request), board=board)
    return [[s.ns, s.failure, s.disturbed] for s in taken]


def _check(request: Request, board: memoryview | None) -> list[Any]:
    from torchalgo import _C

    (problem, _), *_ = tasks = _tasks(request)
    primitives = [primitive for _, primitive in tasks]
    return _C.check_primitives(
        problem, primitives, request["max_error"], device=_device(request), board=board
    )


def _tasks(request: Request) -> list[tuple[str, Any]]:
    from torchalgo import _C

    return [(problem, _C.Primitive(*primitive)) for problem, primitive in request["tasks"]]


def _componentwise(request: Request, board: memoryview | None) -> list[Any]:
    """Returns _C.componentwise_error of each task, with an empty text.

    If there is no error because a task fails, it is inf, and the text says why.
    """
    from torchalgo import _C
    from torchalgo._base.error_code import without_code

    found = []
    for i, task in enumerate(_tasks(request)):
        if board is not None:
            board[0], board[1] = board[0] + 1, i
        try:
            found.append((_C.componentwise_error(*task, device=_device(request)), ""))
        except _C.Error as problem:
            found.append((math.inf, without_code(str(problem))))
    return found


def _device(request: Request) -> Any:
    from torchalgo import _C

    return None if request["device"] is None else _C.Device(**request["device"])


def _lost_device(request: Request) -> str:
    """Returns the error after which the GPU runs nothing any more in this process.

    Some CUDA errors stay until the process ends. Returns "" if the GPU still works, or on the CPU.
    """
    if request["device"] is None:
        return ""
    import torch

    return _why_not(lambda: torch.cuda.synchronize(request["device"]["index"]))


def _answer(file: int, request: Request, answer: Mapping[str, Any]) -> None:
    data = json.dumps({**answer, "id": request["id"]}).encode() + b"\n"
    while data:
        data = data[os.write(file, data) :]


if __name__ == "__main__":
    main(sys.argv[1:])
