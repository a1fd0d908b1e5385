# SPDX-License-Identifier: BSD-3-Clause
"""Makes docs/records/globality.md: how often choosing all layers at once pays, and how much.

Each table is solved for the proven optimum and for what weaker ways to choose make of the same
costs. The interval of the value of globality redraws all costs within their noise, twice: both
plans are chosen from one draw and paid in the other. A gain that only follows the noise then shows
as a loss.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cost_tables import Table, candidates_of, usable
from pages import table as markdown_table
from replay import plan_of, price
from torchalgo import _C
from torchalgo._ir.costs import Key
from torchalgo._plan.comparisons import usual_layouts
from torchalgo.verify.check_certificate import INF
from torchalgo.verify.check_claims import CostRows, Graph, Option, changes_of, options_of

SIGMAS_OF_HALF_WIDTH = 1.96  # noise is half of a 95 % interval
PROOF_HEAD = ("network", "nodes", "costs", "optimum", "solve ms", "method")


@dataclass(frozen=True)
class Outcome:
    """The results of one table, in ticks except for counts and seconds."""

    table: Table
    plan: _C.Plan
    solve_s: float
    local: int
    single: int
    single_layout: str
    aten: int
    per_reader: int  # the plan that a model with one transform per reader takes, truly paid
    per_reader_claim: int  # what that model says it costs
    interval: tuple[float, float]  # of local / global

    @property
    def value(self) -> float:
        return self.local / self.plan.cost

    @property
    def layouts(self) -> list[str]:
        return layouts_used(self.plan)


def layouts_used(plan: _C.Plan) -> list[str]:
    """Layouts that the results of its nodes lie in."""
    return sorted({node.primitive.dst for node in plan.nodes if node.primitive.name})


def redraw(table: Table, pick: random.Random) -> dict[Key, int]:
    """Costs that another measuring might have given."""
    return {
        key: max(round(pick.gauss(row.ticks, row.noise_ticks / SIGMAS_OF_HALF_WIDTH)), 1)
        for key, row in table.rows.items()
    }


def interval_of_value(table: Table, draws: int, seed: int) -> tuple[float, float]:
    """95 % of T(local) / T(global), chosen from one redraw of the costs and paid in another."""
    pick = random.Random(f"{seed} {table.network}")
    ratios = []
    for _ in range(draws):
        chosen_from, paid_in = redraw(table, pick), redraw(table, pick)
        costs = table.costs(chosen_from)
        whole, local = plan_of(table, costs), plan_of(table, costs, local=True)
        ratios.append(price(local, paid_in) / price(whole, paid_in))
    ratios.sort()
    tail = len(ratios) // 40
    return ratios[tail], ratios[-1 - tail]


def per_reader_problem(
    graph: Graph, options: Sequence[Sequence[Option]], rows: CostRows
) -> _C.PbqpProblem:
    """The PBQP in which every reader pays the layout changes of its own, as in most of the
    literature. Its nodes are those of `graph.planned`."""
    changes = changes_of(rows)
    variable = {n: i for i, n in enumerate(graph.planned)}
    costs = [[float(o.said["ticks"]) for o in options[n]] for n in graph.planned]
    lines = []

    @functools.cache
    def cheapest(shape: str, have: int, wanted: int) -> float:
        if not wanted & ~have:
            return 0
        hops = [(dst, t) for (src, dst), t in changes[shape].items() if src & have and dst & ~have]
        return min((t + cheapest(shape, have | dst, wanted) for dst, t in hops), default=INF)

    for v, value in enumerate(graph.values):
        writer = value.producer if value.problem else -1
        left = [o.leaves for o in options[writer]] if writer >= 0 else [value.written]
        readers = [n for n in dict.fromkeys(value.readers) if graph.nodes[n].problem]
        wanted = [[o.reads[v] for o in options[n]] for n in readers]
        if writer >= 0:
            own = [cheapest(value.shape, have, value.border) for have in left]
            at = variable[writer]
            costs[at] = [a + b for a, b in zip(costs[at], own, strict=True)]
        for n, reads in zip(readers, wanted, strict=True):
            matrix = [cheapest(value.shape, have, layouts) for have in left for layouts in reads]
            if writer >= 0:
                lines.append(("edge", variable[writer], variable[n], *matrix))
            else:
                costs[variable[n]] = [
                    a + b for a, b in zip(costs[variable[n]], matrix, strict=True)
                ]
    lines = [*(("node", *own) for own in costs), *lines]
    text = "".join(" ".join(map(_word, line)) + "\n" for line in lines)
    return _C.PbqpProblem.parse("pbqp 1\n" + text)


def _word(word: object) -> str:
    return word if isinstance(word, str) else "-" if word == INF else str(int(word))  # type: ignore[call-overload]


def per_reader(table: Table, costs: _C.CostTable) -> tuple[int, int]:
    """Ticks of the plan that the model without sharing takes: truly paid, and as it says."""
    rows: dict[str, dict[str, int]] = {}
    for c in candidates_of(table):
        rows.setdefault(c.problem, {})[repr(c.primitive)] = table.ticks_of(c)
    graph = Graph(table.graph.to_text())
    options = options_of(graph, rows, ())
    problem = per_reader_problem(graph, options, rows)
    solution = problem.solve(time_limit_s=10.0, with_marginals=False, with_transcript=False)
    chosen = set()
    for variable, node in enumerate(graph.planned):
        said = options[node][solution["choice"][variable]].said
        chosen.add((node, said["problem"], said["primitive"], said.get("src"), said.get("dst")))

    def is_chosen(c: _C.Candidate) -> bool:
        p = c.primitive
        return (c.covers[0], c.problem, p.name, p.src, p.dst) in chosen

    return plan_of(table, costs, allow=is_chosen).cost, int(solution["cost"])


def best_single(table: Table, costs: _C.CostTable) -> tuple[int, str]:
    """The cheapest plan that keeps to one of the layouts that most convolutions have."""
    layouts = usual_layouts(table.graph, table.found)
    return min((plan_of(table, costs, layouts=[layout]).cost, layout) for layout in layouts)


def aten_only(table: Table, costs: _C.CostTable) -> int:
    only_aten = [t for t in table.transforms if t.primitive.name.startswith("layout.aten")]
    plan, wanted = _C.make_plan(
        table.graph, table.found, only_aten, costs,
        allow=lambda c: c.primitive.name.startswith("aten."),
    )  # fmt: skip
    assert not wanted
    return plan.cost


def outcome_of(full: Table, draws: int, seed: int) -> Outcome:
    table = usable(full)
    costs = table.costs()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        plan = plan_of(table, costs)
        seconds.append(time.perf_counter() - start)
    single, single_layout = best_single(table, costs)
    paid, claim = per_reader(table, costs)
    return Outcome(
        table, plan, statistics.median(seconds), plan_of(table, costs, local=True).cost,
        single, single_layout, aten_only(table, costs), paid, claim,
        interval_of_value(table, draws, seed),
    )  # fmt: skip


# ---- the page ------------------------------------------------------------------------------------


def ms(ticks: int) -> str:
    return f"{ticks / 1024e6:.3f}"


def times(ticks: int, plan: _C.Plan) -> str:
    return f"{ticks / plan.cost:.3f}"


def value_cell(one: Outcome) -> str:
    """The ratio with its interval; bold where the interval excludes 1."""
    low, high = one.interval
    text = f"{one.value:.3f} [{low:.3f}, {high:.3f}]"
    return f"**{text}**" if low > 1 else text


def summary(outcomes: list[Outcome]) -> str:
    paying = [o for o in outcomes if o.interval[0] > 1]
    zeros = [o for o in outcomes if o.local == o.plan.cost]
    values = [o.value for o in outcomes]
    shared = [o.per_reader / o.plan.cost for o in outcomes]
    return (
        f"On {len(paying)} of {len(outcomes)} networks, choosing all layers at once is cheaper than"
        f" choosing each layer by itself, by more than the noise. The gain is zero on"
        f" {len(zeros)} networks. The median gain is {100 * (statistics.median(values) - 1):.1f} %,"
        f" the largest {100 * (max(values) - 1):.1f} %. Most methods in the literature let every"
        f" reader of a tensor pay for its own layout change. Their plan costs up to"
        f" {100 * (max(shared) - 1):.1f} % more than the optimum. It is the optimum on"
        f" {shared.count(1.0)} of {len(outcomes)} networks."
    )


IN_NETWORKS = (
    "These numbers are sums of costs. Whole networks were timed as well (`python"
    " benchmarks/compare.py local_optimum best_single_layout`, records of AVX-512, one thread)."
    " There, choosing each layer by itself is slower by 3 % at batch 1 (geometric mean of 14"
    " networks), and by 10 % at batch 8 (6 networks). The best plan in a single layout is within"
    " 2 % of the optimal plan in the mean, at every batch. So most of the gain comes from faster"
    " kernels, and one well-chosen layout keeps most of it. On some networks the plan in a single"
    " layout was up to 10 % faster than the optimal plan (AVX2), on others up to 6 % slower. The"
    " guard therefore times it as well."
)


def conditions(outcomes: list[Outcome]) -> list[str]:
    """Lists machines, commits and numbers of threads, with the networks measured there by load."""
    seen: dict[str, dict[str, list[str]]] = {}
    for o in outcomes:
        head = o.table.head
        where, git = head["machine"], head["git"]
        dirty = " with changes" if git["dirty"] else ""
        text = (
            f"{where['cpu']} ({where['isa']}), {where['cores']} cores, {head['threads']} threads,"
            f" torch {where['torch']}, torchalgo {where['torchalgo']}, commit"
            f" {git['commit']}{dirty}, {head['date']}"
        )
        load = f"{head['load_before']:.1f}"
        seen.setdefault(text, {}).setdefault(load, []).append(head["network"])
    lines = []
    for text, loads in seen.items():
        lines.append(f"- {text}. Load of the machine before the measurement:")
        lines += [f"  - {load}: {', '.join(names)}" for load, names in sorted(loads.items())]
    return lines


def page(outcomes: list[Outcome], draws: int) -> str:
    values = [
        [
            o.table.network, ms(o.plan.cost), value_cell(o),
            f"{times(o.single, o.plan)} ({o.single_layout})", times(o.aten, o.plan),
            times(o.per_reader, o.plan), f"{len(o.layouts)}", f"{len(o.plan.transforms)}",
        ]
        for o in outcomes
    ]  # fmt: skip
    proofs = [
        [
            o.table.network, str(len(o.table.graph.nodes)), str(len(o.table.rows)),
            "proven" if o.plan.status == "optimal" else "not proven",
            f"{1000 * o.solve_s:.1f}", o.plan.method,
        ]
        for o in outcomes
    ]  # fmt: skip
    head = [
        "network", "optimum ms", "local / optimum", "single layout", "ATen only",
        "transform per reader", "layouts", "transforms",
    ]  # fmt: skip
    return "\n".join([
        "# What choosing all layers at once is worth",
        "",
        "`benchmarks/bench_replay.py globality` wrote this page from the tables in"
        " `benchmarks/tables`. `benchmarks/record_tables.py` measured these tables at batch 1 in"
        " f32: every candidate of every node, and every layout change. Nothing is left out or"
        " estimated. The times are sums of measured costs, not runs of the network."
        " [glossary.md](../glossary.md) explains the terms.",
        "",
        summary(outcomes),
        "",
        IN_NETWORKS,
        "",
        "The four columns after *optimum ms* are costs divided by the optimum of the same table:"
        " 1.000 means that there is no difference.",
        "",
        *markdown_table(head, values, "---", "---:"),
        "",
        "- *local*: each convolution takes its own fastest primitive; ties are broken by name. The"
        " rest of the plan is then solved around these. Bold: the interval excludes 1.",
        f"- The interval holds 95 % of {draws} ratios. For each ratio, all costs are drawn twice"
        " from normal distributions of their measured noise. The first draw chooses both plans, and"
        " the second draw says what they cost. The interval covers the noise of the costs. It does"
        " not cover the error of the assumption that costs add up.",
        "- *single layout*: the best plan in one layout. Two exceptions are allowed. A node may"
        " read the network's input as it is given. A node without a candidate in that layout may"
        " use others.",
        "- *ATen only*: the best plan with PyTorch's own algorithms only.",
        "- *transform per reader*: the optimal plan of a model in which each reader of a tensor"
        " pays for its own layout change. Its cost is counted as it really runs: a layout change is"
        " paid once per tensor.",
        "- *layouts*: the number of different layouts of results in the optimal plan."
        " *transforms*: the number of its layout changes.",
        "",
        "## The proof on these tables",
        "",
        *markdown_table(PROOF_HEAD, proofs, "---", "---:"),
        "",
        "The times are those of `make_plan` when this page was written, on a machine that may have"
        " been loaded. They include reading the costs, writing the PBQP, the proof and the plan.",
        "",
        "## Where",
        "",
        *conditions(outcomes),
        "",
    ])  # fmt: skip
