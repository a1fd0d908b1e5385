# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: what cuDNN offers, and whether it is true."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import torch

from gpu_here import fixture_of
from gpu_problems import (
    BOUND,
    DIRECTIONS,
    Rows,
    live,
    offers,
    problems,
    runtime_compiled,
    spell,
    spelled,
)
from gpu_stage import Context, Outcome
from torchalgo import _C
from torchalgo._ir.devices import named_device

# By the start of a failure's text: the finding.
FOUND = {"loses a NaN": "lose a NaN", "TA5103": "cannot be made by cuDNN here"}


def sort_failures(outcome: Outcome, failing: list[tuple[str, str]]) -> None:
    """Notes what failed its check, given as names and reasons.

    An engine that loses a NaN computes right numbers, and one that cuDNN cannot make here computes
    none. Both are findings: `optimize` refuses them.
    """
    wrong = list(failing)
    for start, found in FOUND.items():
        names = sorted({name for name, why in wrong if why.startswith(start)})
        outcome.suppose(not names, f"{found}, so optimize refuses them: {', '.join(names)}")
        wrong = [(name, why) for name, why in wrong if not why.startswith(start)]
    outcome.failures += [f"{name}: {why}" for name, why in wrong][:10]


def engine_of(spelled_name: str) -> str:
    """Returns a primitive's name without its knobs, math type and layouts."""
    return re.split(r"[{@ ]", spelled_name)[0].removesuffix(".krsc")


def deviceless(context: Context) -> Outcome:
    """Compares what cuDNN offers for a description of the GPU and for the GPU itself.

    All that it offers for the description must be offered for the GPU too. The GPU may have more.
    Engines that are compiled at run time are left out.
    """
    device, outcome = live(), Outcome()
    fixture = fixture_of(device)
    described = (
        named_device(fixture)
        if fixture
        else _C.Device(
            kind="cuda", name=device.name, isa=device.isa, l2_bytes=device.l2_bytes,
            properties=device.properties, provenance="live, without its index",
        )
    )  # fmt: skip
    asked, different = 0, Rows(context)
    for problem in problems(context, ("f32", "f16")):
        if context.left_s() < 0:
            break
        asked += 1
        there, here = (
            {spelled(p) for p, t in offers(problem, one, "cudnn9.") if not runtime_compiled(t)}
            for one in (described, device)
        )
        if here != there:
            different.append({
                "problem": problem, "live_only": sorted(here - there),
                "described_only": sorted(there - here),
            })  # fmt: skip
    outcome.data = {"described": described.provenance, "different": different}
    outcome.summary = f"{asked - len(different)} of {asked} problems: the same set as described"
    for d in different:
        count = len(d["live_only"])
        outcome.suppose(not count, f"{d['problem']}: {count} primitives with a handle alone")
        outcome.expect(not d["described_only"], f"{d['problem']}: {d['described_only'][:3]}")
    outcome.expect(asked > 0, "nothing was asked")
    return outcome


SAMPLED = 8  # plans of each problem in one pass over all problems


def plans(context: Context) -> Outcome:
    """Sampled plans run and agree with f64: a few of each layer, type and direction in turn."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    rng = random.Random(context.seed)
    left: dict[str, list[_C.Primitive]] = {}
    order = list(problems(context, ("f16", "f32", "tf32", "bf16"), n=2))
    rng.shuffle(order)
    while context.left_s() > 0 and order:
        problem = order.pop(0)
        if problem not in left:
            found = offers(problem, device, "cudnn")
            left[problem] = [p for p, t in found if not runtime_compiled(t)]
            rng.shuffle(left[problem])
        chunk, left[problem] = left[problem][:SAMPLED], left[problem][SAMPLED:]
        checks = _C.check_primitives(problem, chunk, BOUND, context.seed, device)
        for p, (error, failure) in zip(chunk, checks, strict=True):
            rows.append((problem, spelled(p), error, failure))
        if left[problem]:
            order.append(problem)
    ran, failing = len(rows), [row for row in rows if row[3]]
    skipped = sum(map(len, left.values()))
    outcome.data = {
        "rows": rows,
        "skipped": skipped,
        "problems_not_asked": len(set(order) - left.keys()),
    }
    outcome.summary = f"{ran - len(failing)} of {ran} plans agree with f64; {skipped} not reached"
    sort_failures(outcome, [(engine_of(n), why) for _, n, _, why in failing])
    outcome.expect(ran > 0, "no plan ran")
    return outcome


def notes(context: Context) -> Outcome:
    """Primitives that are called deterministic give the same bits each time."""
    device, outcome = live(), Outcome()
    times = 5 if context.quick else 20
    asked, loose, seen_nondeterministic = 0, Rows(context), 0
    for direction in DIRECTIONS:
        problem = spell("3x3_14", "f16", 4, direction)
        for p, traits in offers(problem, device, "cudnn"):
            if context.left_s() < 0:
                break
            if runtime_compiled(traits) or "{" in p.name:
                continue
            first = _C.run_primitive(problem, p, context.seed, device)
            same = all(
                torch.equal(first, _C.run_primitive(problem, p, context.seed, device))
                for _ in range(times - 1)
            )
            asked += 1
            seen_nondeterministic += not same
            if traits.is_deterministic and not same:
                loose.append(f"{spelled(p)} on {problem}")
    outcome.data = {"times": times, "loose": loose, "nondeterministic": seen_nondeterministic}
    outcome.summary = f"{asked} primitives x {times} runs; {seen_nondeterministic} gave other bits"
    outcome.failures += [f"{name} is called deterministic and is not" for name in loose]
    outcome.expect(asked > 0, "nothing ran")
    return outcome


# Kernels by which cuDNN changes a layout or pads channels.
CONVERSION = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|AddPadding|convertTensor|transposeTensor"
    r"|tensorTransform|nhwcToFolded|foldedNhwc|ToKrsc|kcrsTo",
    re.IGNORECASE,
)


# Matches the other names that the profiler lists: calls of CUDA, copies, and kernels of torch.
NOT_OF_CUDNN = re.compile(r"cuda[A-Z]|cu[A-Z]|Activity|Memcpy|Memset|.*at::native")


def kernel_names(run: Callable[[], object]) -> list[str]:
    """Returns the names of the kernels of cuDNN that `run` starts, each once, in short."""
    run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    names = [event.name[:100] for event in profile.events() or []]
    return [name for name in dict.fromkeys(names) if not NOT_OF_CUDNN.match(name)]


def hidden(context: Context) -> Outcome:
    """Primitives with hidden copies, by workspace arithmetic, are those whose kernels convert.

    The names of kernels do not tell what is converted, so a few may differ: an engine that changes
    the layout of a group's few weights, or one whose im2col copies the image of a 1x1 convolution.
    """
    device, outcome = live(), Outcome()
    asked, wrong, rows = 0, [], Rows(context)
    for dtype in ("f16", "tf32"):
        for layer in ("3x3_56", "1x1_14", "dw3x3_56"):
            problem = spell(layer, dtype, 4)
            for p, traits in offers(problem, device, "cudnn9."):
                if context.left_s() < 0:
                    break
                if "{" in p.name or runtime_compiled(traits) or traits.hidden_bytes is None:
                    continue
                names = kernel_names(lambda: _C.run_primitive(problem, p, context.seed, device))  # noqa: B023
                converts = any(CONVERSION.search(name) for name in names)
                asked += 1
                rows.append((problem, spelled(p), traits.hidden_bytes, names))
                if converts != (traits.hidden_bytes > 0):
                    wrong.append(f"{spelled(p)} on {problem}: {traits.hidden_bytes} bytes, {names}")
    outcome.data = {"rows": rows}
    outcome.summary = f"{asked - len(wrong)} of {asked}: the kernels do what was proved"
    few = 0.05 * asked
    outcome.findings += wrong[:10]
    outcome.expect(len(wrong) <= few, f"{len(wrong)} differ, expected at most {few:.0f}")
    outcome.expect(asked > 0, "nothing ran")
    return outcome
