# SPDX-License-Identifier: BSD-3-Clause
"""The solver alone: time and memory against size, and beside toulbar2, HiGHS and a heuristic.

    python benchmarks/bench_solver.py scale                      # 2 to 3 minutes when quiet
    python benchmarks/bench_solver.py peers --ops 20 50 --limit 60
    python benchmarks/bench_solver.py agree --problems 200       # with toulbar2
    python benchmarks/bench_solver.py plot                       # docs/images/solver_growth.svg
    python benchmarks/bench_solver.py scale --kinds chain --ops 100      # to see that it works

scale and peers solve the problems of solver_problems.py. Each measurement runs in a process of its
own, because its peak of memory is one of the answers. `seconds` are wall time, `cpu_seconds` CPU
time. Both hold all of pbqp.solve: making the tables, solving, and writing the certificate with the
hash of the problem's text. peers takes up to --limit seconds per engine and problem. agree checks,
on random problems, that torchalgo and toulbar2 prove the same cost; it takes a minute. These three
append JSON lines to benchmarks/results/solver.jsonl.

plot draws the newest records of scale on logarithmic axes, with one line per kind of problem. A
hollow mark was not proven optimal within its limit. The grey line grows like the number of ops.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import harness
from harness import RESULTS, ROOT
from pages import new_figure, save_figure
from solver_engines import ENGINES, memory_mib, reset_peak, run_torchalgo, run_toulbar2
from solver_problems import KINDS, make_parts, random_parts

SCHEMA = 2
SCALE = {  # ops per kind of `scale`; all of 10,000 and a long training chain among them
    **{kind: [100, 1000, 2000, 5000, 10_000, 20_000] for kind in KINDS},
    "chain": [100, 1000, 2000, 5000, 10_000, 20_000, 50_000],
    "training": [100, 1000, 2000, 5000, 10_000, 20_000, 50_000],
}
MARGINAL_OPS = 1000  # above: neither marginals nor the checker are measured
BUILD_S = 60.0  # a process may take so much longer than its limit: building has no other

# ---- scale and peers -----------------------------------------------------------------------------


def answer_of(
    engine: str, kind: str, ops: int, choices: int, seed: int, limit_s: float
) -> harness.Record:
    """Solves one problem with one engine, in this process. Returns what is recorded."""
    try:
        parts = make_parts(kind, ops, choices, seed)
        reset_peak()
        memory = memory_mib("VmRSS")
        answer = ENGINES[engine](parts, limit_s)
        return {"peak_mib": round(memory_mib("VmHWM") - memory, 1), **answer}
    except Exception as error:  # an engine that cannot is a result, not an end
        return {"failure": f"{type(error).__name__}: {str(error)[:200]}"}


def run_grid(
    args: argparse.Namespace, benchmark: str, engines: list[str], kind: str, ops: int
) -> None:
    """Records the answers of all engines on one problem."""
    head = {
        "schema": SCHEMA, "benchmark": benchmark, "kind": kind, "ops": ops,
        "choices": args.choices, "seed": args.seed, "limit_s": args.limit,
    }  # fmt: skip
    answers: dict[str, harness.Record] = {}
    for engine in engines:
        words = (engine, kind, ops, args.choices, args.seed, args.limit)
        given = harness.run_child(answer_of, *words, limit_s=args.limit + BUILD_S)
        answers[engine] = given.values[-1] if given.values else {"failure": given.failure}
        if failure := answers[engine].get("failure"):
            repro = harness.repro_line(answer_of, *words)
            harness.tell_failure(f"{engine} on {kind} of {ops} ops", failure, repro)
    best = answers.get("torchalgo", {}).get("cost")
    for answer in answers.values():
        if best and answer.get("cost") is not None:
            answer["excess"] = round(answer["cost"] / best - 1, 6)
    harness.record(args.out, {**head, "engines": answers})


def run_scale(args: argparse.Namespace) -> None:
    for kind in args.kinds or KINDS:
        for ops in args.ops or SCALE[kind]:
            also = ["torchalgo_marginals", "check"] if ops <= MARGINAL_OPS else []
            run_grid(args, "solver_scale", ["torchalgo", *also], kind, ops)


def run_peers(args: argparse.Namespace) -> None:
    for kind in args.kinds or KINDS:
        for ops in args.ops or [100, 1000]:
            run_grid(
                args, "solver_peers", ["torchalgo", "toulbar2", "highs", "heuristic"], kind, ops
            )


def run_agree(args: argparse.Namespace) -> None:
    """Checks that both prove the same cost, or that there is none."""
    same = 0
    for seed in range(args.seed, args.seed + args.problems):
        parts = random_parts(seed)
        own, other = run_torchalgo(parts, args.limit), run_toulbar2(parts, args.limit)
        if other["status"] == "feasible":
            continue
        if (own["status"], own["cost"]) != (other["status"], other["cost"]):
            repro = harness.script_line("bench_solver.py", "agree", "--problems", 1, "--seed", seed)
            raise SystemExit(f"seed {seed}: torchalgo {own}, toulbar2 {other}\n{repro}")
        same += 1
    line = {"schema": SCHEMA, "benchmark": "solver_agree", "problems": args.problems, "same": same}
    harness.record(args.out, {**line, "seed": args.seed})


# ---- plot ----------------------------------------------------------------------------------------

PANELS = (
    ("cpu_seconds", "time on one core, s"),
    ("peak_mib", "memory on top of the problem, MiB"),
)
MARKS = "osD^vP"


def newest(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the last record of each size, sorted by size, for each kind."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in harness.read_lines(path):
        if row["benchmark"] != "solver_scale" or row["schema"] != SCHEMA:
            continue
        answer = row["engines"]["torchalgo"]
        if "failure" not in answer:
            rows[row["kind"], row["ops"]] = {**row, **answer}
    kinds: dict[str, list[dict[str, Any]]] = {}
    for (kind, _), row in sorted(rows.items(), key=lambda item: item[0][1]):
        kinds.setdefault(kind, []).append(row)
    return kinds


def draw_panel(axes: Any, kinds: dict[str, list[dict[str, Any]]], field: str) -> None:
    for mark, (kind, rows) in zip(MARKS, kinds.items(), strict=False):
        shown = [row for row in rows if row[field] > 0]
        ops, values = [row["ops"] for row in shown], [row[field] for row in shown]
        (line,) = axes.plot(ops, values, label=kind.replace("_", " "), linewidth=1.4)
        for row in shown:
            axes.plot(
                row["ops"], row[field], mark, color=line.get_color(), markersize=5,
                fillstyle="full" if row["status"] == "optimal" else "none",
            )  # fmt: skip
    every = [row for rows in kinds.values() for row in rows if row[field] > 0]
    first, last = (pick(every, key=lambda row: row["ops"]) for pick in (min, max))
    low = min(row[field] for row in every if row["ops"] == first["ops"]) / 2
    axes.plot(
        [first["ops"], last["ops"]], [low, low * last["ops"] / first["ops"]],
        color="0.7", linestyle="--", label="linear",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ops, 30 choices each")
    axes.grid(True, which="major", color="0.9")


def run_plot(args: argparse.Namespace) -> None:
    kinds = newest(args.out)
    if not kinds:
        raise SystemExit(f"{args.out} has no solver_scale records of schema {SCHEMA}")
    figure, panels = new_figure(len(PANELS), (10, 4.2))
    for axes, (field, name) in zip(panels, PANELS, strict=True):
        draw_panel(axes, kinds, field)
        axes.set_ylabel(name)
    panels[0].legend(frameon=False, fontsize=9)
    some = next(iter(kinds.values()))[-1]
    figure.suptitle(f"{some['cpu']}, commit {some['commit']}, load {some['load']}", fontsize=9)
    save_figure(figure, args.image)
    print(args.image)


# ---- the command ---------------------------------------------------------------------------------


def main() -> int:
    runs = {"scale": run_scale, "peers": run_peers, "agree": run_agree, "plot": run_plot}
    parser = harness.make_parser(__doc__, RESULTS / "solver.jsonl")
    parser.add_argument("what", choices=list(runs))
    parser.add_argument(
        "--ops", type=harness.count, nargs="+", help="instead of a list per kind of problem"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="default: all")
    parser.add_argument("--choices", type=harness.count, default=30, help="per op")
    parser.add_argument("--seed", type=int, default=1, help="of the first problem")
    parser.add_argument("--limit", type=harness.seconds, default=10.0, help="per engine, problem")
    parser.add_argument("--problems", type=harness.count, default=200, help="agree: how many")
    parser.add_argument(
        "--image", type=Path, default=ROOT / "docs" / "images" / "solver_growth.svg",
        help="plot: its ending is the format",
    )  # fmt: skip
    args = parser.parse_args()
    runs[args.what](args)
    return 0


if __name__ == "__main__":
    harness.run_script(main)
