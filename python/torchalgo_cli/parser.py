# SPDX-License-Identifier: BSD-3-Clause
"""Defines the arguments of every command.

The lists of words here equal those of the package torchalgo; a test compares them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchalgo_cli import arguments, completion
from torchalgo_cli.arguments import EXIT_CODES, LINT_EXIT_CODES, Parser
from torchalgo_cli.db_parser import add_db
from torchalgo_cli.install import torchalgo_version

MODES = ("tune", "predict")
MAX_ERROR = 1e-5
OBJECTIVES = ("latency", "energy")
DIRECTIONS = ("forward", "backward_data", "backward_filter", "fwd", "bwd_data", "bwd_filter")
DTYPES = ("f64", "f32", "tf32", "f16", "bf16")
PROBLEM = "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"
RESNET = "torchvision.models:resnet18 --input 1x3x224x224"


def build_parser() -> Parser:
    """Returns the parser of `torchalgo`. It sets `command`, and for `db` also `verb`."""
    parser = Parser(
        prog="torchalgo",
        description="Chooses the fastest convolution algorithm and memory layout for every layer"
        " of a\nPyTorch model. `torchalgo COMMAND --help` explains a command.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"torchalgo {torchalgo_version()}",
        help="print the version and exit",
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for add in (
        _add_optimize, _add_tune, _add_pareto, _add_candidates, _add_profile, _add_lint,
        _add_explain, _add_diff, _add_others,
    ):  # fmt: skip
        add(commands)
    add_db(commands)
    return parser


def _add_command(commands: Any, name: str, text: str, more: str = "", example: str = "") -> Any:
    command = arguments.add_parser(
        commands, name, text, more, example and f"torchalgo {name} {example}"
    )
    command.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    command.add_argument(
        "--threads", type=arguments.thread_count, metavar="N",
        help="number of CPU threads of PyTorch (default: PyTorch's own)",
    )  # fmt: skip
    return command


def _add_optimize(commands: Any) -> None:
    command = _add_command(
        commands, "optimize", "choose the fastest algorithms for a model and save the result",
        "Measures the candidates on this machine, computes the cheapest plan, compares it with"
        " PyTorch, and writes a file that runs the plan. The inputs are random.",
        f"{RESNET} -o resnet18.pt2",
    )  # fmt: skip
    add_model(command, may_have_shapes=True)
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="the file to write: .pt2 for torch.export, .pt for TorchScript; required without"
        " --training",
    )  # fmt: skip
    command.add_argument(
        "--training", action="store_true",
        help="plan a training step: the forward pass and the gradients; prints the plan and"
        " writes it to --plan-out. Goes with --input, --plan, --override, --budget, --run-untimed,"
        " --cost-db, --fresh, --max-error, --memory-limit and --json",
    )  # fmt: skip
    command.add_argument(
        "--memory-limit", type=arguments.byte_count, metavar="BYTES",
        help="with --training: the most bytes that the forward pass keeps for the gradients"
        " (default: no limit); units: kB, MB, GB",
    )  # fmt: skip
    command.add_argument(
        "--portable", action="store_true",
        help="write the frozen model without the plan; this file loads without torchalgo",
    )  # fmt: skip
    command.add_argument(
        "--plan", type=Path, metavar="FILE",
        help="apply the plans of this plan file or saved module; nothing is measured",
    )  # fmt: skip
    command.add_argument(
        "--plan-out", type=Path, metavar="FILE", help="also write the plans to this JSON file"
    )
    command.add_argument(
        "--report", type=Path, metavar="FILE",
        help="also write a report of the plans; the format follows from .html, .txt or .json",
    )  # fmt: skip
    _add_objective(command)
    _add_tuning(command)
    command.add_argument(
        "--timings", action="store_true", help="print the seconds of each step on stderr"
    )


def _add_tune(commands: Any) -> None:
    command = _add_command(
        commands, "tune", "tune one model with several processes that torchrun starts",
        "Each process is one rank. Ranks with cores or a GPU of their own measure parts of the"
        " candidates. All ranks end with the same plan or with the same error.",
    )  # fmt: skip
    command.epilog = (
        "example:\n  torchrun --nproc-per-node 2 -m torchalgo tune torchvision.models:resnet18 \\\n"
        "      --input 1x3x224x224 --plan-out resnet18.plan.json --pin\n\n" + EXIT_CODES
    )
    add_model(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the .pt file that rank 0 writes"
    )
    command.add_argument(
        "--plan-out", type=Path, metavar="FILE", help="the JSON file of the plan that rank 0 writes"
    )
    command.add_argument(
        "--pin", action="store_true",
        help="give each rank of a host its own part of the cores, and as many threads; without"
        " this flag, only the first of the ranks that share cores measures",
    )  # fmt: skip
    _add_tuning(command)
    command.add_argument(
        "--timeout", type=arguments.seconds, default=600.0, metavar="S",
        help="fail if a rank lets the others wait for S seconds (default 600)",
    )  # fmt: skip


def _add_pareto(commands: Any) -> None:
    command = _add_command(
        commands, "pareto", "list the plans of a model that trade time for memory or error",
        "Optimizes the model, then prints its Pareto front: plans for which no faster plan takes"
        " as little memory, or has outputs with as small an error. Times are predicted.",
        f"{RESNET} --over weights",
    )  # fmt: skip
    add_model(command)
    command.add_argument(
        "--over", choices=("workspace", "weights", "error"), default="workspace",
        help="what time is traded for: the largest workspace of a primitive (default), the sum of"
        " all packed weights, or the error of the outputs, with layers in bf16 or with 16-bit"
        " weights",
    )  # fmt: skip
    command.add_argument(
        "--max-points", type=arguments.positive, default=32, metavar="N",
        help="the most points of a front of weights or error (default 32); a front of workspace has"
        " all",
    )  # fmt: skip
    command.add_argument(
        "--plans", type=Path, metavar="FOLDER", help="write the plan of each point to this folder"
    )
    _add_tuning(command)


def _add_candidates(commands: Any) -> None:
    command = _add_command(
        commands, "candidates", "list the primitives that can run a layer; run none",
        "Prints the layouts of source and result, the workspace, and the packed weights (+). Then"
        " it prints the reason why each other algorithm refuses the layer.",
        PROBLEM,
    )  # fmt: skip
    _add_target(command)
    command.add_argument(
        "--device", help="cpu (default), cuda, or the name of a GPU, such as h100, also without one"
    )
    command.add_argument(
        "--direction",
        choices=(*DIRECTIONS, "all"),
        help="list the convolutions alone, in this direction (default: the direction of the"
        " problem; for a model, every layer forward with the steps that can be fused to it)",
    )
    _add_max_error(
        command, "that of `torchalgo optimize`; from 1e-3 on, primitives in bf16 and f16 are listed"
    )
    command.add_argument(
        "--verbose", action="store_true",
        help="list every candidate and every refusal, also of a long list",
    )  # fmt: skip


def _add_profile(commands: Any) -> None:
    command = _add_command(
        commands, "profile", "time and check every algorithm of a model's convolutions",
        "Prints one table per distinct convolution and direction, the fastest algorithm first. The"
        " times are medians in us; +- is half of the median's 95 % interval, or half of the range"
        " of fewer than 4 samples. The column `memory` is the workspace. The column `determ.` says"
        " whether equal inputs always give equal bits.",
        f"{PROBLEM} --direction forward",
    )  # fmt: skip
    _add_target(command)
    command.add_argument("--device", help="cpu or cuda, the device to run on (default: cpu)")
    command.add_argument(
        "--direction", action="append", choices=(*DIRECTIONS, "all"), default=[],
        help="the direction to time; may be repeated (default: all three)",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=arguments.seconds, default=2.0, metavar="S",
        help="seconds for each convolution and direction (default 2)",
    )  # fmt: skip
    command.add_argument(
        "--no-check", action="store_true", help="do not compare the results with f64"
    )
    _add_max_error(
        command, "the largest relative L2 error of a result against f64; from 1e-3 on, algorithms"
        " in bf16 and f16 are timed too",
    )  # fmt: skip
    command.add_argument(
        "--runtime-compiled", action="store_true",
        help="on a GPU: also time engines that cuDNN compiles when they first run; each takes"
        " seconds, regardless of --budget",
    )  # fmt: skip


def _add_lint(commands: Any) -> None:
    command = _add_command(
        commands, "lint", "find faults of a model that cost time, before any tuning",
        "Runs the model on random inputs, in eval mode. Prints each fault with its layer, line,"
        " cost and fix. A fix is tried before it is printed: docs/lint.md explains each kind.",
    )  # fmt: skip
    command.epilog = f"example:\n  torchalgo lint {RESNET}\n\n{LINT_EXIT_CODES}"
    add_model(command)
    command.add_argument(
        "--budget", type=arguments.seconds, default=60.0, metavar="S",
        help="seconds for trying the fixes (default 60)",
    )  # fmt: skip
    _add_device(command)


def _add_explain(commands: Any) -> None:
    command = _add_command(
        commands, "explain", "print the plan of a file, or write a report of it",
        "Prints the plan as a table, which docs/guide.md explains. With -o, writes a report"
        " instead: docs/report.md. A model is optimized first, and its report has more to show. The"
        " flags of a tuning are for a model only.",
        "resnet18.pt -o report.html",
    )  # fmt: skip
    command.add_argument(
        "plan_or_model",
        metavar="source",
        help="a .plan.json, .pt2 or .pt file of torchalgo; or, with --input or --shapes, a model:"
        " a .pt2, .pt, .onnx or .prototxt file, or package.module:factory",
    )
    add_shapes(command, is_required=False)
    command.add_argument(
        "-o", "--output", dest="report", type=Path, metavar="FILE",
        help="the report to write; the format follows from .html, .txt or .json",
    )  # fmt: skip
    command.add_argument(
        "--over", choices=("workspace", "weights", "error"),
        help="of a model: also show its front of time and memory, or error, with at most 16 points",
    )  # fmt: skip
    command.add_argument(
        "--measure", type=arguments.seconds, nargs="?", const=60.0, metavar="S",
        help="of a model: also time the plans of simpler choices, for at most S seconds (60)",
    )  # fmt: skip
    _add_objective(command)
    _add_tuning(command)


def _add_diff(commands: Any) -> None:
    command = _add_command(
        commands, "diff", "compare the plans of two files",
        "Prints the operations for which two plans of one model differ, and what each choice"
        " costs. Plans are compared for each shape that both files have. With -o, also writes a"
        " page with this table and a report of each plan.",
        "before.plan.json after.plan.json -o diff.html",
    )  # fmt: skip
    for name in ("first", "second"):
        command.add_argument(name, type=Path, help="a .plan.json, .pt2 or .pt file of torchalgo")
    command.add_argument(
        "-o", "--output", dest="report", type=Path, metavar="FILE", help="the page: FILE.html"
    )


def _add_others(commands: Any) -> None:
    command = _add_command(
        commands, "bench", "time a model with its plan, or the primitives of one problem",
        "Times whole calls of a model: with its plan, and in PyTorch's own ways. Without --plan, it"
        " is planned first, which takes up to 90 s. With --training, times training steps with the"
        " plan, of the unchanged model, and of the model in channels_last. With --processes, times"
        " calls of several processes at once, as those of a server. For a problem, prints"
        " the time and the speed of each primitive on the CPU, for about 30 s. The weights are then"
        " not in the caches.",
        f"{RESNET} --plan resnet18.plan.json",
    )  # fmt: skip
    command.add_argument(
        "target",
        help="a model: a .pt2, .pt, .onnx or .prototxt file, or package.module:factory; or the text"
        f" of a problem, such as {PROBLEM}",
    )
    command.add_argument(
        "--input", action="append", default=[], type=arguments.shape, metavar="1x3x224x224",
        help="the shape of an input of the model; repeat it for each input",
    )  # fmt: skip
    command.add_argument(
        "--plan", type=Path, metavar="FILE",
        help="the plan of the model: a plan file or a saved module. Then no costs are measured",
    )  # fmt: skip
    command.add_argument(
        "--compile", action="store_true", help="also time torch.compile(model); not with --training"
    )
    command.add_argument(
        "--training", action="store_true",
        help="time steps of training; the model is package.module:factory",
    )  # fmt: skip
    command.add_argument(
        "--processes", type=arguments.positive, metavar="N",
        help="let N processes call the model at once, each with the threads of --threads; not with"
        " --training or --compile",
    )  # fmt: skip
    _add_device(command)
    command.add_argument(
        "--check", metavar="PRIMITIVE",
        help="of a problem: do not time, but compare the results of this primitive with f64",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=arguments.positive, default=15, metavar="N",
        help="samples of each primitive, call or step (default 15)",
    )  # fmt: skip
    _add_max_error(
        command, "the largest relative L2 error, as in `torchalgo optimize`; of a problem, it is"
        " that of --check, and from 1e-3 on, primitives in bf16 and f16 are timed too, with errors",
    )  # fmt: skip

    command = _add_command(
        commands, "check-outputs", "compare an optimized model with the original on your data",
        "Prints the largest relative L2 error of the outputs. Fails if it is too large.",
        "optimized.pt images.npy --original model.pt",
    )  # fmt: skip
    command.add_argument(
        "model",
        help="a .pt2 or .pt file of torchalgo, or an original model, which is optimized first",
    )
    command.add_argument(
        "data", type=Path,
        help="a file with one tensor, from torch.save (.pt) or numpy.save (.npy); its first"
        " dimension is the batch",
    )  # fmt: skip
    command.add_argument(
        "--original", metavar="MODEL",
        help="the original, a .pt2, .pt, .onnx or .prototxt file, or package.module:factory;"
        " required if `model` is a .pt2 or .pt file of torchalgo. It must have the same weights",
    )  # fmt: skip
    _add_max_error(command, "the largest relative L2 error")

    command = _add_command(
        commands, "check-plan", "check the proof in a plan file, without the planner",
        "The checker shares no code with the planner. docs/pbqp.md says what it proves.",
        "model.plan.json",
    )  # fmt: skip
    command.add_argument(
        "file", type=Path, help="a file that plan.with_proof().save(path) wrote in Python"
    )

    _add_command(
        commands, "demo", "optimize torchvision's ResNet-50 here and print the speed-up",
        "The weights are random. Writes resnet50.pt and resnet50.plan.json to this folder. Prints"
        " text also with --json.",
    )  # fmt: skip
    _add_command(
        commands, "doctor", "print versions, devices, the cost database, and what is missing",
        "It also runs where torchalgo cannot be imported, and names the wheel that fits.",
    )  # fmt: skip
    command = arguments.add_parser(
        commands, "completion", "print a script for the Tab key of a shell",
        "With the line of the example in ~/.bashrc, the Tab key completes commands, flags and"
        " files.",
        'eval "$(torchalgo completion bash)"',
    )  # fmt: skip
    command.add_argument("shell", choices=completion.SHELLS)


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the model runs (default cpu)",
    )


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target",
        help=f"the text of a problem, such as {PROBLEM}; or a model: a .pt2, .pt, .onnx or"
        " .prototxt file, or package.module:factory",
    )
    command.add_argument(
        "--input", action="append", default=[], type=arguments.shape, metavar="1x3x224x224",
        help="the shape of an input of the model; repeat it for each input",
    )  # fmt: skip
    command.add_argument(
        "--dtype", choices=DTYPES,
        help="replace the data type of the convolutions (default: keep it)",
    )  # fmt: skip
    _add_workspace_limit(command)


def _add_max_error(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument(
        "--max-error", type=arguments.bound, default=MAX_ERROR, metavar="E",
        help=f"{text} (default %(default)s)",
    )  # fmt: skip


def _add_workspace_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workspace-limit", type=arguments.byte_count, default=1 << 30, metavar="BYTES",
        help="exclude primitives that need more workspace (default 1 GiB); units: kB, MB, GB",
    )  # fmt: skip


def add_model(command: argparse.ArgumentParser, may_have_shapes: bool = False) -> None:
    command.add_argument(
        "model",
        help="a .pt2, .pt, .onnx or .prototxt file (net.prototxt:net.caffemodel), or"
        " package.module:factory, a Python function without arguments that returns a model with"
        " its weights",
    )
    add_shapes(command, may_have_shapes)


def add_shapes(
    command: argparse.ArgumentParser, may_have_shapes: bool = True, is_required: bool = True
) -> None:
    group = command.add_mutually_exclusive_group(required=is_required)
    group.add_argument(
        "--input", action="append", type=arguments.shape, metavar="1x3x224x224",
        help="the shape of an input; repeat it for each input",
    )  # fmt: skip
    if may_have_shapes:
        group.add_argument(
            "--shapes", action="append", type=arguments.shapes, metavar="1x3x224x224[,1x10]",
            help="the shapes of all inputs, separated by commas; repeat it to get several plans,"
            " one for each --shapes",
        )  # fmt: skip


def _add_objective(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--objective", choices=OBJECTIVES, default="latency",
        help="what the plan minimizes: time (latency, the default) or energy",
    )  # fmt: skip


def _add_tuning(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a tuning, which torchalgo._cli.tuning_flags reads."""
    _add_device(command)
    command.add_argument(
        "--override", action="append", default=[], type=arguments.override,
        metavar="GLOB=PRIMITIVE",
        help="fix the primitive of some layers, such as 'layer1.*=cpu.direct'; may be repeated, and"
        " later ones win; with --training 'layer1.*:backward_filter=aten.conv'",
    )  # fmt: skip
    command.add_argument(
        "--mode", choices=MODES, default="tune",
        help="tune: measure candidates (default); predict: measure none, and predict their costs"
        " from the database",
    )  # fmt: skip
    command.add_argument(
        "--runtime-compiled", action="store_true",
        help="on a GPU: also measure engines that cuDNN compiles when they first run",
    )  # fmt: skip
    command.add_argument(
        "--all-knobs", action="store_true",
        help="on a GPU: also measure knobs of cuDNN's engines that its heuristics do not propose"
        " first; takes several times as long, and gains about 3 %%",
    )  # fmt: skip
    command.add_argument(
        "--strict", action="store_true",
        help="fail if a primitive of the plan cannot run here (default: run PyTorch's instead)",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=arguments.seconds, metavar="S",
        help="seconds for the whole command; inf is no limit (default: 90 for each plan)",
    )  # fmt: skip
    command.add_argument(
        "--run-untimed", action="store_true",
        help="run the plan even if there was no time to compare it with PyTorch (default: the model"
        " runs without the plan)",
    )  # fmt: skip
    group = command.add_mutually_exclusive_group()
    arguments.add_cost_db(group)
    group.add_argument("--no-cost-db", action="store_true", help="use no cost database")
    command.add_argument(
        "--fresh", action="store_true",
        help="ignore what the database has for this model; measure again and replace it",
    )  # fmt: skip
    _add_max_error(
        command,
        "the largest relative L2 error of each convolution against f64, and of the outputs"
        " against the given model",
    )
    command.add_argument(
        "--max-componentwise-error", type=arguments.bound, metavar="E",
        help="the largest error of a single result beside a large value (default: no limit)",
    )  # fmt: skip
    command.add_argument(
        "--weight-limit", type=arguments.byte_count, metavar="BYTES",
        help="the most bytes of all packed weights together (default: no limit); units: kB, MB, GB",
    )  # fmt: skip
    _add_workspace_limit(command)
    command.add_argument("--quiet", action="store_true", help="print no progress on stderr")
