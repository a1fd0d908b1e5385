# SPDX-License-Identifier: BSD-3-Clause
"""Defines the arguments of every command.

The lists of words here equal those of the package torchalgo; a test compares them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from torchalgo_cli import arguments
from torchalgo_cli.arguments import Parser

MODES = ("tune", "predict")
MAX_REL_ERROR = 1e-5
OBJECTIVES = ("latency", "energy", "edp")
DIRECTIONS = ("forward", "backward_data", "backward_filter", "fwd", "bwd_data", "bwd_filter")
DTYPES = ("f64", "f32", "tf32", "f16", "bf16")
EXIT_CODES = (
    "exit codes: 0 done; 1 an error, or a check that failed; 2 wrong usage; 130 interrupted by"
    " Ctrl-C, also where optimize wrote a plan of the costs measured so far"
)


def build_parser() -> Parser:
    """Returns the parser of `torchalgo`. It sets `command`, and for `db` also `verb`."""
    parser = Parser(
        prog="torchalgo",
        description="The cheapest convolution algorithm and layout for every layer of a model.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"torchalgo {_version()}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for add in (
        _add_optimize, _add_tune, _add_pareto, _add_candidates, _add_profile, _add_others
    ):  # fmt: skip
        add(commands)
    _add_db(commands)
    return parser


def _version() -> str:
    """Returns the version. Reads torchalgo/_version.py as text: importing it would import torch."""
    text = (Path(__file__).parents[1] / "torchalgo" / "_version.py").read_text()
    match = re.search(r'"(.+)"', text)
    return match[1] if match else "unknown"


def _add_command(commands: Any, name: str, text: str) -> Any:
    command = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
    command.add_argument("--json", action="store_true", help="JSON on stdout")
    command.add_argument("--threads", type=arguments.thread_count, help="threads of torch")
    return command


def _add_optimize(commands: Any) -> None:
    command = _add_command(commands, "optimize", "profile, solve and rewrite a model")
    add_model(command, may_have_shapes=True)
    command.add_argument("-o", "--output", type=Path, required=True, help="the .pt file to write")
    command.add_argument("--portable", action="store_true", help="write the frozen ATen module")
    command.add_argument("--plan", type=Path, help="apply the plans in this file, measure nothing")
    command.add_argument("--plan-out", type=Path, help="write all plans as JSON")
    command.add_argument("--report", type=Path, help="write a report (.html, .txt, .json)")
    _add_objective(command)
    _add_tuning(command)
    command.add_argument("--timings", action="store_true", help="print what each step took")


def _add_tune(commands: Any) -> None:
    text = (
        "tune a model by several processes, which torchrun starts: each one that has cores or a GPU"
        " of its own measures a part, and all end with the same plan or the same error"
    )
    command = _add_command(commands, "tune", text)
    command.epilog = (
        "Example: torchrun --nproc-per-node 2 -m torchalgo tune torchvision.models:resnet18"
        f" --input 1x3x224x224 --plan-out resnet18.plan.json --pin. {EXIT_CODES}"
    )
    add_model(command)
    command.add_argument("-o", "--output", type=Path, help="the .pt file that rank 0 writes")
    command.add_argument("--plan-out", type=Path, help="the plan that rank 0 writes, as JSON")
    command.add_argument(
        "--pin", action="store_true",
        help="give each rank of a host its own part of the cores; else ranks that share cores do"
        " not measure at the same time, and the first of them measures alone",
    )  # fmt: skip
    _add_tuning(command)
    for name, default, text in (
        ("join-timeout", 3.5, "since the last rank arrived, while others are missing"),
        ("patience", 2.5, "without a sign of life, after which a rank is dead"),
        ("step-timeout", 600.0, "that a living rank may let the others wait"),
    ):
        command.add_argument(
            f"--{name}", type=arguments.seconds, default=default, metavar="S",
            help=f"seconds {text} (default {default:g})",
        )  # fmt: skip


def _add_pareto(commands: Any) -> None:
    text = "the front of time and memory over all plans of a model"
    command = _add_command(commands, "pareto", text)
    add_model(command)
    command.add_argument("--memory", choices=("workspace", "weights"), default="workspace")
    command.add_argument("--max-points", type=arguments.positive, default=32, help="of weights")
    command.add_argument("--plans", type=Path, help="folder to write each point's plan to")
    _add_objective(command)
    _add_tuning(command)


def _add_candidates(commands: Any) -> None:
    text = "list what could compute a model's layers or a problem"
    command = _add_command(commands, "candidates", text)
    _add_target(command)
    command.add_argument(
        "--direction",
        choices=(*DIRECTIONS, "all"),
        help="of the convolutions; without it: forward, with what can be fused",
    )
    command.add_argument("--verbose", action="store_true", help="every candidate and refusal")


def _add_profile(commands: Any) -> None:
    text = "time and check every algorithm of a model's convolutions"
    command = _add_command(commands, "profile", text)
    _add_target(command)
    command.add_argument("--direction", action="append", choices=(*DIRECTIONS, "all"), default=[])
    command.add_argument(
        "--budget", type=arguments.seconds, default=2.0, help="seconds for each problem"
    )
    command.add_argument("--no-check", action="store_true", help="compare no result with f64")
    command.add_argument(
        "--max-rel-error", type=arguments.bound, default=MAX_REL_ERROR,
        help="the largest relative L2 of a result (default %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--runtime-compiled", action="store_true",
        help="on a GPU: time what cuDNN compiles at run time, too",
    )  # fmt: skip


def _add_others(commands: Any) -> None:
    command = _add_command(commands, "explain", "show the plan in a plan file or a saved module")
    command.add_argument("file", type=Path)

    command = _add_command(commands, "bench", "time, or check, the primitives of one problem")
    command.add_argument(
        "problem", help="such as fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"
    )
    command.add_argument("--check", metavar="PRIMITIVE", help="compare it with fp64 instead")
    command.add_argument("--rounds", type=arguments.positive, default=15)
    command.add_argument("--max-rel-error", type=arguments.bound, default=MAX_REL_ERROR)

    text = "compare the outputs of an optimized model with the original's, on your data"
    command = _add_command(commands, "check-outputs", text)
    command.add_argument("model", help="a file saved by torchalgo, or a model to optimize first")
    command.add_argument("data", type=Path, help="a tensor: .pt (torch.save) or .npy; batch first")
    command.add_argument("--original", help="model.pt or package.module:factory, if model is saved")
    command.add_argument(
        "--max-rel-error", type=arguments.bound, default=MAX_REL_ERROR,
        help="the largest relative L2 (default %(default)s)",
    )  # fmt: skip

    text = "check the proof in a plan file, by code that shares nothing with the planner"
    command = _add_command(commands, "check-plan", text)
    command.add_argument("file", type=Path, help="what plan.with_proof().save(path) wrote")

    _add_command(commands, "demo", "optimize torchvision's ResNet-50 here and show the gain")
    text = "show versions, devices, the cost database, and what is missing"
    _add_command(commands, "doctor", text)


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", help="a problem, model.pt, or package.module:factory")
    command.add_argument(
        "--input", action="append", default=[], type=arguments.shape, metavar="1x3x224x224"
    )
    command.add_argument("--device", help="cpu, cuda, or a GPU's name such as h100")
    command.add_argument("--dtype", choices=DTYPES, help="of the convolutions")
    _add_workspace_limit(command)


def _add_workspace_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workspace-limit", type=arguments.byte_count, default=1 << 30, metavar="1GB",
        help="the most workspace of a primitive (default 1 GiB)",
    )  # fmt: skip


def add_model(command: argparse.ArgumentParser, may_have_shapes: bool = False) -> None:
    command.add_argument("model", help="a TorchScript file, or package.module:factory")
    group = command.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--input",
        action="append",
        type=arguments.shape,
        metavar="1x3x224x224",
        help="shape of an input; once per input",
    )
    if may_have_shapes:
        group.add_argument(
            "--shapes",
            action="append",
            type=arguments.shapes,
            metavar="1x3x224x224[,1x10]",
            help="shapes of all inputs, with commas between; once per plan",
        )


def _add_objective(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--objective", choices=OBJECTIVES, default="latency", help="what the plan has least of"
    )


def _add_tuning(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a tuning, which torchalgo._cli.tuning reads."""
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument(
        "--override", action="append", default=[], type=arguments.override, metavar="GLOB=PRIMITIVE"
    )
    command.add_argument(
        "--mode", choices=MODES, default="tune",
        help="predict: measure no candidate, predict costs from those in the database",
    )  # fmt: skip
    command.add_argument(
        "--strict", action="store_true",
        help="an error if a primitive of the plan cannot run here, not its fallback",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=arguments.seconds,
        help="seconds for the whole call; default 90 for each plan; inf: no limit",
    )  # fmt: skip
    command.add_argument(
        "--run-untimed", action="store_true",
        help="run a plan that there was no time to time beside PyTorch",
    )  # fmt: skip
    group = command.add_mutually_exclusive_group()
    group.add_argument("--cost-db", type=Path, help="the cost database, if not the user's own")
    group.add_argument("--no-cost-db", action="store_true", help="read and write no database")
    command.add_argument(
        "--fresh", action="store_true", help="measure again what the database has, and replace it"
    )
    command.add_argument("--max-rel-error", type=arguments.bound, default=MAX_REL_ERROR)
    command.add_argument(
        "--weight-limit", type=arguments.byte_count, metavar="20MB", help="of packed weights"
    )
    _add_workspace_limit(command)
    command.add_argument("--quiet", action="store_true", help="no progress")


# ---- torchalgo db --------------------------------------------------------------------------------


def _add_db(commands: Any) -> None:
    text = "look after the database of costs"
    command = commands.add_parser("db", help=text, description=text, epilog=EXIT_CODES)
    verbs = command.add_subparsers(required=True, metavar="verb", dest="verb")
    _add_verb(verbs, "info", "where it lies, how large it is, and what is in it")
    verb = _add_verb(verbs, "merge", "join the rows of other databases into it")
    verb.add_argument("source", type=Path, nargs="+", help="a cost database; not changed")
    verb = _add_verb(verbs, "export", "write its rows as lines of JSON, with checksums")
    verb.add_argument("file", help="the file to write; - for stdout")
    verb = _add_verb(verbs, "import", "join rows that were exported into it")
    verb.add_argument("file", help="the file to read; - for stdin")
    verb = _add_verb(verbs, "gc", "drop damaged rows, then those not used for longest")
    verb.add_argument(
        "--max-mib", type=arguments.mebibytes, help="the size to shrink to; without it: the cap"
    )
    verb = _add_verb(verbs, "retry", "forget which candidates failed, so that they are tried again")
    verb.add_argument("primitive", nargs="*", help="only these, such as 'cpu.winograd*'")
    text = "count, and with --yes drop, what other machines, days or primitives left; see docs"
    _add_forget(_add_verb(verbs, "forget", text))
    text = "check every row and the file; ends with 1 if something is damaged"
    _add_verb(verbs, "verify", text)


def _add_forget(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--environment", default="", metavar="TEXT",
        help="only of environments with this in what db info prints of them; 'here': of this one",
    )  # fmt: skip
    verb.add_argument("--problem", default="", metavar="GLOB", help="only of these problems")
    verb.add_argument("--primitive", default="", metavar="GLOB", help="only of these primitives")
    verb.add_argument("--verdicts", action="store_true", help="only times of whole models")
    for name, text in (("--since", "from this day on"), ("--before", "before this day")):
        verb.add_argument(
            name, type=arguments.day, metavar="DAY", help=f"only {text}, as 2026-11-20"
        )
    verb.add_argument("--yes", action="store_true", help="forget it; without this: count it")


def _add_verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.add_argument(
        "--cost-db", type=Path, metavar="FILE", help="the database, if not the user's own"
    )
    verb.add_argument("--json", action="store_true", help="JSON on stdout")
    return verb
