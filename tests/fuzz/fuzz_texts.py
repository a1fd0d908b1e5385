# SPDX-License-Identifier: BSD-3-Clause
"""Mutated texts of problems, graphs, choices and PBQPs through Python's bindings, and what follows.

    python tests/fuzz/fuzz_texts.py problem --cases 1000000

A text is refused with torchalgo.Error, or it survives its spelling. A small problem that is read is
also run by a random primitive under the numeric gate; a graph is planned; a PBQP is solved.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import torch

import isolated
from campaign import FindingError, Fuzzer, main
from mutate import mutated, seeds_of
from torchalgo import _C

SEEDS = {name: seeds_of(name) for name in ("problem", "graph", "choice", "pbqp")}
CPU = _C.cpu_device()


def run_problem(rng: random.Random, text: str) -> str:
    problem = _C.parse_problem(text)
    if _C.parse_problem(problem) != problem:
        raise FindingError(f"{problem} is spelled differently when read again")
    primitives, _, _ = _C.offers_of(problem, 1 << 30, CPU)
    inputs, result = _C.tensor_sizes(problem)[:2]
    weights = [_C.weight_sizes(layer) or [1] for layer in _C.layers_of(problem)]
    sizes = [*inputs, result, *weights]
    if not primitives or _C.flop_count(problem) > 1e6 or max(map(math.prod, sizes)) > 1e5:
        return "read"
    primitive = rng.choice(primitives)
    failure = _C.check_primitives(problem, [primitive], 1e-5)[0][1]
    if not failure:
        return "run"
    rounding = re.search("f64 reference by ([0-9.e+-]+) ", failure)
    is_near = rounding is not None and float(rounding.group(1)) < 1e-3  # sums that cancel
    if not (is_near or ".resize" in primitive.name):  # positions at a border are rounded
        raise FindingError(f"{primitive.name} on {problem}: {failure}")
    return "refused by the gate"


def run_graph(rng: random.Random, text: str) -> str:
    graph = _C.parse_graph(text)
    if _C.parse_graph(graph.to_text()).to_text() != graph.to_text():
        raise FindingError("the graph is another one when read again")
    candidates = _C.find_candidates(graph)
    transforms, costs = _C.transform_candidates(graph, candidates), _C.CostTable()
    for _ in range(50):
        _, wanted = _C.make_plan(graph, candidates, transforms, costs, time_limit_s=1)
        if not wanted:
            return "planned"
        for key in wanted:
            costs.set(key, rng.randint(1, 1000), "measured")
    raise FindingError("the planner still wants costs after 50 rounds")


def run_choice(rng: random.Random, text: str) -> str:
    choice = _C.parse_choice(text)
    if _C.parse_choice(choice) != choice:
        raise FindingError(f"{choice!r} is read differently")
    return "read"


def run_pbqp(rng: random.Random, text: str) -> str:
    problem = _C.PbqpProblem.parse(text)
    if _C.PbqpProblem.parse(problem.to_text()).to_text() != problem.to_text():
        raise FindingError("the problem is another one when read again")
    solved = problem.solve(time_limit_s=0.2, with_marginals=True, with_transcript=False)
    choice = solved["choice"]
    if choice is not None and problem.evaluate(choice) != solved["cost"]:
        raise FindingError("the cost is not that of the choice")
    return "solved"


def fuzzer(kind: str, run: Callable[[random.Random, str], str]) -> Fuzzer:
    """Returns a fuzzer that mutates a text of one kind and runs it."""

    def fuzz(seed: int) -> list[str]:
        torch.set_num_threads(1)
        rng = random.Random(seed)
        text = mutated(rng, rng.choice(SEEDS[kind]), SEEDS[kind])
        try:
            return [run(rng, text)]
        except (_C.Error, UnicodeError):
            return ["refused"]
        except FindingError:
            raise
        except Exception as error:
            raise FindingError(f"{type(error).__name__}: {error}: {text[:300]!r}") from None

    return fuzz


RUN = {"problem": run_problem, "graph": run_graph, "choice": run_choice, "pbqp": run_pbqp}
FUZZERS = {kind: fuzzer(kind, run) for kind, run in RUN.items()}

if __name__ == "__main__":
    main(__doc__, FUZZERS, isolated.results)
