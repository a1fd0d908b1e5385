# SPDX-License-Identifier: BSD-3-Clause
"""Prices primitives that compilers make beside torchalgo's own.

    python benchmarks/price_compilers.py plans inductor loops --resume
    python benchmarks/price_compilers.py tables        # prints what the last records say

`plans` tunes a plan for each of 14 networks at 224 px. `inductor` takes the operations of these
plans that are neither convolutions nor linear layers: pooling, elementwise operations with what is
fused to them, concatenations. Inductor compiles each of them for nchw and channels_last. At most
MOST_OF_A_KIND sizes of a kind are measured; another size takes the ratio of the nearest one.
`loops` compiles plain C loop nests of convolutions with GCC and Clang, with and without their
polyhedral optimizers (Graphite and Polly), in nchw and in nChw16c.

Each of them takes turns with the fastest primitive per layout that a plan may choose. A ratio is
the median of the rounds' ratios. Weights are warm, and inputs are written just before each run.
Three times of Inductor's are kept: a call of the compiled function, a call of its C++ kernel alone
on memory that exists, and both for an operation on 16 numbers, which is the price of the call. The
kernel is compared as if it were called as cheaply as primitives are. The C loops read an input that
is padded already, and sizes are constants for the compiler. Both favor the compilers.

Takes 20 minutes. Appends one JSON line per network or problem to
benchmarks/results/compilers.jsonl.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from statistics import geometric_mean, median
from typing import Any

import torch
from torch.nn import functional

import harness
from compare import in_rounds
from loop_nests import (  # fmt: skip
    BUDGET_S,
    CONVOLUTIONS,
    FLOOR,
    LAYOUTS,
    ROUNDS,
    called_as_ours,
    cell,
    conv_text,
    copied,
    error_of,
    fastest,
    free_gain_us,
    loops_table,
    ours_us,
    price_loops,
    record_of,
    short,
    time_us,
)
from networks import CLASSIFIERS, random_input, random_network
from openvino_layers import POOL
from pages import table
from torchalgo import _C, Settings, optimize
from torchalgo._base.stats import Faster, is_faster

SIZE = 224
RESIZES = (
    "nearest_f32_n1c64h56w56_x2x2", "bilinear_f32_n1c64h112w112_p56q56",
    "bilinear_f32_n1c128h14w14_p28q28", "bilinear_f32_n1c21h28w28_p224q224",
)  # fmt: skip
# No classifier has them: rare_layers of networks.py and lraspp_mobilenet_v3_large do.
MOST_OF_A_KIND = 6
AT_ONCE = 10  # problems in one process
LIMIT_S = 600.0  # of one process

# ---- plans ---------------------------------------------------------------------------------------


def tune(names: Sequence[str], options: harness.Record) -> Iterator[harness.Record]:
    """The plans of networks."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    for name in names:
        network, x = random_network(name), random_input(name, SIZE)
        settings = Settings(cost_db=False, progress=False)
        plan = optimize(network, x, settings=settings, budget_s=options["tune_s"]).plan
        yield record_of(
            "plans", name, options["threads"], status=plan.status, cost_us=plan.cost_us,
            nodes=[
                [n.problem, n.primitive, str(n.src), str(n.dst), round(n.predicted_us, 2)]
                for n in plan.nodes if n.primitive and not _C.is_view(n.primitive)
            ],
        )  # fmt: skip


def is_loop(problem: str) -> bool:
    """True for a convolution, a chain of them or a linear layer: not for Inductor."""
    return re.match(r"fwd|linear|chain|squeeze|attention", problem) is not None


def kind_of(problem: str) -> str:
    """The problem without its sizes."""
    bare = re.sub(r"n\d+c[\dx]+h\d+w\d+|_k\d+from\d+", "", problem)
    return bare.replace("_f32__", "_f32_")


def elements(problem: str) -> int:
    return sum(map(prod, _C.tensor_sizes(problem)[0]))


def chosen_problems(plans: Sequence[harness.Record]) -> list[str]:
    """Up to MOST_OF_A_KIND problems of each kind, from the smallest to the largest."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for line in plans:
        for problem, *_ in line["nodes"]:
            if not is_loop(problem):
                kinds[kind_of(problem)].add(problem)
    chosen = []
    for _, problems in sorted(kinds.items()):
        own = sorted(problems, key=lambda p: (elements(p), p))
        step = max(1.0, (len(own) - 1) / (MOST_OF_A_KIND - 1))
        places = {min(len(own) - 1, round(i * step)) for i in range(MOST_OF_A_KIND)}
        chosen += [own[i] for i in sorted(places)]
    return [*chosen, *RESIZES]


# ---- Inductor ------------------------------------------------------------------------------------


def torch_op(problem: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The operation as PyTorch has it, and its inputs in nchw."""
    first, *rest = problem.split("+")
    word = first.partition("_")[0]
    inputs = [torch.rand(sizes) * 4 - 2 for sizes in _C.tensor_sizes(problem)[0]]
    result = _C.tensor_sizes(problem)[1]
    acts: list[Callable[..., Any]] = [getattr(functional, name) for name in rest]
    if word == "scaleshift":
        inputs += [torch.rand(1, result[1], 1, 1) for _ in range(2)]
        op: Callable[..., Any] = lambda x, scale, shift: x * scale + shift  # noqa: E731
    elif word in ("add", "mul"):
        op = getattr(torch, word)
    elif word == "concat" and (shuffled := re.search(r"_shuffle(\d+)$", first)):
        op = lambda *xs: functional.channel_shuffle(torch.cat(xs, 1), int(shuffled[1]))  # noqa: E731
    elif word == "concat":
        op = lambda *xs: torch.cat(xs, 1)  # noqa: E731
    elif found := re.search(r"^slice_.*_k(\d+)from(\d+)$", first):
        count, begin = int(found[1]), int(found[2])
        op = lambda x: x[:, begin : begin + count].clone(memory_format=format_of(x))  # noqa: E731
    elif found := POOL.match(first):
        r, s, st_h, st_w, pad_h, pad_w = map(int, found.groups()[1:7])
        pool: Any = functional.max_pool2d if word == "maxpool" else functional.avg_pool2d
        tail: dict[str, Any] = {"ceil_mode": found[10] is not None}
        if word == "avgpool":
            tail["count_include_pad"] = found[11] is None
        op = partial(pool, kernel_size=(r, s), stride=(st_h, st_w), padding=(pad_h, pad_w), **tail)
    elif word == "avgpool":
        op = partial(functional.adaptive_avg_pool2d, output_size=(result[2], result[3]))
    elif word in ("nearest", "bilinear"):
        size: dict[str, Any] = {"size": result[2:]}
        if scale := re.search(r"_x(\d+)x(\d+)$", first):
            size = {"scale_factor": [float(scale[1]), float(scale[2])]}
        op = partial(functional.interpolate, mode=word, **size)
    else:
        op = getattr(functional, word) if word != "sigmoid" else torch.sigmoid

    def run(*xs: torch.Tensor) -> Any:
        y = op(*xs)
        for act in acts:
            y = act(y)
        return y

    return run, inputs


def format_of(x: torch.Tensor) -> torch.memory_format:
    is_last = x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


def kernels_of(compiled: Callable[..., Any], inputs: Sequence[torch.Tensor], modules: Any) -> Any:
    """The C++ functions that one call runs, each with its arguments."""
    calls: list[tuple[Any, Any]] = []
    for module in modules:
        own = {name: f for name, f in vars(module).items() if name.startswith("cpp_fused")}
        for name, function in own.items():

            def keep(*given: Any, function: Any = function) -> Any:
                calls.append((function, given))
                return function(*given)

            setattr(module, name, keep)
        compiled(*inputs)
        for name, function in own.items():
            setattr(module, name, function)
    return calls


def compile_op(problem: str, layout: str) -> tuple[dict[str, Callable[[], float]], float]:
    """Returns functions that time Inductor's kernel and a whole call, and the relative error."""
    from torch._inductor.codecache import PyCodeCache

    run, inputs = torch_op(problem)
    if layout == "nhwc":
        inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
    torch._dynamo.reset()
    before = len(PyCodeCache.modules)
    compiled = torch.compile(run, dynamic=False)
    result = compiled(*inputs)
    if list(result.shape) != _C.tensor_sizes(problem)[1]:
        raise ValueError(f"{problem}: PyTorch gives {list(result.shape)}")
    error = error_of(result, run(*inputs))
    calls = kernels_of(compiled, inputs, PyCodeCache.modules[before:])
    refresh = copied(inputs)
    takers = {"call": lambda: time_us(lambda: compiled(*inputs), refresh)}
    if len(calls) == 1:
        ((kernel, given),) = calls
        takers["kernel"] = lambda: time_us(lambda: kernel(*given), refresh)
    elif calls:
        takers["kernel"] = lambda: time_us(lambda: [f(*given) for f, given in calls], refresh)
    return {f"{what} {layout}": taker for what, taker in takers.items()}, error


def price_inductor(problems: Sequence[str], options: harness.Record) -> Iterator[harness.Record]:
    """Inductor's kernels beside ours, one record per problem."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    least = compile_op(FLOOR, "nchw")[0]
    floor: dict[str, Callable[[], float]] = {
        "floor kernel": least["kernel nchw"], "floor call": least["call nchw"],
        "floor ours": partial(ours_us, FLOOR, fastest(FLOOR)["nchw"]),
    }  # fmt: skip
    for problem in problems:
        own = fastest(problem)
        takers = dict(floor)
        takers |= {f"ours {layout}": partial(ours_us, problem, p) for layout, p in own.items()}
        errors = {}
        for layout in ("nchw", "nhwc"):
            theirs, errors[layout] = compile_op(problem, layout)
            takers |= theirs
        taken = in_rounds(takers, ROUNDS, BUDGET_S)
        yield record_of(
            "inductor", problem, options["threads"], rel_error=errors, wall_us=short(taken),
            primitives={layout: p.name for layout, p in own.items()},
            versions=harness.versions_of("torch"),
        )  # fmt: skip


def as_ours(line: harness.Record, layout: str) -> list[float] | None:
    """Inductor's kernel by round, as if it were called like ours."""
    wall = line["wall_us"]
    kernel = wall.get(f"kernel {layout}")
    return called_as_ours(kernel, wall["floor kernel"], wall["floor ours"]) if kernel else None


# ---- tables --------------------------------------------------------------------------------------


def last_lines(lines: Sequence[harness.Record], kind: str, threads: int) -> dict[str, Any]:
    """The last record of each case."""
    own = [x for x in lines if x["kind"] == kind and x["threads"] == threads]
    return {line["case"]: line for line in own}


def against(line: harness.Record, theirs: str, ours: str) -> dict[str, Faster]:
    """Inductor's kernel as a primitive, and its whole call, over ours: paired by round."""
    wall = line["wall_us"]
    own, called = wall.get(f"ours {ours}"), wall.get(f"call {theirs}")
    kernel = as_ours(line, theirs)
    found = {"kernel": kernel, "call": called} if own else {}
    return {what: is_faster(us, own) for what, us in found.items() if us is not None}


def inductor_table(lines: Mapping[str, Any]) -> list[str]:
    rows = []
    for problem, line in lines.items():
        wall, cells = line["wall_us"], []
        for layout in LAYOUTS:
            own = wall.get(f"ours {layout}")
            cells.append(f"{median(own):.1f}" if own else "-")
        for layout in ("nchw", "nhwc"):
            results = against(line, layout, layout)
            cells += [cell(results.get("kernel")), cell(results.get("call"))]
        rows.append([problem, *cells])
    head = [f"ours {layout}, us" for layout in LAYOUTS]
    head += [f"{w} {layout}" for layout in ("nchw", "nhwc") for w in ("kernel", "call")]
    return table(["problem", *head], rows)


def kinds_table(lines: Mapping[str, Any]) -> list[str]:
    """Geometric means of a kind, and how often Inductor is faster in each layout."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for problem, line in lines.items():
        kinds[kind_of(problem)].append(line)
    rows = []
    for kind, own in sorted(kinds.items()):
        cells = [str(len(own))]
        for layout in ("nchw", "nhwc"):
            results = [against(line, layout, layout) for line in own]
            for what in ("kernel", "call"):
                some = [each[what] for each in results if what in each]
                if not some:
                    cells.append("-")
                    continue
                wins = sum(each.verdict == "faster" for each in some)
                cells.append(f"{geometric_mean(e.ratio for e in some):.2f} ({wins})")
        rows.append([kind, *cells])
    head = [f"{w} {layout}" for layout in ("nchw", "nhwc") for w in ("kernel", "call")]
    return table(["kind", "sizes", *head], rows)


def saved_part(problem: str, line: harness.Record, layout: str, *, free: bool) -> float:
    """The part of our time in `layout` that Inductor's kernel would save.

    0 unless it is faster by more than the noise. With `free`, any layout of its kernel counts.
    """
    layouts = ["nchw", "nhwc"] if free else [layout]
    if layout == "nChw16c" and re.match(r"(add|relu)_(?!.*channelwise)", problem):
        layouts = ["nchw"]  # the same for all layouts: it never looks at the sizes
    results = [against(line, theirs, layout).get("kernel") for theirs in layouts]
    won = [r.ratio for r in results if r is not None and r.verdict == "faster"]
    return 1 - min(won, default=1.0)


def gains_table(
    plans: Mapping[str, Any], lines: Mapping[str, Any], nests: Mapping[str, Any]
) -> list[str]:
    """The most that each plan could gain: with changes of layouts for nothing, and without them."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for problem in lines:
        kinds[kind_of(problem)].append(problem)
    rows = []
    for network, plan in plans.items():
        others, gains = 0.0, [0.0, 0.0]
        for problem, _, _, dst, us in plan["nodes"]:
            near = kinds.get(kind_of(problem), [])
            if is_loop(problem) or not near:
                continue
            size = elements(problem)
            nearest = min(near, key=lambda p: abs(math.log(elements(p) / size)))
            others += us
            for i, free in enumerate((True, False)):
                gains[i] += us * saved_part(nearest, lines[nearest], dst, free=free)
        gains.append(free_gain_us(plan["nodes"], nests))
        cost = plan["cost_us"]
        cells = [f"{gain:.0f} us, {gain / cost:.2%}" for gain in gains]
        rows.append([network, f"{cost / 1000:.2f}", f"{others / cost:.1%}", *cells])
    head = ["plan, ms", "these operations", "Inductor, any layout", "Inductor, same layout"]
    return table(["network", *head, "depthwise nests, padded for nothing"], rows)


def say_tables(lines: Sequence[harness.Record], threads: int) -> None:
    """Prints what the records say."""
    plans, inductor, nests = (
        last_lines(lines, kind, threads) for kind in ("plans", "inductor", "loops")
    )
    for rows in (
        inductor_table(inductor), kinds_table(inductor), gains_table(plans, inductor, nests),
        loops_table(nests),
    ):  # fmt: skip
        print("", *rows, sep="\n")


# ---- the command ---------------------------------------------------------------------------------


def measure(function: Callable[..., Any], kind: str, cases: Mapping[str, Any], args: Any) -> bool:
    """Measures the cases, AT_ONCE per process. Returns whether all have a record now."""
    cases = {name: case for name, case in cases.items() if args.only in name}
    same = {"kind": kind, "threads": args.threads}
    done = harness.done_before(args.out, "case", same) if args.resume else {}
    todo = [name for name in cases if name not in done]
    for first in range(0, len(todo), AT_ONCE):
        given = [cases[name] for name in todo[first : first + AT_ONCE]]
        options = harness.settings_of(args, "threads", "tune_s")
        env = {**harness.thread_env(args.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        answer = harness.run_child(function, given, options, limit_s=LIMIT_S, env=env)
        for line in answer.values:
            done[line["case"]] = harness.record(args.out, line, show=say_case)
        if answer.failure:
            repro = harness.repro_line(function, given, options, env=env)
            harness.tell_failure(kind, answer.failure, repro)
    return cases.keys() <= done.keys()


def say_case(line: harness.Record) -> None:
    print(f"{line['kind']}: {line['case']}", flush=True)


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "compilers.jsonl", can_resume=True)
    parser.add_argument("parts", nargs="+", choices=["plans", "inductor", "loops", "tables"])
    parser.add_argument("--threads", type=harness.count, default=1, help="of each process")
    parser.add_argument("--only", default="", help="cases with this part in their names")
    parser.add_argument("--tune-s", type=harness.seconds, default=12.0, help="per network")
    args = parser.parse_args()
    complete = True
    if "plans" in args.parts:
        complete &= measure(tune, "plans", {name: name for name in CLASSIFIERS}, args)
    if "inductor" in args.parts:
        plans = last_lines(harness.read_lines(args.out), "plans", args.threads)
        problems = chosen_problems(list(plans.values()))
        complete &= measure(price_inductor, "inductor", {p: p for p in problems}, args)
    if "loops" in args.parts:
        convs = {conv_text(conv): i for i, conv in enumerate(CONVOLUTIONS)}
        complete &= measure(price_loops, "loops", convs, args)
    if "tables" in args.parts:
        say_tables(harness.read_lines(args.out), args.threads)
    return int(not complete)


if __name__ == "__main__":
    harness.run_script(main)
