# SPDX-License-Identifier: BSD-3-Clause
"""Compares this commit with another one: which plans differ, and how fast each runs them.

    python benchmarks/bench_commits.py plans ../old           # of the 86 networks of the board
    python benchmarks/bench_commits.py calls ../old           # ten networks of the board, an hour
    python benchmarks/bench_commits.py calls ../old vgg16 --batches 33 --tuned-by now
    python benchmarks/bench_commits.py calls ../old linear view_slice --batches 1 32 64
    python benchmarks/bench_commits.py calls . dqn --draft --tune-s 1 --starts 1   # to see it work

The path is that of a checkout with a build of its commit in it. Networks and this script are the
same for both commits; only torchalgo differs. Each step runs in a process of its own.

plans: compares graphs, candidates, plans, texts and constants as scripts/plan_hashes.py does, with
  drawn costs; nothing is timed. A record lists the columns that differ, by network, and how often a
  primitive is a candidate, or chosen, on one side only. Takes 7 to 14 minutes.
calls: one of the commits makes a plan for one image, and both run it, with each of the batches.
  Three processes take turns: the other commit, this one, and this one again, as an A/A control.
  Only one computes at a time. Where its memory lies makes a process faster or slower by some
  percent as long as it lives, so each network has several starts. A ratio is the other commit's
  time over this one's, with its interval (compare.ratio_of_starts). The last lines have geometric
  means. A record also says how far the outputs are apart, and which layers did not run as planned;
  or why a commit cannot run the plan. Beside networks there are single layers with a fixed
  primitive (single_layers.py). Takes 2 to 6 minutes per network.

Appends JSON lines to benchmarks/results/commits.jsonl: one of plans, one per network and batch.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import harness
from board_networks import board, with_inductor
from commit_calls import serve, tune
from compare import geometric_interval, in_rounds, ratio_of_starts
from drafts import git_state
from harness import Record
from single_layers import case_name
from torchalgo_cli.child import Child, EndedError

sys.path.append(str(harness.ROOT / "scripts"))
from plan_hashes import columns_in, differences

PAUSE_S = 0.005  # before a turn: idle threads of the process before spin no longer
LIMIT_S = 1800.0  # of a tuning
BOTH = ("before", "now")
WHO = (*BOTH, "again")

# ---- processes that take turns -------------------------------------------------------------------


class RefusedError(Exception):
    """A commit did not run the plan; the message says which one, and why."""


class Server(Child):
    """A process that runs `serve` with the torchalgo of one tree."""

    def __init__(self, who: str, tree: Path, *arguments: Any, env: Mapping[str, str]) -> None:
        super().__init__(*harness.child_of(serve, *arguments, env=env))
        self._who, self._tree = who, tree

    def receive(self, limit_s: float | None = None) -> Any:
        try:
            return super().receive(limit_s)
        except EndedError as problem:
            raise RefusedError(f"{self._who}: the process {problem}") from None

    def wait(self) -> None:
        """Waits until the plan runs."""
        answer = self.receive()
        if "refused" in answer:
            raise RefusedError(f"{self._who}: {answer['refused']}")
        if not Path(answer["package"]).resolve().is_relative_to(self._tree):
            raise SystemExit(f"bench_commits: {answer['package']} is not of {self._tree}")

    def ask(self, batch: int, outputs: str = "") -> Any:
        time.sleep(PAUSE_S)
        self.send([batch, outputs])
        return self.receive()


def apart(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Returns the largest difference of outputs, relative to the largest number in its tensor."""
    pairs = [(a.double(), b.double()) for a, b in zip(left, right, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def one_start(
    servers: Mapping[str, Any], batches: Sequence[int], rounds: int, folder: Path
) -> dict[int, Record]:
    """Returns the times of one start by batch, and what does not depend on the start."""
    found = {}
    for batch in batches:
        files = {who: str(folder / who) for who in servers}
        fallbacks = {who: server.ask(batch, files[who]) for who, server in servers.items()}
        takers = {who: partial(server.ask, batch) for who, server in servers.items()}
        found[batch] = {
            "times": in_rounds(takers, rounds),
            "difference": apart(*(torch.load(files[who], weights_only=True) for who in BOTH)),
            "fallbacks": {who: fallbacks[who] for who in BOTH},
        }
    return found


def all_starts(
    name: str, trees: Mapping[str, Path], args: argparse.Namespace, folder: Path
) -> Record:
    """Returns what all records of a network say, and its "starts".

    Raises: RefusedError if a commit does not run the plan.
    """
    path, limits = str(folder / "plan.json"), harness.thread_env(args.threads)
    env = {who: {**limits, "PYTHONPATH": str(tree / "python")} for who, tree in trees.items()}
    by = args.tuned_by
    answer = harness.run_child(
        tune, name, path, args.tune_s, args.threads, limit_s=LIMIT_S, env=env[by]
    )
    if answer.failure:
        raise RefusedError(f"{by}: the tuning {answer.failure}")
    starts = []
    for _ in range(args.starts):
        with contextlib.ExitStack() as stack:
            servers = {
                who: stack.enter_context(
                    Server(who, tree, name, path, args.threads, env=env[who])
                )
                for who, tree in trees.items()
            }  # fmt: skip
            for server in servers.values():
                server.wait()
            starts.append(one_start(servers, args.batches, args.rounds, folder))
    return {"primitives": answer.values[-1], "starts": starts}


# ---- records -------------------------------------------------------------------------------------


def record_of(starts: Sequence[Record]) -> Record:
    """Returns what a record says of the starts of one batch."""
    us = {who: [start["times"][who] for start in starts] for who in WHO}
    medians = {who: statistics.median(t for times in us[who] for t in times) for who in WHO}
    return {
        "us": {who: round(median, 1) for who, median in medians.items()},
        "ratio": ratio_of_starts(us["before"], us["now"]),
        "control": ratio_of_starts(us["again"], us["now"]),
        "starts": len(starts), "rounds": len(us["now"][0]),
        "difference": starts[0]["difference"], "fallbacks": starts[0]["fallbacks"],
    }  # fmt: skip


def show(record: Record) -> None:
    title = f"{record['network']}, batch {record['batch']}"
    if "refused" in record:
        print(f"{title}: {record['refused']}", flush=True)
        return
    ratio, control = ("{:.3f} [{:.3f}, {:.3f}]".format(*record[n]) for n in ("ratio", "control"))
    fallbacks = " and ".join(str(len(record["fallbacks"][who])) for who in BOTH)
    before, now, _ = record["us"].values()
    print(
        f"{title}: {before} / {now} us = {ratio}, control {control},"
        f" outputs differ by {record['difference']:.1e}, {fallbacks} layers fell back",
        flush=True,
    )


def summary(records: Sequence[Record]) -> Iterator[str]:
    """Yields the mean and the least ratio of each batch, and those of the control."""
    for batch in sorted({record["batch"] for record in records}):
        own = [record for record in records if record["batch"] == batch and "ratio" in record]
        for title in ("ratio", "control") if len(own) > 2 else ():
            mean, low, high = geometric_interval([record[title][0] for record in own])
            least = min(own, key=lambda record: record[title][0])
            yield (
                f"batch {batch}, {len(own)} networks: {title} {mean:.4f} [{low:.4f}, {high:.4f}],"
                f" least {least[title][0]:.3f} ({least['network']})"
            )


def run_calls(trees: Mapping[str, Path], head: Record, args: argparse.Namespace) -> int:
    records = []
    for name in args.names or with_inductor():
        known = {**head, "network": name, "threads": args.threads, "tuned_by": args.tuned_by}
        with tempfile.TemporaryDirectory() as folder:
            try:
                taken = all_starts(name, trees, args, Path(folder))
            except RefusedError as problem:
                taken = {"refused": str(problem)}
        for batch in args.batches:
            line = {**known, "batch": batch, **taken}
            if starts := line.pop("starts", None):
                line |= record_of([start[batch] for start in starts])
            records.append(harness.record(args.out, line, show))
    for text in summary(records):
        print(text)
    return 1 if any("refused" in record for record in records) else 0


def only_in(these: Sequence[str], those: Sequence[str]) -> dict[str, int]:
    """Counts the primitives of the lines that `those` lack."""
    lines = (Counter(these) - Counter(those)).elements()
    found = [re.search("primitive='([^']+)'", line) for line in lines]
    return dict(Counter(match[1] for match in found if match))


def run_plans(trees: Mapping[str, Path], head: Record, args: argparse.Namespace) -> int:
    names = args.names or board()
    changed = differences(*(columns_in(trees[who], names) for who in BOTH))
    before, now = (columns_in(trees[who], [*changed], lines=True) for who in BOTH)
    networks = {
        name: {"columns": columns} | {
            column: {"before": only_in(a, b), "now": only_in(b, a)}
            for column in ("candidates", "plan")
            for a, b in [(before[name][column], now[name][column])]
        }
        for name, columns in changed.items()
    }  # fmt: skip
    harness.record(args.out, {**head, "compared": len(names), "changed": networks})
    print(f"{len(names) - len(changed)} of {len(names)} networks are the same in both commits")
    return 0


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "commits.jsonl")
    parser.add_argument("what", choices=["plans", "calls"])
    parser.add_argument("other", type=Path, help="a checkout of the other commit, with its build")
    parser.add_argument("names", nargs="*", type=case_name, metavar="NETWORK", help="or a layer")
    parser.add_argument("--tuned-by", choices=BOTH, default="before", help="who makes the plan")
    parser.add_argument("--tune-s", type=harness.seconds, default=30.0, help="for each plan")
    parser.add_argument("--batches", type=harness.count, nargs="+", default=[1], help="of calls")
    parser.add_argument("--threads", type=harness.count, default=1, help="of each process")
    parser.add_argument("--starts", type=harness.count, default=5, help="of the processes")
    parser.add_argument("--rounds", type=harness.count, default=15, help="of each start and batch")
    args = parser.parse_args()
    harness.place_of(args.out)  # a tree with changes is refused before anything is measured
    trees = {"before": args.other.resolve(), "now": harness.ROOT, "again": harness.ROOT}
    other = git_state(trees["before"])
    if (other["dirty"] or not other["commit"]) and not args.draft:
        parser.error(f"expected a checkout without changes, or --draft; got {args.other}")
    head = {"schema": 1, "benchmark": "commits", "what": args.what, "other": other}
    return {"plans": run_plans, "calls": run_calls}[args.what](trees, head, args)


if __name__ == "__main__":
    harness.run_script(main)
