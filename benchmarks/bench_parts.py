# SPDX-License-Identifier: BSD-3-Clause
"""Models that may not be captured as a whole: what of them is planned, how exactly, how fast.

    python benchmarks/bench_parts.py            # detection, segmentation and video, in minutes
    python benchmarks/bench_parts.py --board    # only looks at the networks of the board

Each model of torchvision gets a plan and runs beside eager in the same rounds. A row of
results/parts.jsonl has what runs ("plan", "parts", ...), the planned parts, the largest relative L2
error of its results (null if other objects are found), and the median ratio of eager's time to that
of the optimized module. With --board, nothing is measured: the exit status is 1 if a network of the
board has no plan of the whole any more.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from typing import Any

import torch
import torchvision
from torch import nn

import board_networks
import torchalgo
from harness import RESULTS, count, make_parser, record, run_script, seconds
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.seen import look_at
from torchalgo._cli.demo import randomize_batch_norms

PATH = RESULTS / "parts.jsonl"
DETECTION = (
    "ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn",
    "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn",
)  # fmt: skip
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50")
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d")
WITH_NUMPY = "with_numpy"  # beside the name of a model whose results pass through NumPy


class ThroughNumpy(nn.Module):
    """A model as users write it: Python code after the network filters its results with NumPy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        result = self.model(x)
        first = result[0] if isinstance(result, list) else result
        values = next(iter(first.values())) if isinstance(first, dict) else first
        self_check = values.detach().numpy()
        if not (self_check == self_check).all():
            raise ValueError("NaN in the result")
        return result


def model_of(name: str) -> tuple[nn.Module, Any]:
    """Returns a model with random weights, and its input."""
    torch.manual_seed(0)
    makers: Any = torchvision.models
    found = next(
        getattr(place, name)
        for place in (makers.detection, makers.segmentation, makers.video)
        if hasattr(place, name)
    )
    unpretrained = {} if name in VIDEO else {"weights_backbone": None}
    model = found(weights=None, **unpretrained).eval()
    randomize_batch_norms(model)
    if name in DETECTION:
        return model, ([torch.rand(3, 320, 320)],)
    frames, side = (16, 224) if name == "s3d" else (8, 112)  # what its last pool needs
    video = torch.rand(1, 3, frames, side, side)
    return model, (video if name in VIDEO else torch.rand(1, 3, 224, 224),)


def measure(name: str, budget_s: float, rounds: int) -> dict[str, Any]:
    model, inputs = model_of(name.removesuffix(f".{WITH_NUMPY}"))
    if name.endswith(WITH_NUMPY):
        model = ThroughNumpy(model).eval()
    quiet = torchalgo.Settings(progress=False)
    fast = torchalgo.optimize(model, inputs, budget_s=budget_s, settings=quiet)
    calls = {"eager": model, "ours": fast}
    ratios = []
    with torch.no_grad():
        error = output_error(fast(*inputs), model(*inputs))
        for _ in range(rounds):
            times = {}
            for way, call in calls.items():
                start = time.perf_counter()
                call(*inputs)
                times[way] = time.perf_counter() - start
            ratios.append(times["eager"] / times["ours"])
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "model": name, "runs": fast.runs, "parts": list(fast.parts), "why": fast.why_as_given[:200],
        "error": error if math.isfinite(error) else None, "eager_over_ours": round(quarters[1], 3),
        "quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
        "budget_s": budget_s, "rounds": rounds, "dtype": "float32",
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def look_at_board() -> int:
    """Prints what is seen of each network of the board. Returns how many lost their plan."""
    lost = 0
    for name in board_networks.board():
        network, x = board_networks.build(name), board_networks.build_input(name)
        start = time.monotonic()
        seen = look_at(network, (x,))
        is_lost = bool(seen.reads or seen.writes)
        lost += is_lost
        print(
            f"{name:40} {'LOST' if is_lost else 'plan':4} {time.monotonic() - start:5.1f} s"
            f" {seen.reads or seen.writes or seen.why}",
            flush=True,
        )
    print(f"{lost} networks lose their plan")
    return lost


def parse_options() -> argparse.Namespace:
    parser = make_parser(__doc__, has_records=True)
    parser.add_argument("--board", action="store_true", help="only look at the board's networks")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--budget-s", type=seconds, default=60.0, help="of each model")
    parser.add_argument("--rounds", type=count, default=9, help="of timing")
    return parser.parse_args()


def main() -> int:
    args = parse_options()
    warnings.filterwarnings("ignore")
    if args.board:
        return int(look_at_board() > 0)
    numpy = [f"{name}.{WITH_NUMPY}" for name in (DETECTION[1], SEGMENTATION[0], VIDEO[0])]
    for name in args.models or [*DETECTION, *SEGMENTATION, *VIDEO, *numpy]:
        try:
            line = measure(name, args.budget_s, args.rounds)
        except torchalgo.Error as problem:
            line = {"model": name, "runs": "error", "why": str(problem)[:300]}
        print(line, file=sys.stderr, flush=True)
        record(PATH, line)
    return 0


if __name__ == "__main__":
    run_script(main)
