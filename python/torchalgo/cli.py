# SPDX-License-Identifier: BSD-3-Clause
"""The command `torchalgo`.

Exit codes: 0 done; 1 torchalgo.Error, one line on stderr; 2 wrong usage; 3 a check failed (check,
bench --check, db verify); 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.candidates import candidates
from torchalgo.choices import DTYPES
from torchalgo.db.commands import add_verbs
from torchalgo.doctor import examine, report
from torchalgo.freeze import quiet_jit
from torchalgo.guard import output_error
from torchalgo.load import load, load_plan, load_plans
from torchalgo.optimize import optimize
from torchalgo.optimized import Optimized
from torchalgo.options import MODES
from torchalgo.overrides import matches_name
from torchalgo.plan import (
    OBJECTIVES,
    Plan,
    lower_bound_of,
    plans_to_json,
    save_plans,
    spelled_value,
    value_of,
)
from torchalgo.planning import check_plan
from torchalgo.problems import DIRECTIONS
from torchalgo.profile import COLD_BYTES, profile
from torchalgo.report import SUFFIXES as REPORT_SUFFIXES
from torchalgo.report import text_report
from torchalgo.sampling import Bench
from torchalgo.timings import spelled as spelled_times

EXIT_ERROR, EXIT_CHECK_FAILED, EXIT_INTERRUPTED = 1, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except Error as problem:
        print(f"torchalgo: {' '.join(str(problem).split())}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("torchalgo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `torchalgo ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchalgo",
        description="The cheapest convolution algorithm and layout for every layer of a model.",
        epilog="exit codes: 0 done; 1 error; 2 wrong usage; 3 a check failed; 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"torchalgo {_C.version}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", action="store_true", help="JSON on stdout")
        command.add_argument("--threads", type=_threads, help="threads of torch")
        command.set_defaults(run=run)
        return command

    command = add("optimize", _optimize, "profile, solve and rewrite a model")
    add_model(command, may_have_shapes=True)
    command.add_argument("-o", "--output", type=Path, required=True, help="the .pt file to write")
    command.add_argument("--portable", action="store_true", help="write the frozen ATen module")
    command.add_argument("--plan", type=Path, help="apply the plans in this file, measure nothing")
    command.add_argument("--plan-out", type=Path, help="write all plans as JSON")
    command.add_argument("--report", type=Path, help="write a report (.html, .txt, .json)")
    add_tuning(command)
    command.add_argument(
        "--mode", choices=MODES, default="tune", help="predict: measure nothing, see optimize"
    )
    command.add_argument("--timings", action="store_true", help="what each step of it took")

    command = add("pareto", _pareto, "the front of time and memory over all plans of a model")
    add_model(command)
    command.add_argument("--memory", choices=("workspace", "weights"), default="workspace")
    command.add_argument("--max-points", type=_positive, default=32, help="of weights")
    command.add_argument("--plans", type=Path, help="folder to write each point's plan to")
    command.add_argument("--budget", type=float, help="seconds of tuning, soft")
    command.add_argument("--cost-db", type=Path, help="costs to read and append to")
    command.add_argument("--quiet", action="store_true", help="no progress")

    command = add(
        "candidates", _candidates, "list what could compute a model's layers or a problem"
    )
    _add_target(command)
    command.add_argument(
        "--direction",
        choices=(*DIRECTIONS, "all"),
        help="of the convolutions; without it: forward, with what can be fused",
    )
    command.add_argument("--verbose", action="store_true", help="every candidate and refusal")

    command = add("profile", _profile, "time and check every algorithm of a model's convolutions")
    _add_target(command)
    command.add_argument("--direction", action="append", choices=(*DIRECTIONS, "all"), default=[])
    command.add_argument("--budget", type=float, default=2.0, help="seconds for each problem")

    command = add("explain", _explain, "show the plan in a plan file or a saved module")
    command.add_argument("file", type=Path)

    command = add("bench", _bench, "time, or check, the primitives of one problem")
    command.add_argument(
        "problem", help="such as fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"
    )
    command.add_argument("--check", metavar="PRIMITIVE", help="compare it with fp64 instead")
    command.add_argument("--rounds", type=_positive, default=15)
    command.add_argument("--max-rel-error", type=float, default=1e-5)

    command = add(
        "check", _check, "compare an optimized file with the original on your data, or prove a plan"
    )
    command.add_argument(
        "model", help="a file saved by torchalgo, a model to optimize first, or a plan's .json"
    )
    command.add_argument(
        "data", type=Path, nargs="?", help="a tensor: .pt (torch.save) or .npy; batch first"
    )
    command.add_argument("--original", help="model.pt or package.module:factory, if model is saved")
    command.add_argument("--max-rel-error", type=float, default=1e-4)

    text = "look after the database of costs"
    command = commands.add_parser("db", help=text, description=text)
    command.set_defaults(threads=None)
    add_verbs(command)

    add("doctor", _doctor, "show versions, devices, the cost database, and what is missing")
    return parser


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", help="a problem, model.pt, or package.module:factory")
    command.add_argument("--input", action="append", default=[], type=_shape, metavar="1x3x224x224")
    command.add_argument("--device", help="cpu, cuda, or a GPU's name such as h100")
    command.add_argument("--dtype", choices=DTYPES, help="of the convolutions")


def add_model(command: argparse.ArgumentParser, may_have_shapes: bool = False) -> None:
    command.add_argument("model", help="a TorchScript file, or package.module:factory")
    group = command.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--input",
        action="append",
        type=_shape,
        metavar="1x3x224x224",
        help="shape of an input; once per input",
    )
    if may_have_shapes:
        group.add_argument(
            "--shapes",
            action="append",
            type=_shapes,
            metavar="1x3x224x224[,1x10]",
            help="shapes of all inputs, with commas between; once per plan",
        )


def add_tuning(command: argparse.ArgumentParser) -> None:
    """The arguments of a tuning; tuning_options reads them."""
    command.add_argument(
        "--override", action="append", default=[], type=_override, metavar="GLOB=PRIMITIVE"
    )
    command.add_argument(
        "--objective", choices=OBJECTIVES, default="latency", help="what the plan has least of"
    )
    command.add_argument("--budget", type=float, help="seconds of tuning, soft")
    command.add_argument("--cost-db", type=Path, help="the cost database, if not the user's own")
    command.add_argument("--max-rel-error", type=float, default=1e-5)
    command.add_argument("--weight-limit", type=_bytes, metavar="20MB", help="of packed weights")
    command.add_argument(
        "--workspace-limit", type=_bytes, default=1 << 30, metavar="1GB", help="of each primitive"
    )
    command.add_argument("--quiet", action="store_true", help="no progress")


def tuning_options(args: argparse.Namespace) -> dict[str, Any]:
    """As optimize takes them."""
    return {
        "overrides": dict(args.override) or None,
        "objective": args.objective,
        "budget_s": args.budget,
        "cost_db": args.cost_db,
        "workspace_limit_bytes": args.workspace_limit,
        "weight_limit_bytes": args.weight_limit,
        "max_rel_error": args.max_rel_error,
        "progress": not args.quiet,
    }


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _bytes(text: str) -> int:
    units = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    match = re.fullmatch(r"(\d+)(|B|kB|MB|GB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 20MB or 1048576")
    return int(match[1]) * units[match[2]]


def _threads(text: str) -> int:
    most = 4 * (os.cpu_count() or 1)  # far more than cores only wait for each other
    if _positive(text) > most:
        raise argparse.ArgumentTypeError(f"{text} threads: this machine has room for {most}")
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 1x3x224x224")
    return tuple(map(int, text.split("x")))


def _shapes(text: str) -> list[tuple[int, ...]]:
    return [_shape(part) for part in text.split(",")]


def _override(text: str) -> tuple[str, str]:
    glob, _, primitive = text.partition("=")
    if not glob or not primitive:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no override such as 'layer1.*.conv2=cpu.winograd_f4x4_3x3'"
        )
    return glob, primitive


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


# ---- models and data -----------------------------------------------------------------------------


def load_model(reference: str) -> nn.Module:
    """A TorchScript file, or what `package.module:factory` returns, in eval mode."""
    if Path(reference).exists():
        try:
            with quiet_jit():
                scripted: nn.Module = torch.jit.load(reference, map_location="cpu")
        except (RuntimeError, ValueError) as problem:
            raise Error(
                f"{reference} is no TorchScript file ({str(problem).splitlines()[0]}); give"
                " package.module:factory for a model in Python"
            ) from None
        return scripted.eval() if hasattr(scripted, "training") else scripted
    module_name, colon, name = reference.partition(":")
    if not colon:
        raise Error(f"there is no file {reference}; expected model.pt or package.module:factory")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise Error(f"cannot import {reference}: {problem}") from None
    try:
        model = factory()
    except Exception as problem:
        raise Error(
            f"{reference}() failed: {type(problem).__name__}: {problem}; expected a function"
            " without arguments that returns the model"
        ) from problem
    if not isinstance(model, nn.Module):
        raise Error(f"{reference}() returned {type(model).__name__}, expected torch.nn.Module")
    return model.eval()


def random_inputs(model: nn.Module, shapes: list[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
    dtype = dtypes[0] if dtypes else torch.float32
    return tuple(torch.rand(shape, generator=generator).to(dtype) for shape in shapes)


def _read_data(path: Path) -> torch.Tensor:
    try:
        if path.suffix == ".npy":
            import numpy

            array = numpy.load(path, allow_pickle=False)
            data = torch.from_numpy(array)
        else:
            data = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, ImportError, EOFError) as problem:
        raise Error(f"cannot read {path}: {(str(problem).splitlines() or ['?'])[0]}") from None
    except Exception as problem:  # torch.load wraps unpickling errors in a private type
        raise Error(f"{path} is no tensor file: {type(problem).__name__}") from None
    if not isinstance(data, torch.Tensor) or data.dim() < 1:
        raise Error(f"{path} holds {type(data).__name__}, expected one tensor, batch first")
    if data.numel() == 0:
        raise Error(f"{path} holds no samples: its sizes are {list(data.shape)}")
    return data


# ---- commands ------------------------------------------------------------------------------------


def _optimize(args: argparse.Namespace) -> int:
    for path in (args.output, args.plan_out, args.report):  # before minutes of tuning
        if path is not None and not path.absolute().parent.is_dir():
            raise Error(f"cannot write {path}: there is no folder {path.absolute().parent}")
    if args.report is not None and args.report.suffix.lower() not in REPORT_SUFFIXES:
        raise Error(f"report: {args.report}, expected one of {', '.join(REPORT_SUFFIXES)}")
    model = load_model(args.model)
    sets = [random_inputs(model, shapes) for shapes in args.shapes or [args.input]]
    optimized = optimize(
        model,
        sets if args.shapes else sets[0],
        plan=None if args.plan is None else _plans_in(args.plan),
        mode=args.mode,
        **tuning_options(args),
    )
    plans = list(optimized.plans.values())
    optimized.save(args.output, portable=args.portable)
    if args.plan_out is not None:
        save_plans(plans, args.plan_out)
    if args.report is not None:
        optimized.report(args.report)
    if args.json:
        texts = json.loads(plans_to_json(plans))
        what = {"plans": texts["plans"]} if len(plans) > 1 else {"plan": texts}
        _print_json({"output": str(args.output), "runs": optimized.runs, **what})
    else:
        print(text_report(plans), end="")
        print(f"wrote {args.output}")
    if args.timings:
        print(f"optimize took {spelled_times(optimized.timings)}", file=sys.stderr)
    return 0


def _plans_in(path: Path) -> Plan | dict[str, Plan]:
    plans = load_plans(path)
    return plans if len(plans) > 1 else next(iter(plans.values()))


def _pareto(args: argparse.Namespace) -> int:
    if args.plans is not None and not args.plans.is_dir():
        raise Error(f"pareto: there is no folder {args.plans}")
    model = load_model(args.model)
    inputs = random_inputs(model, args.input)
    optimized = optimize(
        model, inputs, budget_s=args.budget, cost_db=args.cost_db, progress=not args.quiet
    )
    front = optimized.pareto(args.memory, max_points=args.max_points)
    if args.plans is not None:
        for i, point in enumerate(front):
            point.plan.save(args.plans / f"{args.memory}_{i}.plan.json")
    if args.json:
        _print_json([{"us": p.us, "bytes": p.bytes, "is_proven": p.is_proven} for p in front])
    else:
        print(front)
    return 0


def _candidates(args: argparse.Namespace) -> int:
    target, src = _target(args)
    found = candidates(target, src, device=args.device, direction=args.direction, dtype=args.dtype)
    if args.json:
        _print_json([dataclasses.asdict(layer) for layer in found])
    else:
        print(found.details if args.verbose else found)
    return 0


def _profile(args: argparse.Namespace) -> int:
    target, src = _target(args)
    found = profile(
        target,
        src,
        directions="all" if "all" in args.direction else args.direction or DIRECTIONS,
        device=args.device,
        dtype=args.dtype,
        budget_s=args.budget,
    )
    print(found.to_json() if args.json else found, end="" if args.json else "\n")
    return 0


def _target(args: argparse.Namespace) -> tuple[nn.Module | str, tuple[torch.Tensor, ...] | None]:
    """A problem's spelling, or a model and its inputs."""
    if not Path(args.target).exists() and ":" not in args.target:
        return args.target, None
    model = load_model(args.target)
    return model, random_inputs(model, args.input) if args.input else None


def _explain(args: argparse.Namespace) -> int:
    plans = list(load_plans(args.file).values())
    print(plans_to_json(plans) if args.json else text_report(plans), end="")
    return 0


def _bench(args: argparse.Namespace) -> int:
    problem = _C.parse_problem(args.problem)
    offered, _, refusals = _C.offers_of(problem)
    primitives = [p for p in offered if not _C.is_view(p.name)]  # a view is no work to measure
    if args.check is not None:
        return _bench_check(args, problem, offered, refusals)
    samples, failures = _take(problem, primitives, args.rounds)
    gflop = _C.flop_count(problem) / 1e9
    records = []
    for primitive, ns, failure in zip(primitives, samples, failures, strict=True):
        us = sorted(t / 1000 for t in ns)
        record: dict[str, Any] = {"problem": problem, **_spelled(primitive)}
        if us:
            median = statistics.median(us)
            record |= {"median_us": round(median, 3), "min_us": round(us[0], 3), "samples": len(us)}
            record["gflops"] = round(gflop / median * 1e6, 2)
        record["failure"] = failure
        records.append(record)
    records.sort(key=lambda r: (r.get("median_us", float("inf")), r["primitive"]))
    if args.json:
        _print_json(records)
        return 0
    print(f"{problem}  ({_C.cpu_device().name}, {torch.get_num_threads()} threads)")
    for r in records:
        layouts = f"{r['src']}->{r['dst']}"
        speed = r["failure"] or f"{r['median_us']:>12.1f} us  {r['gflops']:>8.1f} GFLOP/s"
        print(f"  {r['primitive']:36}  {layouts:18}  {speed}")
    return 0


def _take(
    problem: str, primitives: list[_C.Primitive], rounds: int, limit_s: float = 30.0
) -> tuple[list[list[float]], list[str]]:
    """Times in ns and failures of each primitive; in short calls, so that Ctrl-C is heard."""
    bench = Bench.on(None)
    tasks = [(problem, primitive) for primitive in primitives]
    samples: list[list[float]] = [[] for _ in primitives]
    failures = [""] * len(primitives)
    started, left = time.monotonic(), rounds
    while left > 0 and time.monotonic() - started < limit_s:
        taken = bench.measure(
            tasks, warmup=1, rounds=min(left, 9), budget_s=1.0, cold_bytes=COLD_BYTES, seed=0
        )
        for i, result in enumerate(taken):
            samples[i] += result.ns
            failures[i] = failures[i] or result.failure
        left -= max((len(result.ns) for result in taken), default=left) or left
    return samples, failures


def _bench_check(
    args: argparse.Namespace,
    problem: str,
    primitives: list[_C.Primitive],
    refusals: list[_C.Refusal],
) -> int:
    chosen = [p for p in primitives if matches_name(p.name, args.check)]
    if not chosen:
        reasons = [r.reason for r in refusals if matches_name(r.primitive, args.check)]
        supported = ", ".join(sorted({p.name for p in primitives}))
        reason = "; ".join(reasons) or "there is no such primitive"
        raise Error(f"bench: {args.check!r} refuses {problem}: {reason}. Supported: {supported}")
    results = Bench.on(None).check(problem, chosen, args.max_rel_error)
    records = [
        {"problem": problem, **_spelled(p), "rel_error": error, "failure": failure}
        for p, (error, failure) in zip(chosen, results, strict=True)
    ]
    if args.json:
        _print_json(records)
    else:
        for r in records:
            verdict = f"FAILS: {r['failure']}" if r["failure"] else "ok"
            layouts = f"{r['src']}->{r['dst']}"
            print(f"{r['primitive']}  {layouts}  relative L2 {r['rel_error']:.2e}  {verdict}")
    return EXIT_CHECK_FAILED if any(r["failure"] for r in records) else 0


def _spelled(primitive: _C.Primitive) -> dict[str, str]:
    return {"primitive": primitive.name, "src": primitive.src, "dst": primitive.dst}


def _check(args: argparse.Namespace) -> int:
    if args.data is None:
        return _check_proof(args)
    data = _read_data(args.data)
    optimized, original = _pair(args, data)
    batch = _planned_batch(optimized, data)
    worst, agree, count = 0.0, 0, 0
    with torch.no_grad():
        for chunk in data.split(batch):
            want = _original_output(original, chunk)
            got = optimized(chunk)
            worst = max(worst, output_error(got, want))
            if isinstance(want, torch.Tensor) and want.dim() == 2:
                agree += int((got.argmax(1) == want.argmax(1)).sum())
                count += len(want)
    passed = worst <= args.max_rel_error
    record = {
        "samples": len(data),
        "max_rel_error": worst,
        "top1_agreement": agree / count if count else None,
        "passed": passed,
    }
    if args.json:
        _print_json(record)
    else:
        top1 = f", top-1 agrees on {agree} of {count}" if count else ""
        bound = f"bound {args.max_rel_error:.0e}"
        verdict = "ok" if passed else "FAILS"
        print(f"{len(data)} samples: relative L2 at most {worst:.2e} ({bound}){top1}: {verdict}")
    return 0 if passed else EXIT_CHECK_FAILED


def _planned_batch(optimized: Optimized, data: torch.Tensor) -> int:
    """How many samples one call shall have: as a plan for their sizes has, else as the first."""
    plans = list(optimized.plans.values())
    if len(plans[0].inputs) != 1:
        raise Error(
            f"check: the model has {len(plans[0].inputs)} inputs; check takes models with one"
        )
    shapes = [plan.inputs[0].shape for plan in plans]
    fitting = [shape for shape in shapes if shape[1:] == list(data.shape[1:])]
    first = (fitting or shapes)[0]
    return first[0] if first else 1


def _check_proof(args: argparse.Namespace) -> int:
    """Whether a plan that was written with its proof is what it claims."""
    if not args.model.endswith(".json"):
        raise Error(f"check: {args.model} needs data; only a plan (.json) is checked without")
    plan, reason = load_plan(args.model), ""
    if plan.proof is None:
        raise Error(f"check: {args.model} has no proof; plan.with_proof().save(path) writes it")
    try:
        check_plan(plan)
    except Error as problem:
        reason = str(problem)
    if args.json:
        _print_json({"passed": not reason, "reason": reason})
    elif reason:
        print(f"FAILS: {reason}")
    else:
        rows = sum(map(len, plan.proof.costs.values()))
        cost, bound = (spelled_value(plan.objective, f(plan)) for f in (value_of, lower_bound_of))
        print(
            f"{len(plan.nodes)} nodes: the plan costs {cost}, and none from its {rows} costs"
            f" ({len(plan.proof.refused)} refused at a node) is below {bound}: ok"
        )
    return EXIT_CHECK_FAILED if reason else 0


def _doctor(args: argparse.Namespace) -> int:
    found = examine()
    print(json.dumps(found, indent=1) if args.json else report(found))
    return 0


def _original_output(original: nn.Module, chunk: torch.Tensor) -> Any:
    try:
        return original(chunk)
    except RuntimeError as problem:
        reason = str(problem).strip().splitlines()[-1]
        raise Error(f"check: the original fails on {list(chunk.shape)}: {reason}") from None


def _pair(args: argparse.Namespace, data: torch.Tensor) -> tuple[Optimized, nn.Module]:
    """The optimized model and the original."""
    if args.original is not None:
        return load(args.model), load_model(args.original)
    if Path(args.model).exists():
        try:
            load_plans(args.model)
        except Error:
            pass
        else:
            raise Error(
                f"check: {args.model} is an optimized file; name what it was made from with"
                " --original model.pt|package.module:factory"
            )
    model = load_model(args.model)
    return optimize(model, data[:1], progress=sys.stderr.isatty()), model


if __name__ == "__main__":
    sys.exit(main())
