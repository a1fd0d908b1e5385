# SPDX-License-Identifier: BSD-3-Clause
"""A training step of optimize_training beside those of PyTorch.

    python benchmarks/bench_training.py resnet18 timm/dpn68 --threads 2
    python benchmarks/bench_training.py resnet18 --autocast  # a loop inside of torch.autocast
    python benchmarks/bench_training.py resnet18 --split  # where the gain comes from
    python benchmarks/bench_training.py --table           # prints tables of the last records
    python benchmarks/bench_training.py unet --quick      # to see that it works: a minute

A step is the forward pass, the loss, the backward pass and SGD. Each network runs in a process of
its own. PyTorch's steps are those of the model as it is, in channels_last, with images in oneDNN's
own layouts (to_mkldnn), compiled by Inductor, and inside of torch.autocast in bf16: as it is
(autocast), and in channels_last. All take turns in rounds, and start from the same weights. In a
round, each makes a step untimed, then a timed one. A record also has the error of all gradients to
f64, for the planned and for the plain model, and the peak memory of a step.

With --autocast, the plan is made for a loop inside of torch.autocast in bf16, and the plain model
of errors and memory runs inside of it too. Without it, plans are in f32.

With --split, the peers are plans that simpler choices make from the same costs: PyTorch's
primitives only; the fastest primitive of each convolution without fused operations; the same with
them; and one direction after the other.

Takes 2 to 6 minutes per network. Appends one JSON line per network to
benchmarks/results/training.jsonl, or to training_split.jsonl beside it.
"""

from __future__ import annotations

import copy
import itertools
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import engines
import harness
import torchalgo
from board_networks import build
from pages import table
from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.stats import is_faster, median_interval
from torchalgo._base.time_budget import Deadline
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore
from torchalgo._train.part import Target, parts_of
from torchalgo._train.trace import trace
from torchalgo._train.tuning import RegionTuning

LIMIT_S = 1800.0  # of one network
NETWORKS = (
    "resnet18", "resnet50", "vgg11", "densenet121", "googlenet", "mobilenet_v2", "regnet_y_400mf",
    "unet",
)  # fmt: skip
CLASSES = 1000
SPLIT = "training_split.jsonl"
QUICK = {"rounds": 3, "tune_s": 15.0, "size": 64, "batch": 2, "peers": ["channels_last"]}
PEERS = ("channels_last", "to_mkldnn", "inductor", "autocast", "autocast_channels_last")


class UNet(nn.Module):
    """A segmentation network of three levels, with batch norms and max pooling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            self.block(before, after)
            for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(
            self.block(before, after)
            for before, after in ((6 * width, 2 * width), (3 * width, width))
        )
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(before: int, after: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers.append(nn.ReLU(inplace=True))
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](self.pool(first))
        y = functional.interpolate(self.down[2](self.pool(second)), scale_factor=2.0)
        y = self.up[0](torch.cat([y, second], 1))
        y = functional.interpolate(y, scale_factor=2.0)
        y = self.up[1](torch.cat([y, first], 1))
        result: Tensor = self.last(y).mean((2, 3))
        return result


def network_of(name: str) -> nn.Module:
    """Returns a network in train mode. Dropout is off, so that all steps compute the same."""
    torch.manual_seed(0)
    network = UNet() if name == "unet" else build(name)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network.train()


def in_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `run` inside of autocast. Its result is in f32."""

    def call(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            result = run(x)
        return result.float()

    return call


def planned(
    model: nn.Module, x: Tensor, options: harness.Record, **more: Any
) -> tuple[Any, Callable[..., Any]]:
    """Returns the planned model, and what a training loop calls."""
    with torch.autocast("cpu", torch.bfloat16, enabled=options["autocast"]):
        fast = torchalgo.optimize_training(model, (x,), **more)
    return fast, in_autocast(fast) if options["autocast"] else fast


def step_of(model: nn.Module, run: Callable[..., Any], x: Tensor, y: Tensor) -> Callable[[], float]:
    """Returns a function that makes one step and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def gradients(model: nn.Module, run: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)  # of stochastic depth
    functional.cross_entropy(run(x), y).backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [g.double() for g in found if g is not None]


def worst_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Returns the largest relative L2 of a gradient. Leaves out those that are zero but for
    rounding, such as that of a bias before a batch norm."""
    most = max(float(e.norm()) for e in exact)
    pairs = [(f, e) for f, e in zip(found, exact, strict=True) if float(e.norm()) > 1e-9 * most]
    return max(float((f - e).norm() / e.norm()) for f, e in pairs)


def peak_mb(name: str, options: harness.Record, peer: str) -> float:
    """Returns by how many MB three steps raise the most memory of this process.

    The costs of the plan are in the database, so planning itself measures nothing here.
    """
    torch.set_num_threads(options["threads"])
    network, (x, y) = network_of(name), images_of(name, options)
    run: Callable[..., Any] = in_autocast(network) if options["autocast"] else network
    if peer == "torchalgo":
        settings = torchalgo.Settings(progress=False, run_untimed=True)  # no step before
        _, run = planned(network, x, options, budget_s=options["tune_s"], settings=settings)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    step = step_of(network, run, x, y)
    for _ in range(3):
        step()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return round((most - before) / 2**20, 1)


def images_of(name: str, options: harness.Record) -> tuple[Tensor, Tensor]:
    """Returns random images and their classes."""
    torch.manual_seed(1)
    x = torch.randn(options["batch"], 3, options["size"], options["size"])
    return x, torch.randint(0, 2 if name == "unet" else CLASSES, (options["batch"],))


def peer_step(peer: str, model: nn.Module, x: Tensor, y: Tensor, plans: Any) -> Callable[[], float]:
    """Returns a step of PyTorch's path of this name, or with the plan of this name."""
    run = in_autocast(model) if peer.startswith("autocast") else model
    if peer.endswith("channels_last"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return step_of(model, run, x.contiguous(memory_format=torch.channels_last), y)
    if peer == "autocast":
        return step_of(model, run, x, y)
    if peer == "to_mkldnn":
        return step_of(model, lambda images: model(images.to_mkldnn()).to_dense(), x, y)
    if peer == "inductor":
        return step_of(model, torch.compile(model), x, y)
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    run = torchalgo.optimize_training(model, (x,), plan=plans[peer], settings=settings)
    return step_of(model, run, x, y)


def split_plans(model: nn.Module, x: Tensor, tune_s: float) -> dict[str, torchalgo.TrainingPlan]:
    """Returns the plans of simpler choices. Their costs are measured as far as they are needed."""

    def unfused(
        graph: Any, found: _C.Candidates, *args: Any, allow: Any = None, **options: Any
    ) -> Any:
        # An addition and the ReLU behind it are one step in all candidates.
        fewest = [min((len(c.covers) for c in each), default=0) for each in found.by_anchor]

        def is_unfused(candidate: _C.Candidate) -> bool:
            is_smallest = len(candidate.covers) == fewest[candidate.covers[0]]
            return is_smallest and (allow is None or allow(candidate))

        return _C.make_local_plan(graph, found, *args, allow=is_unfused, **options)

    regions: dict[str, list[torchalgo.Plan]] = {}
    settings = torchalgo.Settings(progress=False)
    options = Options.of(settings, training=True, budget_s=tune_s)
    with CostStore.of_call(None, is_fresh=False) as store:
        for part in parts_of(trace(model, (x,)), (x,), Target(None)).values():
            region = RegionTuning(part, options, store, CallContext.start(Deadline(None)))
            settle = region.settle
            for name, plan in (
                ("PyTorch's", settle(prefixes=("aten.", "layout.aten", "view.relabel"))),
                ("local, unfused", settle(unfused)),
                ("local", settle(_C.make_local_plan)),
                ("staged", settle(_C.make_staged_plan)),
            ):
                regions.setdefault(name, []).append(plan)
    return {name: torchalgo.TrainingPlan(plans) for name, plans in regions.items()}


def run_one(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    start = network_of(name)
    x, y = images_of(name, options)
    own = copy.deepcopy(start)
    began = time.perf_counter()
    settings = torchalgo.Settings(progress=False)
    fast, run = planned(own, x, options, budget_s=options["tune_s"], settings=settings)
    plan_s = time.perf_counter() - began
    exact = copy.deepcopy(start).double()
    of_f64 = gradients(exact, exact, x.double(), y)
    plain = copy.deepcopy(start)
    errors = {
        "planned": worst_error(gradients(own, run, x, y), of_f64),
        "eager": worst_error(gradients(plain, plain, x, y), of_f64),
    }
    if options["autocast"]:
        errors["autocast"] = worst_error(gradients(plain, in_autocast(plain), x, y), of_f64)
    del exact, of_f64
    steps = {"torchalgo": step_of(own, run, x, y), "eager": step_of(plain, plain, x, y)}
    peers = split_plans(start, x, options["tune_s"]) if options["split"] else options["peers"]
    for peer in peers:
        steps[peer] = peer_step(peer, copy.deepcopy(start), x, y, peers)
    failures: dict[str, str] = {}
    for peer, step in list(steps.items()):
        try:
            step()
            step()
        except Exception as problem:
            failures[peer] = f"{type(problem).__name__}: {str(problem)[:300]}"
            del steps[peer]
    peaks = {
        peer: harness.run_child(peak_mb, name, options, peer, limit_s=LIMIT_S).values
        for peer in (() if options["split"] else ("torchalgo", "eager"))
    }
    times: dict[str, list[float]] = {peer: [] for peer in steps}
    for _ in range(options["rounds"]):
        for peer, step in steps.items():
            step()  # memory that the step before has freed in other sizes costs a quarter more
            begin = time.perf_counter()
            step()
            times[peer].append(round((time.perf_counter() - begin) * 1e3, 3))
    return {
        "schema": 1,
        "benchmark": "training",
        "network": name,
        **{key: options[key] for key in ("batch", "size", "threads", "tune_s", "autocast")},
        "plan_s": round(plan_s, 1),
        "regions": [
            {
                "status": plan.status,
                "ms": plan.cost_us / 1e3,
                "gap": 1 - plan.lower_bound_us / plan.cost_us if plan.cost_us else 0.0,
                "nodes": len(plan.nodes),
                "staged_ms": plan.comparisons.get("staged", 0.0) / 1e3,
            }
            for plan in fast.plan.regions
        ],
        "saved_mb": sum(tensor.bytes for tensor in fast.plan.saved) / 2**20,
        "runs": {"planned": fast.planned_runs, "other": fast.original_runs.total()},
        "gradient_error": errors,
        "peak_mb": {peer: found[-1] for peer, found in peaks.items() if found},
        "failures": failures,
        "step_ms": times,
        "load_after": os.getloadavg()[0],
        "machine": engines.machine(),
        "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def ratio(record: harness.Record, peer: str) -> tuple[float, tuple[float, float]]:
    """Returns the median of the peer's time over ours, round by round, and its 95 % interval."""
    own = record["step_ms"]["torchalgo"]
    ratios = [b / a for a, b in zip(own, record["step_ms"][peer], strict=True)]
    return statistics.median(ratios), median_interval(ratios)


def best_peer(record: harness.Record, *, in_bf16: bool) -> str | None:
    """Returns PyTorch's fastest way in f32, or inside of autocast; None if none was timed."""
    times: dict[str, list[float]] = record["step_ms"]
    peers = [p for p in times if p != "torchalgo" and p.startswith("autocast") == in_bf16]
    return min(peers, key=lambda p: statistics.median(times[p]), default=None)


def show(record: harness.Record) -> None:
    """Prints a line per peer."""
    own = record["step_ms"]["torchalgo"]
    print(f"{record['network']}, batch {record['batch']}: {statistics.median(own):.1f} ms")
    for peer, times in record["step_ms"].items():
        if peer != "torchalgo":
            middle, (low, high) = ratio(record, peer)
            verdict = is_faster(own, times).verdict
            print(f"  {peer:14s} {middle:.2f} [{low:.2f}, {high:.2f}] times ours: ours {verdict}")
    print(f"  gradients {record['gradient_error']}, peak MB {record['peak_mb']}", flush=True)


def last_records(path: Path) -> list[harness.Record]:
    """Returns the last record of each network, batch, size, number of threads and ISA."""
    found = {}
    for line in harness.read_lines(path):
        settings = (line["batch"], line["size"], line["threads"], line["machine"]["isa"])
        found[line["network"], settings, line.get("autocast", False)] = line
    return list(found.values())


def gain_of_stages(record: harness.Record) -> str:
    """Returns how much longer the staged plan takes, as predicted; "-" if it is not known."""
    regions = record["regions"]
    if not isinstance(regions, list) or not all(each["staged_ms"] for each in regions):
        return "-"
    whole = sum(each["ms"] for each in regions)
    return f"{sum(each['staged_ms'] for each in regions) / whole - 1:.1%}"


def print_split(path: Path) -> None:
    """Prints the gain in factors, whose product is eager / ours."""
    chain = ["eager", "PyTorch's", "local, unfused", "local", "torchalgo"]
    rows = []
    for record in last_records(path):
        times = {peer: statistics.median(ms) for peer, ms in record["step_ms"].items()}
        if all(peer in times for peer in chain):
            factors = [f"{times[a] / times[b]:.2f}" for a, b in itertools.pairwise(chain)]
            staged, (low, high) = ratio(record, "staged")
            rows.append([
                record["network"], f"{times['eager']:.0f}", f"{times['torchalgo']:.0f}", *factors,
                f"{staged:.3f} [{low:.3f}, {high:.3f}]",
            ])  # fmt: skip
    titles = [
        "network", "eager, ms", "ours, ms", "choice among PyTorch's", "own kernels", "fusion",
        "common choice", "staged / ours",
    ]  # fmt: skip
    print("\n".join(table(titles, rows)))


def print_table(path: Path, *, autocast: bool) -> None:
    rows = []
    for record in last_records(path):
        if record.get("autocast", False) != autocast:
            continue
        eager, _ = ratio(record, "eager")
        best = []
        for in_bf16 in (False, True):
            if (peer := best_peer(record, in_bf16=in_bf16)) is None:
                best.append("-")
                continue
            middle, (low, high) = ratio(record, peer)
            best.append(f"{middle:.2f} [{low:.2f}, {high:.2f}] {peer}")
        own = statistics.median(record["step_ms"]["torchalgo"])
        peaks, errors = record["peak_mb"], record["gradient_error"]
        rows.append([
            record["network"], record["machine"]["isa"], str(record["batch"]),
            str(record["threads"]), f"{own:.0f}",
            f"{eager:.2f}", *best,
            f"{errors['planned']:.0e} / {errors['autocast' if autocast else 'eager']:.0e}",
            f"{peaks['torchalgo'] / peaks['eager']:.2f}" if peaks.get("eager") else "-",
            f"{record['plan_s']:.0f}", gain_of_stages(record),
        ])  # fmt: skip
    titles = [
        "network", "ISA", "batch", "threads", "step, ms", "eager / ours",
        "PyTorch's best in f32 / ours", "PyTorch's best in bf16 / ours",
        "worst gradient error, ours / PyTorch's", "peak memory / PyTorch's", "planned in s",
        "gain over the staged plan",
    ]  # fmt: skip
    print("\n".join(table(titles, rows)))


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "training.jsonl", can_resume=True)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--threads", type=harness.count, default=2, help="of each peer")
    parser.add_argument("--batch", type=harness.count, default=8)
    parser.add_argument("--size", type=harness.count, default=224, help="of the square images")
    parser.add_argument("--rounds", type=harness.count, default=10)
    parser.add_argument("--tune-s", type=harness.seconds, default=120.0, help="seconds of tuning")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--autocast", action="store_true", help="plan for torch.autocast in bf16")
    parser.add_argument(
        "--split", action="store_true", help="compare with plans of simpler choices"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, small images, one peer")
    parser.add_argument("--table", action="store_true", help="print a table, measure nothing")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    if args.table:
        for autocast in (False, True):
            print_table(args.out, autocast=autocast)
        print_split(args.out.with_name(SPLIT))
        return 0
    if args.split:
        args.out = args.out.with_name(SPLIT)
    options = harness.settings_of(
        args, "threads", "batch", "size", "rounds", "tune_s", "peers", "split", "autocast"
    )
    same = {key: options[key] for key in ("threads", "batch", "size", "autocast")}
    outcome = harness.measure_each(
        run_one, {name: (name, options) for name in args.networks}, out=args.out, limit_s=LIMIT_S,
        env=harness.thread_env(args.threads), show=show,
        done=harness.done_before(args.out, "network", same) if args.resume else None,
    )  # fmt: skip
    return outcome.status


if __name__ == "__main__":
    harness.run_script(main)
