# SPDX-License-Identifier: BSD-3-Clause
"""Times cuDNN's lists of what it can do for a convolution, and counts its crashes meanwhile.

    python benchmarks/bench_enumerate.py --device h100 --convolutions 1000
    python benchmarks/bench_enumerate.py --quick            # to see that it works

No GPU is needed: cuDNN answers for a described one. The convolutions are those of torchvision's and
timm's networks (shapes only, traced on the meta device), each in three directions and four types.
Every chunk runs in a process of its own, so that a crash is seen, counted and named. Takes half an
hour to some hours, --quick some minutes. Appends one JSON line to
benchmarks/results/cudnn_enumerate.jsonl.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import harness
from torchalgo import _C
from torchalgo._ir.devices import list_devices, named_device

CHUNK_LIMIT_S = 3600.0
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DTYPES = ("f32", "tf32", "f16", "bf16")
BATCH = 8
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d")
NO_LIMIT = 1 << 62


def spell(module: Any, sizes: tuple[int, ...]) -> str | None:
    """Spells a problem without direction and type. Returns None if its padding is a name."""
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
    """Yields makers and input sizes of all networks of torchvision and each n-th of timm."""
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
    """Returns spellings, evenly from all, and how many networks were traced and skipped."""
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


def answers_of(device_name: str, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Asks about each problem in this process."""
    device = named_device(device_name)
    # cuDNN maps its parts at the first question; that is not the time of a question.
    _C.offers_of("fwd_f16_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1", NO_LIMIT, device)
    for problem in problems:
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
        yield record


def ask(problems: list[str], device: str, chunk: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns all answers, those so far on Ctrl-C, and the problems whose process died."""
    answers: list[dict[str, Any]] = []
    crashed: list[str] = []
    at = 0
    try:
        while at < len(problems):
            todo = problems[at : at + chunk]
            done = harness.run_child(answers_of, device, todo, limit_s=CHUNK_LIMIT_S)
            answers += done.values
            at += len(done.values)
            if len(done.values) < len(todo):
                problem = todo[len(done.values)]
                crashed.append(f"{problem} ({done.failure})")
                repro = harness.repro_line(answers_of, device, [problem])
                harness.tell_failure(problem, done.failure, repro)
                at += 1
            print(f"{at} of {len(problems)}, {len(crashed)} crashes", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted: {len(answers)} answers are recorded", file=sys.stderr)
    return answers, crashed


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def summarize(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums up answers. Wall time depends on the machine's load, CPU time hardly."""
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
    return {"cudnn": _C.cudnn_version(), **harness.versions_of("torch", "torchvision", "timm")}


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "cudnn_enumerate.jsonl")
    parser.add_argument("--device", default="h100", choices=list_devices(), help="described GPU")
    parser.add_argument("--convolutions", type=harness.count, default=1000, help="how many")
    parser.add_argument(
        "--every", type=harness.count, default=6, help="each n-th network of timm is traced"
    )
    parser.add_argument("--chunk", type=harness.count, default=400, help="problems per process")
    parser.add_argument("--quick", action="store_true", help="2 convolutions, few networks")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(convolutions=2, every=10_000)
        args = parser.parse_args()
    spellings, traced, skipped = collect(args.every, args.convolutions)
    print(f"{len(spellings)} convolutions of {traced} networks", file=sys.stderr, flush=True)
    problems = [f"{d}_{t}_{s}" for s in spellings for d in DIRECTIONS for t in DTYPES]
    answers, crashed = ask(problems, args.device, args.chunk)
    if not answers:
        raise SystemExit("bench_enumerate: cuDNN gave no answer")
    errors = [a for a in answers if "error" in a]
    by_direction = {d: [a for a in answers if a["problem"].startswith(d + "_")] for d in DIRECTIONS}
    line = {
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
        "by_direction": {d: summarize(own) for d, own in by_direction.items() if own},
        "versions": versions(),
        "load_average": os.getloadavg()[0],
        "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }
    harness.record(args.out, line, lambda line: None)
    shown = ["convolutions", "problems", "crashes", "errors"]
    shown += [f"{what}_{key}" for key in ("ms", "cpu_ms") for what in ("median", "p95", "max")]
    print("  ".join(f"{key} {line[key]}" for key in shown))
    return 1 if crashed or errors else 0


if __name__ == "__main__":
    harness.run_script(main)
