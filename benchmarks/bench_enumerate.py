# SPDX-License-Identifier: BSD-3-Clause
"""How long cuDNN takes to say what it can do for a convolution, and whether it survives that.

No GPU is needed: cuDNN answers for a described one. The convolutions are those of torchvision's and
timm's networks (shapes only, traced on the meta device), each in three directions and four types.
Every chunk runs in a process of its own, so that a crash is seen, counted and named.

    python benchmarks/bench_enumerate.py --device h100 --convolutions 1000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import git_state

RESULTS = Path(__file__).parent / "results" / "cudnn_enumerate.jsonl"
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = ("f32", "tf32", "f16", "bf16")
BATCH = 8
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d")
NO_LIMIT = 1 << 62


def spell(module: Any, sizes: tuple[int, ...]) -> str | None:
    """The problem's spelling but for its direction and type; None: not ours (padding by name)."""
    if isinstance(module.padding, str) or len(sizes) not in (4, 5):
        return None

    def joined(values: tuple[int, ...]) -> str:
        return "x".join(map(str, values))

    axes, taps = ("dhw", "trs") if len(sizes) == 5 else ("hw", "rs")
    space = "".join(f"{axis}{size}" for axis, size in zip(axes, sizes[2:], strict=True))
    window = "".join(f"{tap}{size}" for tap, size in zip(taps, module.kernel_size, strict=True))
    return (
        f"n{sizes[0]}c{sizes[1]}{space}_k{module.out_channels}{window}_st{joined(module.stride)}"
        f"_pad{joined(module.padding)}_dil{joined(module.dilation)}_g{module.groups}"
    )


def trace(model: Any, sizes: tuple[int, ...], found: set[str]) -> None:
    """Adds the convolutions of one call; nothing is computed."""
    import torch
    from torch import nn

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        spelling = spell(module, tuple(inputs[0].shape))
        if spelling is not None:
            found.add(spelling)

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(torch.empty(sizes, device="meta"))


def networks(every: int) -> Iterator[tuple[Callable[[], Any], tuple[int, ...]]]:
    """Makers and sizes of the input: all of torchvision's, each n-th of timm's."""
    import torchvision

    make = torchvision.models.get_model
    for name in torchvision.models.list_models(module=torchvision.models):
        side = 299 if name == "inception_v3" else 224
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        yield partial(make, name, **options), (BATCH, 3, side, side)
    for name in torchvision.models.list_models(module=torchvision.models.segmentation):
        yield partial(make, name, weights_backbone=None), (BATCH, 3, 520, 520)
    for name in VIDEO:
        yield partial(make, name), (1, 3, 16, 112, 112)
    try:
        import timm
    except ImportError:
        return
    for name in timm.list_models()[::every]:
        config = timm.get_pretrained_cfg(name)
        side = config.input_size[-1] if config else 224
        yield partial(timm.create_model, name), (BATCH, 3, side, side)


def collect(every: int, count: int) -> tuple[list[str], int, int]:
    """(spellings, networks traced, networks skipped); spellings evenly from all, sorted."""
    import warnings

    import torch

    found: set[str] = set()
    traced = skipped = 0
    for make, sizes in networks(every):
        try:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trace(make().eval(), sizes, found)
            traced += 1
        except Exception:  # a network that the meta device cannot run tells us nothing
            skipped += 1
    ordered = sorted(found)
    step = max(len(ordered) / count, 1.0)
    chosen = [ordered[int(i * step)] for i in range(min(count, len(ordered)))]
    return chosen, traced, skipped


def answer(device_name: str) -> int:
    """The child: reads problems, writes one JSON line for each."""
    from torchalgo import _C
    from torchalgo._ir.devices import named_device

    device = named_device(device_name)
    # cuDNN maps its parts at the first question; that is not the time of a question.
    _C.offers_of("fwd_f16_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1", NO_LIMIT, device)
    for line in sys.stdin:
        problem = line.strip()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        record: dict[str, Any] = {"problem": problem}
        try:
            primitives, _, refusals = _C.offers_of(problem, NO_LIMIT, device)
            ours = [p for p in primitives if p.name.startswith("cudnn")]
            record |= {"primitives": len(ours), "refusals": len(refusals)}
        except _C.Error as error:
            record["error"] = str(error)
        record["ms"] = round(1e3 * (time.perf_counter() - begin), 3)
        record["cpu_ms"] = round(1e3 * (time.process_time() - cpu_begin), 3)
        print(json.dumps(record), flush=True)
    return 0


def ask(problems: list[str], device: str, chunk: int) -> tuple[list[dict[str, Any]], list[str]]:
    """All answers, and the problems whose process died."""
    answers: list[dict[str, Any]] = []
    crashed: list[str] = []
    at = 0
    while at < len(problems):
        todo = problems[at : at + chunk]
        done = subprocess.run(
            [sys.executable, __file__, "--child", "--device", device],
            input="\n".join(todo) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        answers += lines
        at += len(lines)
        if len(lines) < len(todo):
            crashed.append(f"{todo[len(lines)]} (exit {done.returncode})")
            at += 1
        print(f"{at} of {len(problems)}, {len(crashed)} crashes", file=sys.stderr, flush=True)
    return answers, crashed


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def summarize(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Wall time depends on the machine's load; time on the processor (cpu) hardly."""
    offered = [a["primitives"] for a in answers if "primitives" in a]
    summary: dict[str, Any] = {}
    for key in ("ms", "cpu_ms"):
        times = [a[key] for a in answers]
        summary |= {
            f"median_{key}": round(statistics.median(times), 1),
            f"p95_{key}": round(percentile(times, 0.95), 1),
            f"max_{key}": round(max(times), 1),
        }
    return summary | {
        "slowest": max(answers, key=lambda a: a["cpu_ms"])["problem"],
        "primitives_median": statistics.median(offered),
        "primitives_max": max(offered),
        "without_primitives": sum(n == 0 for n in offered),
    }


def versions() -> dict[str, str | None]:
    import torch
    import torchvision

    from torchalgo import _C

    found = {
        "cudnn": _C.cudnn_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": None,
    }
    try:
        import timm

        found["timm"] = timm.__version__
    except ImportError:
        pass
    return found


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="h100", help="a described GPU")
    parser.add_argument("--convolutions", type=int, default=1000)
    parser.add_argument("--every", type=int, default=6, help="each n-th network of timm is traced")
    parser.add_argument("--chunk", type=int, default=400, help="problems per process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.child:
        return answer(args.device)
    spellings, traced, skipped = collect(args.every, args.convolutions)
    print(f"{len(spellings)} convolutions of {traced} networks", file=sys.stderr, flush=True)
    problems = [f"{d}_{t}_{s}" for s in spellings for d in DIRECTIONS for t in DTYPES]
    answers, crashed = ask(problems, args.device, args.chunk)
    errors = [a for a in answers if "error" in a]
    record = {
        "schema": 1,
        "benchmark": "cudnn_enumerate",
        "device": args.device,
        "networks": traced,
        "networks_skipped": skipped,
        "convolutions": len(spellings),
        "problems": len(problems),
        "crashes": len(crashed),
        "crashed": crashed,
        "errors": len(errors),
        "first_errors": errors[:5],
        **summarize(answers),
        "by_direction": {
            d: summarize([a for a in answers if a["problem"].startswith(d + "_")])
            for d in DIRECTIONS
        },
        "versions": versions(),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "git": git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }
    with args.out.open("a") as out:
        out.write(json.dumps(record) + "\n")
    shown = ["convolutions", "problems", "crashes", "errors"]
    shown += [f"{what}_{key}" for key in ("ms", "cpu_ms") for what in ("median", "p95", "max")]
    print("  ".join(f"{key} {record[key]}" for key in shown))
    return 1 if crashed or errors else 0


if __name__ == "__main__":
    sys.exit(main())
