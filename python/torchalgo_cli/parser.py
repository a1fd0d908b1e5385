# SPDX-License-Identifier: BSD-3-Clause
"""Defines the arguments of every command.

A new command is one function here, one entry in COMMANDS, and a module torchalgo._cli.NAME with a
function `run(args)`, which returns the exit code.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from torchalgo_cli import arguments
from torchalgo_cli.arguments import Parser
from torchalgo_cli.install import torchalgo_version
from torchalgo_cli.setting_flags import add_settings

OBJECTIVES = ("latency", "energy")  # those of torchalgo; a test compares them
# The instruction sets of torchalgo.emit, the widest first. A test compares them with its own.
ISAS = ("amx", "avx512bf16", "avx512", "avx2", "default")
QUANTITIES = ("workspace", "weights", "error")
PROBLEM = "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"
FORMATS = "the format follows from .html, .txt, .csv, .trace.json or .json"
RESNET = "torchvision.models:resnet18 --input 1x3x224x224"
MODEL = (
    "a .pt2, .pt, .onnx or .prototxt file (net.prototxt:net.caffemodel), or package.module:factory"
)
EXIT_CODES = """exit codes:
  0    success
  1    an error, or a check that failed
  2    wrong arguments
  130  Ctrl-C; optimize still writes a plan if it had measured any cost"""
# The exit codes of linters: a script can tell a finding (1) from an error (2).
CHECK_EXIT_CODES = """exit codes:
  0    nothing found, or passed
  1    something found, or a check that failed
  2    an error, or wrong arguments
  130  Ctrl-C"""


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
    for add in COMMANDS:
        add(commands)
    return parser


# ---- commands ------------------------------------------------------------------------------------


def _optimize(commands: Any) -> None:
    command = _command(
        commands, "optimize", "choose the fastest algorithms for a model and save the result",
        "Measures the candidates on this machine, computes the cheapest plan, compares it with"
        " PyTorch, and writes a file that runs the plan. The inputs are random.",
        f"{RESNET} -o resnet18.pt2",
    )  # fmt: skip
    _add_model(command)
    _add_shapes(command, is_required=True)
    _add_file(
        command, "-o", "--output", "the file to write: .pt2 for torch.export, .pt for TorchScript;"
        " required without --training",
    )  # fmt: skip
    command.add_argument(
        "--training", action="store_true",
        help="plan a training step: the forward pass and the gradients; prints the plan and"
        " writes it to --plan-out",
    )  # fmt: skip
    command.add_argument(
        "--portable", action="store_true",
        help="write the frozen model without the plan; this file loads without torchalgo",
    )  # fmt: skip
    _add_file(
        command, "--plan", "apply the plans of this plan file or saved module; measure nothing"
    )
    _add_file(command, "--plan-out", "also write the plans to this JSON file")
    _add_file(command, "--report", f"also write a report; {FORMATS}")
    _add_device(command)
    _add_objective(command)
    _add_tuning(command)
    command.add_argument(
        "--timings", action="store_true", help="print the seconds of each step on stderr"
    )


def _explain(commands: Any) -> None:
    command = _command(
        commands, "explain", "print a plan, a front of plans, or candidates, or write a report",
        "Prints the plan of a file of torchalgo, or writes it with -o, --trace or --csv. A model is"
        " optimized first: its report has more to show. Of a problem, prints the primitives that"
        " can run it, with layouts, workspace and packed weights (+), and why the others cannot.",
        "resnet18.pt -o report.html",
    )  # fmt: skip
    command.add_argument(
        "source",
        help=f"a .plan.json, .pt2 or .pt file of torchalgo; a problem, such as {PROBLEM}; or, with"
        f" --input or --shapes, a model: {MODEL}",
    )
    _add_shapes(command)
    _add_file(
        command, "-o", "--output", f"the report to write; {FORMATS}", dest="report",
    )  # fmt: skip
    _add_file(
        command, "--trace", "write the times in the order of a call as a Chrome trace (JSON), which"
        " ui.perfetto.dev opens; - is stdout",
    )  # fmt: skip
    _add_file(command, "--csv", "write a line for each operation and layout change; - is stdout")
    command.add_argument(
        "--over", choices=QUANTITIES,
        help="of a model: print its Pareto front, or show it in the report: at most 16 plans for"
        " which no faster plan takes as little memory, or has outputs with as small an error",
    )  # fmt: skip
    command.add_argument(
        "--measure", type=arguments.seconds, nargs="?", const=60.0, metavar="S",
        help="of a model: also time the plans of simpler choices, for at most S seconds (60)",
    )  # fmt: skip
    command.add_argument(
        "--candidates", action="store_true",
        help="of a model: list the primitives that can run each layer; measure nothing",
    )  # fmt: skip
    _add_device(command, ": cpu or cuda; of candidates, also a GPU that is not here, such as h100")
    _add_objective(command)
    _add_tuning(command)


def _compare(commands: Any) -> None:
    command = _command(
        commands, "compare", "compare the plans of two files",
        "Prints the operations for which two plans of one model differ, and what each choice"
        " costs. Plans are compared for each shape that both files have. With -o, also writes a"
        " page with this table and a report of each plan. With --model, also times calls of the"
        " model with both plans, in turns.",
        "before.plan.json after.plan.json --model torchvision.models:resnet18 --fail-below 0.95",
    )  # fmt: skip
    for name in ("first", "second"):
        command.add_argument(name, type=Path, help="a .plan.json, .pt2 or .pt file of torchalgo")
    _add_file(command, "-o", "--output", "the page: FILE.html", dest="report")
    command.add_argument("--model", metavar="MODEL", help=f"the model to time: {MODEL}")
    command.add_argument(
        "--fail-below", type=arguments.bound, metavar="R",
        help="exit with 1 if the second plan is less than R times as fast as the first: if the 95%%"
        " interval of the measured ratio is below R",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=arguments.positive, default=50, metavar="N",
        help="calls with each plan (default 50)",
    )  # fmt: skip
    _add_device(command)


def _bench(commands: Any) -> None:
    command = _command(
        commands, "bench", "time a model with its plan, or each algorithm of a layer",
        "Times whole calls of a model: with its plan, and in PyTorch's own ways. Without --plan, it"
        " is planned first, which takes up to 90 s. With --training, times training steps with the"
        " plan, of the unchanged model, and of the model in channels_last. With --processes, times"
        " calls of several processes at once, as those of a server. Of a problem, or of a model"
        " with --layers, times and checks each algorithm, the fastest first. These times are"
        " medians in us; +- is half of the median's 95 % interval, or half of the range of fewer"
        " than 4 samples. The column `memory` is the workspace, and `determ.` says whether equal"
        " inputs always give equal bits. The weights are not in the caches.",
        f"{RESNET} --plan resnet18.plan.json",
    )  # fmt: skip
    command.add_argument("target", help=f"a model: {MODEL}; or a problem, such as {PROBLEM}")
    _add_input(command)
    _add_file(
        command, "--plan", "the plan of the model: a plan file or a saved module; then no costs are"
        " measured",
    )  # fmt: skip
    command.add_argument("--compile", action="store_true", help="also time torch.compile(model)")
    command.add_argument(
        "--training", action="store_true",
        help="time steps of training; the model is package.module:factory. With --layers, time the"
        " gradients too",
    )  # fmt: skip
    command.add_argument(
        "--processes", type=arguments.positive, metavar="N",
        help="let N processes call the model at once, each with the threads of --threads",
    )  # fmt: skip
    command.add_argument(
        "--layers", action="store_true", help="time each algorithm of the model's convolutions"
    )
    _add_device(command)
    command.add_argument(
        "--rounds", type=arguments.positive, default=15, metavar="N",
        help="samples of each kind of call or step (default 15)",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=arguments.seconds, default=2.0, metavar="S",
        help="of a problem or --layers: seconds for each problem (default 2)",
    )  # fmt: skip
    _add_max_error(command)


def _check(commands: Any) -> None:
    command = _command(
        commands, "check", "find faults of a model, or check outputs, an algorithm or a proof",
        "Of a model with --input, prints each fault that costs time, with its layer, line, cost and"
        " a fix that was tried: docs/lint.md. With DATA, compares the outputs of an optimized model"
        " with those of the original. Of a problem with --primitive, compares its results with f64."
        " Of a plan file, checks its proof with code that the planner does not share: docs/pbqp.md"
        " says what it proves.",
        f"{RESNET}\n  torchalgo check optimized.pt images.npy --original model.pt",
        CHECK_EXIT_CODES,
    )  # fmt: skip
    command.add_argument(
        "source",
        help=f"a model: {MODEL}; a .pt2 or .pt file of torchalgo; a problem, such as {PROBLEM}; or"
        " a file that plan.with_proof().save(path) wrote in Python",
    )
    command.add_argument(
        "data", type=Path, nargs="?",
        help="a file with one tensor, from torch.save (.pt) or numpy.save (.npy); its first"
        " dimension is the batch. A model that is not optimized is optimized first",
    )  # fmt: skip
    _add_input(command)
    command.add_argument(
        "--original", metavar="MODEL",
        help="with DATA: the original model, with the same weights; required for a file of"
        " torchalgo",
    )  # fmt: skip
    command.add_argument("--primitive", metavar="NAME", help="of a problem: what to check")
    _add_max_error(command, "with DATA or --primitive: ")
    command.add_argument(
        "--budget", type=arguments.seconds, default=60.0, metavar="S",
        help="with --input: seconds for trying the fixes (default 60)",
    )  # fmt: skip
    _add_device(command)


def _tune(commands: Any) -> None:
    command = _command(
        commands, "tune", "tune one model with several processes that torchrun starts",
        "Each process is one rank. Ranks with cores or a GPU of their own measure parts of the"
        " candidates. All ranks end with the same plan or with the same error.",
        "torchrun --nproc-per-node 2 -m torchalgo tune torchvision.models:resnet18 \\\n"
        "      --input 1x3x224x224 --plan-out resnet18.plan.json --pin",
    )  # fmt: skip
    _add_model(command)
    _add_input(command, is_required=True)
    _add_file(command, "-o", "--output", "the .pt file that rank 0 writes")
    _add_file(command, "--plan-out", "the JSON file of the plan that rank 0 writes")
    command.add_argument(
        "--pin", action="store_true",
        help="give each rank of a host its own part of the cores, and as many threads; without"
        " this flag, only the first of the ranks that share cores measures",
    )  # fmt: skip
    _add_device(command)
    _add_tuning(command)
    command.add_argument(
        "--timeout", type=arguments.seconds, default=600.0, metavar="S",
        help="fail if a rank lets the others wait for S seconds (default 600)",
    )  # fmt: skip


def _emit(commands: Any) -> None:
    command = _command(
        commands, "emit", "write the forward pass of a plan as a folder of C++ without libraries",
        "The file must run its plan, with kernels of torchalgo only: `torchalgo optimize"
        " --own-kernels` writes such files. docs/emit.md explains the folder. --threads says into"
        " how many parts a kernel divides its work at most (default: as in the plan).",
        "resnet18.pt -o resnet18",
    )  # fmt: skip
    command.add_argument("source", type=Path, help="a .pt2 or .pt file of torchalgo")
    _add_file(command, "-o", "--output", "the folder to write", dest="folder", required=True)
    command.add_argument(
        "--shape", help="the input sizes of the plan, of those in the file (default: the first)"
    )
    command.add_argument(
        "--isa", choices=ISAS, nargs="+",
        help="the instruction set, or several in one folder (default: that of this machine)",
    )  # fmt: skip
    command.add_argument(
        "--weights", choices=("packed", "plain"),
        help="packed for the kernels of one set, or as in the model: the program packs them when it"
        " opens them (default: plain for several sets)",
    )  # fmt: skip
    command.add_argument(
        "--name", help="begins the names of the C interface (default: the name of the folder)"
    )


def _doctor(commands: Any) -> None:
    _command(
        commands, "doctor", "print versions, devices, the cost database, and what is missing",
        "It also runs where torchalgo cannot be imported, and names the wheel that fits.",
    )  # fmt: skip


def _demo(commands: Any) -> None:
    _command(
        commands, "demo", "optimize torchvision's ResNet-50 here and print the speed-up",
        "The weights are random. Writes resnet50.pt and resnet50.plan.json to this folder. Prints"
        " text also with --json.",
    )  # fmt: skip


def _db(commands: Any) -> None:
    command = _parser(
        commands, "db", "inspect and maintain the cost database",
        "The database keeps every cost that was measured, so that no cost is measured twice. A row"
        " is the cost of one primitive on one problem in one environment (processor, threads,"
        " versions). docs/database.md explains more.",
    )  # fmt: skip
    verbs = command.add_subparsers(required=True, metavar="verb", dest="verb")
    _verb(verbs, "info", "print the path, the size, and the number of rows of each kind")
    verb = _verb(verbs, "merge", "copy the rows of other databases into this one")
    verb.add_argument(
        "source", type=Path, nargs="+", metavar="FILE", help="another database; it is not changed"
    )
    verb = _verb(verbs, "export", "write the rows as lines of JSON with checksums")
    verb.add_argument("file", help="the file to write; - is stdout")
    verb = _verb(verbs, "import", "read rows that `db export` wrote")
    verb.add_argument("file", help="the file to read; - is stdin")
    verb = _verb(
        verbs, "gc", "delete damaged rows, and the least recently used ones if the file is too"
        " large",
    )  # fmt: skip
    verb.add_argument(
        "--max-mib", type=arguments.mebibytes, metavar="MIB",
        help="the size to shrink the file to, in MiB (default 128)",
    )  # fmt: skip
    verb = _verb(verbs, "retry", "forget failures, so that these candidates are tried again")
    verb.add_argument(
        "primitive", nargs="*",
        help="only primitives that match a glob, such as 'cpu.winograd*' (default: all)",
    )  # fmt: skip
    verb = _verb(
        verbs, "forget", "count entries, and delete them with --yes",
        "An entry must match all options that are given.",
    )  # fmt: skip
    for flag, metavar, text in (
        ("--environment", "TEXT", "environments whose text in `db info` contains TEXT; 'here' is"
         " this machine now"),
        ("--problem", "GLOB", "problems that match GLOB, no verdicts"),
        ("--primitive", "GLOB", "primitives that match GLOB, no verdicts"),
    ):  # fmt: skip
        verb.add_argument(flag, default="", metavar=metavar, help=f"only {text}")
    verb.add_argument(
        "--verdicts", action="store_true", help="only verdicts, the times of whole models"
    )
    for flag, text in (("--since", "from this day on"), ("--before", "before this day")):
        verb.add_argument(
            flag, type=arguments.day, metavar="DAY",
            help=f"only entries {text}, in UTC, such as 2026-11-20",
        )  # fmt: skip
    verb.add_argument(
        "--yes", action="store_true", help="delete the entries (default: only count them)"
    )
    _verb(verbs, "verify", "check every row and the file; exit code 1 if one is damaged")


COMMANDS = (_optimize, _explain, _compare, _bench, _check, _db, _tune, _emit, _doctor, _demo)


# ---- parts of several commands -------------------------------------------------------------------


def _parser(
    commands: Any, name: str, text: str, more: str = "", example: str = "",
    exit_codes: str = EXIT_CODES,
) -> Any:  # fmt: skip
    """Adds a command or a verb.

    Args:
        text: one line for the list of commands.
        more: what the command's own help says after this line.
        example: a call that works.
    """
    return commands.add_parser(
        name, help=text,
        description=textwrap.fill(f"{text[0].upper()}{text[1:]}. {more}", 79),
        epilog=(f"example:\n  {example}\n\n" if example else "") + exit_codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def _command(
    commands: Any, name: str, text: str, more: str = "", example: str = "",
    exit_codes: str = EXIT_CODES,
) -> Any:  # fmt: skip
    """Adds a command. `example` has its arguments, or is a whole line that begins otherwise."""
    if example and not example.startswith("torchrun"):
        example = f"torchalgo {name} {example}"
    command = _parser(commands, name, text, more, example, exit_codes)
    _add_json(command)
    command.add_argument(
        "--threads", type=arguments.thread_count, metavar="N",
        help="number of CPU threads of PyTorch (default: PyTorch's own)",
    )  # fmt: skip
    command.add_argument("--quiet", action="store_true", help="print no progress on stderr")
    return command


def _verb(verbs: Any, name: str, text: str, more: str = "") -> Any:
    verb = _parser(verbs, name, text, more)
    _add_file(
        verb, "--cost-db", "the cost database (default: costs.sqlite3 in $TORCHALGO_CACHE_DIR, or"
        " in ~/.cache/torchalgo)",
    )  # fmt: skip
    _add_json(verb)
    return verb


def _add_json(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _add_file(command: Any, *words: str, **options: Any) -> None:
    """Adds a flag that names a file. The last word is its help, the others are its spellings."""
    *flags, text = words
    command.add_argument(*flags, type=Path, metavar="FILE", help=text, **options)


def _add_model(command: Any) -> None:
    text = ", a Python function without arguments that returns a model with its weights"
    command.add_argument("model", help=f"{MODEL}{text}")


def _add_input(command: Any, is_required: bool = False) -> None:
    command.add_argument(
        "--input", action="append", type=arguments.shape, metavar="1x3x224x224",
        required=is_required, help="the shape of an input of the model; repeat it for each input",
    )  # fmt: skip


def _add_shapes(command: Any, is_required: bool = False) -> None:
    group = command.add_mutually_exclusive_group(required=is_required)
    _add_input(group)
    group.add_argument(
        "--shapes", action="append", type=arguments.shapes, metavar="1x3x224x224[,1x10]",
        help="the shapes of all inputs, separated by commas; repeat it to get several plans, one"
        " for each --shapes",
    )  # fmt: skip


def _add_device(command: Any, more: str = "") -> None:
    """Adds --device. With `more`, the command checks its value itself."""
    command.add_argument(
        "--device", choices=None if more else ("cpu", "cuda"), default="cpu",
        help=f"where to run{more} (default cpu)",
    )  # fmt: skip


def _add_max_error(command: Any, where: str = "") -> None:
    command.add_argument(
        "--max-error", type=arguments.bound, metavar="E",
        help=f"{where}the largest relative L2 error of a primitive against f64, and of the outputs"
        " against the given model (default 1e-5). From 1e-3 on, primitives in bf16 and f16 are"
        " candidates",
    )  # fmt: skip


def _add_objective(command: Any) -> None:
    command.add_argument(
        "--objective", choices=OBJECTIVES, default="latency",
        help="what the plan minimizes: time (latency, the default) or energy",
    )  # fmt: skip


def _add_tuning(command: Any) -> None:
    """Adds the arguments of a tuning, which torchalgo._cli.tuning_flags reads."""
    command.add_argument(
        "--override", action="append", default=[], type=arguments.override,
        metavar="GLOB=PRIMITIVE",
        help="fix the primitive of some layers, such as 'layer1.*=cpu.direct'; may be repeated, and"
        " later ones win; with --training 'layer1.*:backward_filter=aten.conv'",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=arguments.seconds, metavar="S",
        help="seconds for the whole command; inf is no limit (default: 90 for each plan)",
    )  # fmt: skip
    _add_max_error(command)
    add_settings(command)
