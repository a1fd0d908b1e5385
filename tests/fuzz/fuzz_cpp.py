# SPDX-License-Identifier: BSD-3-Clause
"""Runs libFuzzer on a parser in C++: its texts are mutated under sanitizers, guided by coverage.

    python tests/fuzz/fuzz_cpp.py problem --cases 10000000 --seed 1

The targets are problem, graph, choice and pbqp. Needs clang++ with libFuzzer. An input that breaks
a promise ends the run and lies in the build folder afterwards.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

from torch.utils import cpp_extension

from campaign import Start, keep, record_of, why_not_kept

FUZZ = Path(__file__).resolve().parent
ROOT = FUZZ.parents[1]
LENGTHS = {"problem": 512, "graph": 2048, "choice": 128, "pbqp": 512}  # of texts, at most


def write_corpus(target: str, folder: Path) -> None:
    """Writes each seed of the target to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate((FUZZ / "seeds" / f"{target}.txt").read_text().split("----\n")):
        is_line = target in ("problem", "choice")
        (folder / f"{i:03}").write_text(text.rstrip("\n") if is_line else text)


def runs_of(log: str) -> int:
    """Reads how many inputs libFuzzer ran from the last line that counts them."""
    counts = [line.split()[0] for line in log.splitlines() if line.startswith("#")]
    return max((int(count[1:]) for count in counts if count[1:].isdigit()), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=sorted(LENGTHS))
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=0, help="0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=Path, default=ROOT / "build/fuzz")
    parser.add_argument("--record", type=Path, help="append to this file")
    args = parser.parse_args()
    if why := why_not_kept(args.record):
        parser.error(why)
    includes = cpp_extension.include_paths()[0]
    subprocess.run([FUZZ / "cpp/build.sh", args.build, includes], check=True)
    corpus = args.build / f"corpus_{args.target}_{args.seed}"
    write_corpus(args.target, corpus)
    command = [
        args.build / args.target, f"-runs={args.cases}", f"-seed={args.seed}",
        f"-max_len={LENGTHS[args.target]}", "-timeout=20", "-rss_limit_mb=4000",
        f"-artifact_prefix={args.build}/{args.target}-",
        f"-max_total_time={round(60 * args.minutes)}", corpus,
    ]  # fmt: skip
    start = Start()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    found = int(done.returncode != 0)
    if found:
        print(done.stderr[-4000:], file=sys.stderr)
    outcomes = Counter({"sound": runs_of(done.stderr)} | ({"finding": 1} if found else {}))
    name = f"cpp_{args.target}"
    keep(record_of(name, args.seed, args.seed, outcomes, found, start), args.record)
    return found


if __name__ == "__main__":
    sys.exit(main())
