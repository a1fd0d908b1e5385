# SPDX-License-Identifier: BSD-3-Clause
"""Checks the gradients and the loss curves of optimize_training, beside those of PyTorch.

    python benchmarks/check_training.py                       # both parts, all networks
    python benchmarks/check_training.py vgg16 --parts gradients
    python benchmarks/check_training.py --table               # prints tables of the last records
    python benchmarks/check_training.py resnet18 --quick      # to see that it works: a minute

`gradients` compares the gradient of each parameter with that in f64, as relative L2 over all
batches. The goal for each parameter: at most 1e-4, or three times the error of PyTorch's eager
mode. ReLU and max pooling round nothing, but they decide. A value that differs in its last digits
may be decided otherwise, and then a gradient has another value. So there are two variants. `given`
is the network itself. `smooth` has no decisions: ReLU is left out, average pooling replaces max
pooling, and SiLU and sigmoid replace their piecewise relatives. Two more runs show what decisions
do: they compute in f64, with noise of 1e-7 or 1e-6 of its L2 added to the result of each
convolution.

`curves` trains with SGD, with the plan and with eight eager runs that differ only in rounding. The
curve of the plan must lie among those. benchmarks/loss_curves.py has the exact goals.

Takes 1 to 4 minutes per network and part. Appends one JSON line for each to
benchmarks/results/training_quality.jsonl.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torchvision.ops import StochasticDepth

import bench_training
import engines
import harness
import torchalgo
from loss_curves import EAGER, PLANNED, images_of, judge, train
from networks import CLASSIFIERS
from pages import table

LIMIT_S = 1800.0  # of one network in one part
OPTIONS: dict[str, harness.Record] = {
    "gradients": {"batch": 4, "size": 128, "batches": 2},
    "curves": {"batch": 8, "size": 64, "steps": 200},
}
QUICK: dict[str, harness.Record] = {
    "gradients": {"batch": 2, "size": 96, "batches": 1, "tune_s": 10.0},
    "curves": {"batch": 4, "size": 32, "steps": 30, "tune_s": 10.0},
}
NETWORKS = {
    "gradients": CLASSIFIERS,
    "curves": ("resnet18", "vgg11", "mobilenet_v2", "densenet121", "unet"),
}
VARIANTS = ("given", "smooth")
NOISES = {"f64+1e-7": 1e-7, "f64+1e-6": 1e-6}
LEAST, TIMES = 1e-4, 3.0  # the goal for a gradient


# ---- networks ------------------------------------------------------------------------------------

_RELUS = (functional.relu, torch.relu, "relu", "relu_")
_SMOOTH: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.ReLU: lambda _: nn.Identity(),
    nn.ReLU6: lambda _: nn.Identity(),
    nn.Hardswish: lambda _: nn.SiLU(),
    nn.Hardsigmoid: lambda _: nn.Sigmoid(),
    nn.MaxPool2d: lambda m: nn.AvgPool2d(m.kernel_size, m.stride, m.padding, m.ceil_mode),
}


def network_of(name: str) -> nn.Module:
    """Returns a network in train mode, without random layers.

    VGG-11 has a small head: most time of a step would be spent in its linear layers.
    """
    network = bench_training.network_of(name)
    for module in network.modules():
        if isinstance(module, StochasticDepth):
            module.p = 0.0
    if name.startswith("vgg11"):
        network.avgpool = nn.AdaptiveAvgPool2d(1)
        network.classifier = nn.Linear(512, bench_training.CLASSES)
    return network


def smooth(network: nn.Module) -> nn.Module:
    """Returns the network without operations that decide."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) in _SMOOTH:
                setattr(module, name, _SMOOTH[type(child)](child))
    traced = fx.symbolic_trace(network)
    for node in list(traced.graph.nodes):
        if node.op in ("call_function", "call_method") and node.target in _RELUS:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
        elif node.target is functional.max_pool2d:
            others = ("dilation", "return_indices")  # of max pooling only
            node.kwargs = {k: v for k, v in node.kwargs.items() if k not in others}
            node.target = functional.avg_pool2d
    traced.recompile()
    return traced


def plan_of(
    network: nn.Module, x: Tensor, options: harness.Record
) -> tuple[Any, dict[str, dict[str, int]]]:
    """Returns the planned network, and how often its plans have each primitive."""
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    planned: Any = torchalgo.optimize_training(
        network, (x,), budget_s=options["tune_s"],
        max_error=options["max_rel_error"], settings=settings,
    )  # fmt: skip
    counts: dict[str, dict[str, int]] = {"fwd": {}, "bwd_data": {}, "bwd_filter": {}}
    for node in (node for plan in planned.plan.regions for node in plan.nodes):
        of_kind = counts.get(node.problem.partition("_f32")[0])
        if of_kind is not None:
            algorithm = node.primitive.partition("{")[0]
            of_kind[algorithm] = of_kind.get(algorithm, 0) + 1
    return planned, counts


# ---- gradients -----------------------------------------------------------------------------------


class Difference:
    """Sums the squares of differences to f64 over batches, for each tensor of a pass."""

    def __init__(self) -> None:
        self._off: collections.Counter[str] = collections.Counter()
        self._all: collections.Counter[str] = collections.Counter()

    def add(self, found: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
        for name, value in exact.items():
            self._off[name] += float((found[name].double() - value).square().sum())  # type: ignore[assignment]
            self._all[name] += float(value.square().sum())  # type: ignore[assignment]

    def relative(self, name: str) -> float:
        return math.sqrt(self._off[name] / self._all[name])

    def gradients(self) -> dict[str, float]:
        """Returns the relative L2 of each gradient.

        Leaves out gradients that are zero but for rounding, such as that of a bias before a batch
        norm.
        """
        of_parameters = [name for name in self._all if name not in ("loss", "result")]
        most = max(self._all[name] for name in of_parameters)
        return {n: self.relative(n) for n in of_parameters if self._all[n] > 1e-18 * most}

    def whole(self) -> float:
        """Returns the relative L2 of all gradients as one vector."""
        names = self.gradients()
        return math.sqrt(sum(self._off[n] for n in names) / sum(self._all[n] for n in names))


def one_pass(model: nn.Module, run: Callable[..., Any], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Returns the loss, the result and the gradients of a pass, by their names."""
    model.zero_grad(set_to_none=True)
    result = run(x)
    loss = functional.cross_entropy(result, y)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"loss": loss.detach(), "result": result.detach(), **found}


@contextlib.contextmanager
def noise(model: nn.Module, size: float) -> Iterator[None]:
    """Adds noise to the results of convolutions: `size` in parts of their L2."""
    generator = torch.Generator().manual_seed(3)

    def disturb(_: nn.Module, __: Any, y: Tensor) -> Tensor:
        values = torch.randn(y.shape, generator=generator, dtype=y.dtype)
        return y + values * (size * y.detach().square().mean().sqrt())

    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    hooks = [m.register_forward_hook(disturb) for m in convolutions]
    yield
    for hook in hooks:
        hook.remove()


def summary(errors: dict[str, float]) -> harness.Record:
    """Returns the median, the 90th percentile and the worst of the errors."""
    names = sorted(errors, key=lambda name: errors[name])
    values = [errors[name] for name in names]
    shown = {
        "median": statistics.median(values),
        "p90": values[math.ceil(0.9 * len(values)) - 1],
        "worst": values[-1],
    }
    return {**{k: float(f"{v:.3g}") for k, v in shown.items()}, "worst_at": names[-1]}


def compare_gradients(network: nn.Module, options: harness.Record) -> harness.Record:
    """Compares gradients of several runs of one network with those in f64."""
    shape = (options["batch"], 3, options["size"], options["size"])
    batches = []
    for seed in range(options["batches"]):
        torch.manual_seed(seed + 1)
        batches.append((torch.randn(shape), torch.randint(0, bench_training.CLASSES, shape[:1])))
    exact = copy.deepcopy(network).double()
    plain, last = copy.deepcopy(network), copy.deepcopy(network)
    last = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    planned, primitives = plan_of(network, batches[0][0], options)
    found = {n: Difference() for n in ("planned", "eager", "channels_last", *NOISES)}
    for x, y in batches:
        wanted = one_pass(exact, exact, x.double(), y)
        found["planned"].add(one_pass(network, planned, x, y), wanted)
        found["eager"].add(one_pass(plain, plain, x, y), wanted)
        in_last = x.contiguous(memory_format=torch.channels_last)
        found["channels_last"].add(one_pass(last, last, in_last, y), wanted)
        for name, size in NOISES.items():
            with noise(exact, size):
                found[name].add(one_pass(exact, exact, x.double(), y), wanted)
    return {
        **judge_gradients(found),
        "runs": {"planned": planned.planned_runs, "other": planned.original_runs.total()},
        "primitives": primitives,
    }


def misses(found: dict[str, Difference], run: str) -> list[str]:
    """Returns the gradients of a run that miss the goal, the farthest first."""
    own, eager = found[run].gradients(), found["eager"].gradients()
    missed = [name for name in own if own[name] > max(LEAST, TIMES * eager[name])]
    return sorted(missed, key=lambda name: -own[name] / eager[name])


def judge_gradients(found: dict[str, Difference]) -> harness.Record:
    """Returns the errors of each run, and how many gradients miss the goal.

    PyTorch in channels_last is judged too: it shows how often the goal is missed by chance.
    """
    ours, eager = found["planned"].gradients(), found["eager"].gradients()
    worst = misses(found, "planned")[:5]

    def of_each(value: Callable[[Difference], float]) -> dict[str, float]:
        return {name: float(f"{value(each):.3g}") for name, each in found.items()}

    return {
        "parameters": len(ours),
        "missed": {run: len(misses(found, run)) for run in found if run != "eager"},
        "missed_most": {n: [float(f"{e[n]:.3g}") for e in (ours, eager)] for n in worst},
        "gradients": {name: summary(each.gradients()) for name, each in found.items()},
        "whole": of_each(Difference.whole),
        "loss": of_each(lambda each: each.relative("loss")),
        "result": of_each(lambda each: each.relative("result")),
    }


def run_gradients(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    made = {"given": network_of(name), "smooth": smooth(network_of(name))}
    return {**head(name, options), **{v: compare_gradients(made[v], options) for v in VARIANTS}}


# ---- curves --------------------------------------------------------------------------------------


def run_curves(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    options = {**options, "classes": 2 if name == "unet" else 8}
    network = network_of(name)
    start = copy.deepcopy(network.state_dict())
    planned, primitives = plan_of(network, images_of(0, options)[0], options)
    losses = {}
    for run in (*PLANNED, *EAGER):
        # Eager runs have modules of their own: these may be in channels_last.
        model: Any = planned if run in PLANNED else network_of(name)
        model.load_state_dict(start)
        if run == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        losses[run] = train(model, options, run)
    return {
        **head(name, options),
        **judge(losses),
        "runs": {"planned": planned.planned_runs, "other": planned.original_runs.total()},
        "primitives": primitives,
    }


# ---- records -------------------------------------------------------------------------------------


def head(name: str, options: harness.Record) -> harness.Record:
    return {
        "schema": 1,
        "benchmark": "training_quality",
        "network": name,
        **options,
        "machine": engines.machine(),
    }


def show(record: harness.Record) -> None:
    """Prints one line per record."""
    if record["part"] == "gradients":
        for variant in VARIANTS:
            each = record[variant]
            worst = {run: of["worst"] for run, of in each["gradients"].items()}
            missed = each["missed"]["planned"]
            print(f"{record['network']}, {variant}: missed {missed}, worst {worst}", flush=True)
    else:
        far = record["distance"]["planned"]
        print(f"{record['network']}: met {record['met']}, distance {far:.2g}", flush=True)


def last_records(path: Path, part: str) -> list[harness.Record]:
    """Returns the last record of each network with each setting."""
    found = {}
    for line in harness.read_lines(path):
        if line["part"] == part:
            settings = (line[key] for key in ("network", "max_rel_error", *OPTIONS[part]))
            found[tuple(settings)] = line
    return list(found.values())


def gradient_rows(record: harness.Record) -> Iterator[list[str]]:
    for variant in VARIANTS:
        each = record[variant]
        of = each["gradients"]
        yield [
            record["network"], variant, f"{record['max_rel_error']:.0e}",
            *(" / ".join(f"{of[r][key]:.0e}" for r in ("planned", "eager", "channels_last"))
              for key in ("median", "p90", "worst")),
            " / ".join(f"{of[run]['median']:.0e}" for run in NOISES),
            f"{each['result']['planned']:.0e} / {each['result']['eager']:.0e}",
            f"{each['loss']['planned']:.0e} / {each['loss']['eager']:.0e}",
            f"{each['missed']['planned']} / {each['missed']['channels_last']}"
            f" of {each['parameters']}",
        ]  # fmt: skip


def curve_row(record: harness.Record) -> list[str]:
    far, final, within = record["distance"], record["final"], record["inside"]
    ends, parts = [final[run] for run in EAGER], [far[run] for run in EAGER]
    low, high = record["final_interval"]
    return [
        record["network"], f"{record['first_loss']:.2f}",
        " / ".join(f"{final[run]:.3f}" for run in PLANNED),
        f"{min(ends):.3f} to {max(ends):.3f} ({low:.3f} to {high:.3f})",
        " / ".join(f"{far[run]:.1e}" for run in PLANNED),
        f"{min(parts):.1e} to {max(parts):.1e} ({record['distance_bound']:.1e})",
        f"{within['planned']:.0%} / {statistics.fmean(within[run] for run in EAGER):.0%}",
        "yes" if all(record["met"].values()) else "no",
    ]  # fmt: skip


def print_tables(path: Path) -> None:
    runs = "ours / eager / channels_last"
    titles = [
        "network", "variant", "bound of a primitive", f"median, {runs}", f"90 %, {runs}",
        f"worst, {runs}", f"median, {' / '.join(NOISES)}", "result, ours / eager",
        "loss, ours / eager", "gradients above the goal, ours / channels_last",
    ]  # fmt: skip
    rows = [row for each in last_records(path, "gradients") for row in gradient_rows(each)]
    print("\n".join(table(titles, rows)), end="\n\n")
    titles = [
        "network", "first loss", "final loss of three planned runs", "eager (99 % interval)",
        "distance of three planned runs", "eager (99 % bound)", "inside, ours / eager", "goals met",
    ]  # fmt: skip
    print("\n".join(table(titles, map(curve_row, last_records(path, "curves")))))


def main() -> int:
    """Each network and part in a fresh process; its record is appended to --out."""
    out = harness.RESULTS / "training_quality.jsonl"
    parser = harness.make_parser(__doc__, out, can_resume=True)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="those of each part")
    parser.add_argument("--parts", nargs="*", choices=list(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--threads", type=harness.count, default=2)
    parser.add_argument("--batch", type=harness.count, help="4 for gradients, 8 for curves")
    parser.add_argument("--size", type=harness.count, help="128 for gradients, 64 for curves")
    parser.add_argument("--steps", type=harness.count, help="of a curve: 200")
    parser.add_argument("--tune-s", type=harness.seconds, default=120.0, help="seconds of tuning")
    parser.add_argument(
        "--max-error", dest="max_rel_error", type=float, default=1e-5, help="as in optimize"
    )
    parser.add_argument("--quick", action="store_true", help="small images, few steps")
    parser.add_argument("--table", action="store_true", help="print tables, measure nothing")
    args = parser.parse_args()
    if args.table:
        print_tables(args.out)
        return 0
    status = 0
    for part in args.parts:
        options = {
            "part": part, **OPTIONS[part],
            **harness.settings_of(args, "threads", "tune_s", "max_rel_error"),
            **(QUICK[part] if args.quick else {}),
        }  # fmt: skip
        given = {key: value for key, value in vars(args).items() if value is not None}
        options |= {key: given[key] for key in OPTIONS[part] if key in given}
        same = {key: value for key, value in options.items() if key != "tune_s"}
        outcome = harness.measure_each(
            run_gradients if part == "gradients" else run_curves,
            {name: (name, options) for name in args.networks or NETWORKS[part]},
            out=args.out, limit_s=LIMIT_S, env=harness.thread_env(args.threads), show=show,
            done=harness.done_before(args.out, "network", same) if args.resume else None,
        )  # fmt: skip
        status |= outcome.status
    return status


if __name__ == "__main__":
    harness.run_script(main)
