# SPDX-License-Identifier: BSD-3-Clause
"""Draws the solver's time and memory against the number of ops, from the newest records.

    python benchmarks/plot_solver.py --out docs/images/solver_growth.svg

Log-log, a line per kind of network; a hollow mark was not proven optimal within its limit. The grey
line grows like the number of ops. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench_solver import RESULTS, SCHEMA

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "solver_growth.svg"
PANELS = (
    ("cpu_seconds", "time on one core, s"),
    ("peak_mib", "memory on top of the problem, MiB"),
)
MARKS = "osD^vP"


def newest(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Per kind the last record of each size, by size."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=IMAGE, help="its ending is the format")
    args = parser.parse_args()
    kinds = newest(args.record)
    if not kinds:
        raise SystemExit(f"{args.record} has no solver_scale records of schema {SCHEMA}")

    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "torchalgo"  # the same records, the same file
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(10, 4.2), layout="constrained")
    for axes, (field, name) in zip(panels, PANELS, strict=True):
        draw_panel(axes, kinds, field)
        axes.set_ylabel(name)
    panels[0].legend(frameon=False, fontsize=9)
    some = next(iter(kinds.values()))[-1]
    figure.suptitle(f"{some['cpu']}, commit {some['commit']}, load {some['load']}", fontsize=9)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if args.out.suffix == ".svg" else {}
    figure.savefig(args.out, dpi=120, metadata=metadata)
    print(args.out)


if __name__ == "__main__":
    main()
