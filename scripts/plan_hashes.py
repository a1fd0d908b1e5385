# SPDX-License-Identifier: BSD-3-Clause
"""Compares what torchalgo makes of the networks of the board with what it made before.

    python scripts/plan_hashes.py               # compares with tests/golden/plan_hashes.json
    python scripts/plan_hashes.py resnet18      # some networks
    python scripts/plan_hashes.py --write       # writes the file, after a change that is meant
    python scripts/plan_hashes.py --tree ../old --lines     # with another tree that is built

A change that only moves code must leave all hashes as they are. Costs are drawn from the names of
primitives, so that nothing is measured and plans use many algorithms. torch and torchalgo use AVX2
and one thread. A network's columns are in the order in which one leads to the next:

graph: problems, data flow, and the operations that PyTorch runs.
candidates: those of each operation, and the transforms.
plan: the primitive of each operation, and the transforms.
forward: the text of the module that runs the plan.
constants: type, sizes and bits of its tensors, such as folded weights.

With --tree, this script and the networks of this tree also run with the other tree's torchalgo.
--lines shows the lines that differ there, except those of constants.

Takes three minutes on two cores. Exit status 1 if a hash differs; needs torchvision and timm.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
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


def columns_of(name: str) -> dict[str, Iterable[Any]]:
    """Returns the parts of each column of a network. Uses only what older trees have as well."""
    import torch

    from board_networks import build, build_input
    from cost_tables import Table, candidates_of
    from replay import keys_of, plan_of
    from support.fake_bench import spread  # type: ignore[import-not-found]
    from torchalgo import _C
    from torchalgo._capture.freeze import freeze_model
    from torchalgo._ir.costs import key_of

    x = build_input(name)
    frozen = freeze_model(build(name), (x,))
    imported = _C.import_graph(frozen._c, (x,))
    graph = imported.graph
    device = _C.Device(kind="cpu", name="any", isa="avx2")
    found = _C.find_candidates(graph, device=device, drop_dominated=True)
    transforms = _C.transform_candidates(graph, found, device)
    table = Table({}, (0.0, []), graph, found, transforms, {}, {})
    every = [(key_of(c.problem, c.primitive), c) for c in candidates_of(table)]
    ticks = {key: round(spread(c.problem, c.primitive)) for key, c in every}
    plan = plan_of(table, table.costs(ticks))
    planned: Any = _C.rewrite_graph(imported, plan)
    iterators = torch._C._jit_debug_module_iterators(planned)  # type: ignore[attr-defined]
    return {
        "graph": [graph.to_text()],
        "candidates": ((key, c.covers, c.inputs) for key, c in every),
        "plan": keys_of(plan),
        "forward": [planned._get_method("forward").code],
        "constants": (leaf for _, value in iterators["named_attributes"] for leaf in leaves(value)),
    }


def hashes_of(name: str) -> dict[str, str]:
    """Returns the hash of each column of a network."""
    return {column: short_hash(parts) for column, parts in columns_of(name).items()}


def lines_of(name: str) -> dict[str, list[str]]:
    """Returns the lines of each column of a network, without its constants."""
    columns = columns_of(name)
    del columns["constants"]
    return {
        column: [line for part in parts for line in str(part).splitlines()]
        for column, parts in columns.items()
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


def run_share(names: list[str], what: Callable[[str], dict[str, Any]]) -> None:
    """Prints a line of JSON for each network."""
    warnings.simplefilter("ignore")
    for name in names:
        print(json.dumps({"network": name, **what(name)}), flush=True)


def columns_in(tree: Path, names: list[str], lines: bool = False) -> dict[str, dict[str, Any]]:
    """Returns the hashes of networks, or the lines of their columns, with the torchalgo of a tree.

    Raises: SystemExit if the tree is not built, or cannot plan a network.
    """
    package = tree.resolve() / "python" / "torchalgo"
    if not (package / "libtorchalgo.so").exists():
        raise SystemExit(f"plan_hashes: expected a tree with a build in it, got {tree}")
    script = [sys.executable, str(Path(__file__).resolve()), *(["--lines"] if lines else [])]
    env = {**os.environ, **AVX2, "PYTHONPATH": str(package.parent)}
    started = [
        subprocess.Popen([*script, "--share", *share], env=env, stdout=subprocess.PIPE)
        for i in range(SHARES)
        if (share := names[i::SHARES])
    ]
    outputs = [process.communicate()[0].decode() for process in started]
    if failed := [process.returncode for process in started if process.returncode]:
        raise SystemExit(f"plan_hashes: a process with {tree} ended with {failed[0]}")
    rows = [json.loads(line) for output in outputs for line in output.splitlines()]
    found = {row.pop("network"): row for row in rows}
    return {name: found[name] for name in names}


def differences(
    before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]
) -> dict[str, list[str]]:
    """Returns the columns that differ, by network; ["is new"] for one that was not known."""
    found = {
        name: [column for column in row if before[name].get(column) != row[column]]
        if name in before
        else ["is new"]
        for name, row in now.items()
    }
    return {name: columns for name, columns in found.items() if columns}


def show_lines(tree: Path, names: list[str]) -> None:
    """Prints the lines that only one of two trees has."""
    before, now = (columns_in(each, names, lines=True) for each in (tree, ROOT))
    for name in names:
        for column, lines in now[name].items():
            title = f"{name}: {column}"
            for line in difflib.unified_diff(
                before[name][column], lines, title, title, n=0, lineterm=""
            ):
                print(line)


def main() -> None:
    from board_networks import board

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", help="of the board; all if left out")
    parser.add_argument("--file", type=Path, default=ROOT / "tests" / "golden" / "plan_hashes.json")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--write", action="store_true", help="writes the file")
    either.add_argument("--tree", type=Path, help="compares with another built tree, not the file")
    parser.add_argument("--lines", action="store_true", help="with --tree: shows what differs")
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.networks or board()
    if args.share:
        run_share(names, lines_of if args.lines else hashes_of)
        return
    if args.tree:
        before = columns_in(args.tree, names)
    else:
        before = json.loads(args.file.read_text()) if args.file.exists() else {}
    now = columns_in(ROOT, names)
    changed = differences(before, now)
    for name, columns in changed.items():
        print(f"{name}: {', '.join(columns)}")
    print(f"{len(now) - len(changed)} of {len(now)} networks are as before")
    if args.tree and args.lines:
        show_lines(args.tree, list(changed))
    if args.write:
        args.file.write_text(json.dumps(dict(sorted((before | now).items())), indent=1) + "\n")
    elif changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
