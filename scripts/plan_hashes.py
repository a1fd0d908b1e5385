# SPDX-License-Identifier: BSD-3-Clause
"""Compares what torchalgo makes of the networks of the board with what it made before.

    python scripts/plan_hashes.py               # compares with tests/golden/plan_hashes.json
    python scripts/plan_hashes.py resnet18      # some networks
    python scripts/plan_hashes.py --write       # writes the file, after a change that is meant

A change that only moves code must leave all hashes as they are. Costs are drawn from the names of
primitives, so that nothing is measured and plans use many algorithms. torch and torchalgo use AVX2
and one thread. A network's columns are in the order in which one leads to the next:

graph: problems, data flow, and the operations that PyTorch runs.
candidates: those of each operation, and the transforms.
plan: the primitive of each operation, and the transforms.
forward: the text of the module that runs the plan.
constants: type, sizes and bits of its tensors, such as folded weights.

Takes three minutes on two cores. Exit status 1 if a hash differs; needs torchvision and timm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "python")]
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
SHARES = 2  # processes


def short_hash(parts: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else f"{part}\n".encode())
    return digest.hexdigest()[:12]


def hashes_of(name: str) -> dict[str, str]:
    """Returns the hash of each column of a network."""
    import torch

    from board_networks import build, build_input
    from cost_tables import Table, candidates_of
    from replay import keys_of, plan_of
    from support.fake_bench import spread  # type: ignore[import-not-found]
    from torchalgo import _C
    from torchalgo._capture.freeze import freeze_model
    from torchalgo._ir.costs import key_of
    from torchalgo._plan.find import find_candidates
    from torchalgo._refine.binding import rewrite

    x = build_input(name)
    frozen = freeze_model(build(name), (x,))
    imported = _C.import_graph(frozen._c, (x,))
    graph = imported.graph
    device = _C.Device(kind="cpu", name="any", isa="avx2")
    found = find_candidates(graph, 1 << 30, device)
    transforms = _C.transform_candidates(graph, found, device)
    table = Table({}, (0.0, []), graph, found, transforms, {}, {})
    every = [(key_of(c.problem, c.primitive), c) for c in candidates_of(table)]
    ticks = {key: round(spread(c.problem, c.primitive)) for key, c in every}
    plan = plan_of(table, table.costs(ticks))
    planned = rewrite(imported, plan)
    iterators = torch._C._jit_debug_module_iterators(planned._c)  # type: ignore[attr-defined]
    return {
        "graph": short_hash([graph.to_text()]),
        "candidates": short_hash((key, c.covers, c.inputs) for key, c in every),
        "plan": short_hash(keys_of(plan)),
        "forward": short_hash([planned.code]),
        "constants": short_hash(
            leaf for _, value in iterators["named_attributes"] for leaf in leaves(value)
        ),
    }


def leaves(value: Any) -> Iterator[Any]:
    """Yields what a constant of a module consists of: the bytes of tensors, numbers and texts."""
    if hasattr(value, "__getstate__") and "ScriptObject" in type(value).__name__:
        yield from leaves(value.__getstate__())
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each)
    elif hasattr(value, "untyped_storage"):
        yield (value.dtype, tuple(value.shape))
        yield value.contiguous().numpy().tobytes()
    else:
        yield value


# ---- all networks, in processes of their own -----------------------------------------------------


def run_share(names: list[str]) -> None:
    """Prints a line of JSON for each network."""
    warnings.simplefilter("ignore")
    for name in names:
        print(json.dumps({"network": name, **hashes_of(name)}), flush=True)


def all_hashes(names: list[str]) -> dict[str, dict[str, str]]:
    script = [sys.executable, str(Path(__file__).resolve()), "--share"]
    shares = [share for i in range(SHARES) if (share := names[i::SHARES])]
    started = [
        subprocess.Popen([*script, *share], env=os.environ | AVX2, stdout=subprocess.PIPE)
        for share in shares
    ]
    found = {}
    for process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"plan_hashes: a process ended with {process.returncode}")
        for line in output.decode().splitlines():
            row = json.loads(line)
            found[row.pop("network")] = row
    return {name: found[name] for name in names}


def first_difference(before: dict[str, str] | None, now: dict[str, str]) -> str:
    """Returns the first column that differs; "" if none does."""
    if before is None:
        return "is new"
    return next((column for column in now if before.get(column) != now[column]), "")


def main() -> None:
    from board_networks import board

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", help="of the board; all if left out")
    parser.add_argument("--file", type=Path, default=ROOT / "tests" / "golden" / "plan_hashes.json")
    parser.add_argument("--write", action="store_true", help="writes the file")
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.networks or board()
    if args.share:
        run_share(names)
        return
    before = json.loads(args.file.read_text()) if args.file.exists() else {}
    now = all_hashes(names)
    differences = {n: d for n, row in now.items() if (d := first_difference(before.get(n), row))}
    for name, column in differences.items():
        print(f"{name}: {column}")
    print(f"{len(now) - len(differences)} of {len(now)} networks are as before")
    if args.write:
        args.file.write_text(json.dumps(dict(sorted((before | now).items())), indent=1) + "\n")
    elif differences:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
