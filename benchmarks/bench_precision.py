# SPDX-License-Identifier: BSD-3-Clause
"""Compares plans in f32 and under max_error with OpenVINO, which runs bf16 by default.

    python benchmarks/bench_precision.py --threads 2
    python benchmarks/bench_precision.py --threads 2 --batch 8 --limit-minutes 50
    python benchmarks/bench_precision.py --only resnet50 mobilenet_v2 --again
    python benchmarks/bench_precision.py --only digits
    python benchmarks/bench_precision.py --table
    python benchmarks/bench_precision.py --predictions --size 96
    python benchmarks/bench_precision.py --predictions --table

On a processor with bf16, OpenVINO computes in bf16 unless it is told otherwise. The engines:
torchalgo in f32, torchalgo_error, which is torchalgo with --max-error, openvino and onnxruntime in
f32, and openvino_default and openvino_throughput, which have OpenVINO's own precision. The record
has the error of each against f64, and the error that the plan predicted. Weights are random. With
--statistics data, each batch norm has the mean and the variance of what it reads for some random
images. Then the errors of early layers grow on their way, more than in a trained network. With
drawn, the statistics are random, and errors are about those of trained networks.

The network digits is small and trained here, on images that scikit-learn ships: see digits.py. Its
record also has the accuracy and the errors of the plans on 360 images that training did not see.

Each network runs in a process of its own. In a round, each engine makes a call untimed, then
--inner timed ones. Takes about 5 minutes per network. Appends one JSON line per network to
benchmarks/results/precision.jsonl. A network that has a line of this machine with these settings,
of any commit, is skipped unless --again is given. --table prints the lines as a table in Markdown.

With --predictions, only the errors of plans are measured, for other networks and two bounds. Each
batch norm has the statistics of 32 crops of five photographs; see photographs.py. On a CPU without
instructions for it, layers in bf16 run as plain C++: see predicted_errors.py. Takes half a minute
per network. Writes to benchmarks/results/predicted_errors.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import digits
import engines
import harness
import predicted_errors
from bench_models import relative_error, sample, tuned, wall_us
from board_networks import SIDE, build, build_input
from compare import compared, rounded
from pages import OWN, table
from photographs import with_statistics
from torchalgo._ir.plan.text import coarse_type

NETWORKS = (
    "resnet18", "resnet50", "densenet121", "googlenet", "squeezenet1_1", "mobilenet_v2",
    "efficientnet_b0", "mnasnet1_0", "regnet_y_400mf", "vgg16",
)  # fmt: skip
DIGITS = "digits"  # is trained, and has images of its own
ERROR = "torchalgo_error"
OF_OPENVINO: dict[str, dict[str, Any]] = {
    "openvino": {},
    "openvino_default": {"INFERENCE_PRECISION_HINT": None},
    "openvino_throughput": {"INFERENCE_PRECISION_HINT": None, "PERFORMANCE_HINT": "THROUGHPUT"},
}
DEFAULTS = ("openvino_default", "openvino_throughput")
SETTINGS = ("batch", "size", "threads", "max_error", "statistics")  # what a line stands for
IMAGES = 16  # that the batch norms have seen
LIMIT_S = 1800.0  # of one network
RECORDS = harness.RESULTS / "precision.jsonl"


def openvino(model: nn.Module, x: Tensor, options: dict[str, Any]) -> tuple[engines.Run, str]:
    """Returns a call of OpenVINO, one request at a time, and its precision."""
    config = {**engines.openvino_config(), **options}
    if "PERFORMANCE_HINT" in options:
        del config["NUM_STREAMS"]  # the hint chooses them
    config = {name: value for name, value in config.items() if value is not None}
    compiled = engines.openvino_compiled(model, x, config)
    request, array = compiled.create_infer_request(), x.numpy()

    def run() -> Tensor:
        return torch.from_numpy(request.infer({0: array})[0])

    return run, str(compiled.get_property("INFERENCE_PRECISION_HINT")).split("'")[1]


def subject(name: str, options: harness.Record) -> tuple[nn.Module, Tensor, digits.Digits | None]:
    """Returns the network, its input, and the images that it was trained on, if it was."""
    if name == DIGITS:
        images = digits.read_digits()
        return digits.trained(images), images.held_out_images[: options["batch"]], images
    network = build(name)
    if options["statistics"] == "data":
        generator = torch.Generator().manual_seed(2)
        sizes = (IMAGES, 3, options["size"], options["size"])
        network = with_statistics(network, torch.randn(sizes, generator=generator))
    return network, build_input(name, options["size"], options["batch"]), None


def on_held_out(network: nn.Module, optimized: nn.Module, images: digits.Digits) -> Any:
    """Returns the accuracy on images that training did not see, and the errors of their outputs."""
    x, labels = images.held_out_images, images.held_out_labels
    exact, outputs = copy.deepcopy(network).double()(x.double()), optimized(x).double()
    single = (outputs - exact).norm(dim=1) / exact.norm(dim=1)
    return {
        "accuracy": digits.accuracy(outputs, labels),
        "accuracy_f64": digits.accuracy(exact, labels),
        "rel_error": float((outputs - exact).norm() / exact.norm()),
        "median_error": float(single.median()),
        "worst_error": float(single.max()),
    }


def run_one(name: str, options: harness.Record) -> harness.Record:
    """Returns the record of one network, measured in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    network, x, images = subject(name, options)
    built: dict[str, Any] = {}
    for own, bound in {OWN: 1e-5, ERROR: options["max_error"]}.items():
        make = lambda: copy.deepcopy(network)  # noqa: E731
        optimized, entry = tuned(make, x, options["tune_s"], max_error=bound, cost_db=False)
        plan = optimized.plan
        entry["predicted_error"] = plan.predicted_error
        entry["types"] = dict(Counter(coarse_type(n) or "f32" for n in plan.nodes if n.primitive))
        if images is not None:
            entry["held_out"] = on_held_out(network, optimized, images)
        built[own] = {"run": (lambda run: lambda: run(x))(optimized), "precision": "plan", **entry}
    built[OWN]["precision"] = "f32"
    for engine, of_openvino in OF_OPENVINO.items():
        run, precision = openvino(copy.deepcopy(network), x, of_openvino)
        built[engine] = {
            "run": run,
            "precision": precision,
            "version": engines.peer_version("openvino"),
        }
    built["onnxruntime"] = {
        "run": engines.onnxruntime(copy.deepcopy(network), x),
        "precision": "f32",
        "version": engines.peer_version("onnxruntime"),
    }
    for name_of, engine in built.items():
        if name_of != "onnxruntime":
            engine["rel_error"] = relative_error(network, x, engine["run"])
    taken = sample(built, options["rounds"], options["inner"], options["budget"])
    record: harness.Record = {
        **head_of(name, options),
        "tune_s": options["tune_s"],
        "engines": {n: {k: v for k, v in e.items() if k != "run"} for n, e in built.items()},
        "wall_us": wall_us(taken),
    }
    record["ratios"] = {
        f"{peer} over {ERROR}": rounded(ratio)
        for peer in (OWN, *OF_OPENVINO, "onnxruntime")
        if (ratio := compared(record, peer, ERROR)) is not None
    }
    return record


def head_of(name: str, options: harness.Record) -> harness.Record:
    """Returns the fields of a record that are known before the network runs."""
    trained = {"statistics": "trained", "size": digits.SIDE} if name == DIGITS else {}
    return {
        "schema": 1, "benchmark": "precision", "network": name,
        **{key: options[key] for key in (*SETTINGS, "machine")}, **trained,
        "git": harness.git_state(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def key_of(line: harness.Record) -> Any:
    """Returns what a line stands for; it does not depend on the commit."""
    return (
        *(line[name] for name in ("network", *SETTINGS)),
        line["machine"]["cpu"],
        line["machine"]["isa"],
        harness.bf16_of(line),
    )


def default_of(line: harness.Record) -> str:
    """Returns the faster of OpenVINO's hints in its own precision."""
    return min(DEFAULTS, key=lambda name: statistics.median(line["wall_us"][name]))


def cells_of(line: harness.Record) -> list[str]:
    """Returns the cells of a network's row."""
    own, found = line["engines"][ERROR], line["ratios"]

    def over(peer: str) -> str:
        ratio, low, high = found[f"{peer} over {ERROR}"]
        return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"

    best = default_of(line)
    predicted = own["predicted_error"]
    return [
        line["network"],
        harness.bf16_of(line),
        line["statistics"],
        str(line["batch"]),
        f"{statistics.median(line['wall_us'][ERROR]) / 1000:.2f}",
        over(OWN),
        over("openvino"),
        over("onnxruntime"),
        f"{over(best)} {line['engines'][best]['precision']}",
        f"{own['rel_error']:.1e}",
        "" if predicted is None else f"{predicted:.1e}",
        f"{line['engines'][best]['rel_error']:.1e}",
    ]


HEAD = (
    "network", "bf16 by", "statistics", "batch", "ms", "over our f32", "over OpenVINO in f32",
    "over ONNX Runtime in f32", "over OpenVINO's default", "error", "predicted", "OpenVINO's error",
)  # fmt: skip


def show(line: harness.Record) -> None:
    """Prints a line per network."""
    if "failure" in line:
        print(f"{line['network']}: {line['failure']}", flush=True)
        return
    print(", ".join(f"{n} {c}" for n, c in zip(HEAD, cells_of(line), strict=True)), flush=True)
    for name, engine in line["engines"].items():
        if found := engine.get("held_out"):
            print(f"  {name} on images it has not seen: {found}", flush=True)


def kind_of(line: harness.Record) -> tuple[str, int, str]:
    """Returns what the networks of one mean have in common."""
    return harness.bf16_of(line), line["batch"], line["statistics"]


def summary(lines: list[harness.Record]) -> str:
    """Returns the geometric means of the ratios, by batch."""
    texts = []
    for kind in sorted({kind_of(line) for line in lines}):
        isa, batch, statistics_of = kind
        own = [line for line in lines if kind_of(line) == kind]
        for title, peer_of in (("our f32", lambda _: OWN), ("OpenVINO's default", default_of)):
            ratios = [line["ratios"][f"{peer_of(line)} over {ERROR}"][0] for line in own]
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            what = f"bf16 by {isa}, batch {batch}, statistics {statistics_of}"
            texts.append(f"{what}, {len(own)} networks: {mean:.2f} over {title}")
    return "\n".join(texts)


def measure(args: argparse.Namespace, options: harness.Record) -> int:
    """Measures the networks without a line, or all with --again. Returns the exit status."""
    known = [] if args.again else [n for n in harness.read_lines(args.out) if "failure" not in n]
    done = {key_of(line) for line in known}
    todo = [name for name in args.only if key_of(head_of(name, options)) not in done]
    print(
        f"{len(args.only) - len(todo)} of {len(args.only)} networks are in {args.out}", flush=True
    )
    return harness.record_networks(
        todo, run_one, head_of, options, args.out, show,
        env=harness.thread_env(args.threads), limit_s=LIMIT_S, limit_minutes=args.limit_minutes,
    )  # fmt: skip


def predict(args: argparse.Namespace) -> int:
    """Measures the errors of plans beside the predicted ones. Returns the exit status."""
    path = predicted_errors.RECORDS if args.out == RECORDS else args.out
    if args.table:
        lines = [n for n in harness.read_lines(path) if "failure" not in n]
        latest = list({n["network"]: n for n in lines}.values())
        rows = [row for line in latest for row in predicted_errors.rows_of(line)]
        print("\n".join(table(predicted_errors.HEAD, rows)))
        print(predicted_errors.summary(latest))
        return 0
    options = harness.settings_of(args, "threads", "size", "batch", "bounds")
    names = args.only or predicted_errors.NETWORKS
    known = {} if args.again else {n["network"]: n for n in harness.read_lines(path)}
    todo = [name for name in names if "bounds" not in known.get(name, {})]
    return harness.record_networks(
        todo, predicted_errors.run_one, predicted_errors.head_of, options, path,
        predicted_errors.show, env=harness.thread_env(args.threads), limit_s=LIMIT_S,
        limit_minutes=args.limit_minutes,
    )  # fmt: skip


def main() -> int:
    parser = harness.make_parser(__doc__, RECORDS)
    parser.add_argument("--threads", type=harness.count, default=2, help="of each engine")
    parser.add_argument("--size", type=harness.count, default=SIDE, help="side of the images")
    parser.add_argument("--batch", type=harness.count, default=1, help="images per run")
    parser.add_argument("--max-error", type=harness.seconds, default=1e-2, help="as in optimize")
    parser.add_argument("--statistics", choices=["data", "drawn"], default="drawn")
    parser.add_argument("--predictions", action="store_true", help="measure errors alone")
    parser.add_argument("--bounds", nargs="+", type=harness.seconds, default=[1e-2, 5e-2],
                        help="max_error of the plans of --predictions")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", help="instead of all networks")
    parser.add_argument("--again", action="store_true", help="measure what has a line, too")
    parser.add_argument("--table", action="store_true", help="print the last lines and end")
    parser.add_argument("--limit-minutes", type=harness.seconds, default=float("inf"))
    parser.add_argument("--tune-s", type=harness.seconds, default=60.0, help="for each plan")
    parser.add_argument("--rounds", type=harness.count, default=25)
    parser.add_argument("--inner", type=harness.count, default=3, help="calls per engine and round")
    parser.add_argument("--budget", type=harness.seconds, default=45.0, help="seconds of rounds")
    args = parser.parse_args()
    if args.predictions:
        return predict(args)
    args.only = args.only or NETWORKS
    if args.table:
        lines = {key_of(n): n for n in harness.read_lines(args.out) if "failure" not in n}
        print("\n".join(table(HEAD, map(cells_of, lines.values()))))
        print(summary(list(lines.values())))
        return 0
    options = harness.settings_of(
        args, "threads", "size", "batch", "max_error", "statistics", "rounds", "inner", "budget",
        "tune_s",
    )  # fmt: skip
    return measure(args, {**options, "machine": engines.machine()})


if __name__ == "__main__":
    harness.run_script(main)
