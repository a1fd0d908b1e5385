# SPDX-License-Identifier: BSD-3-Clause
"""Compares the error that a plan predicts with the error of its outputs, for one network.

Only errors are measured, so any machine gives the same record. All times are invented: layers in
coarser types take a third of the time, so that as many of them as the bound allows have such types.
Candidates are those of a machine with AMX, without PyTorch's own in bf16. Without AMX, their plain
C++ runs, which rounds at the same places. Each primitive of a plan is compared with f64, here on a
small image, and the outputs of the plan with those of the model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import digits
import harness
from board_networks import build
from photographs import CROPS, SEEN, UNSEEN, crops_of, read_photographs, with_statistics
from replay import Taken
from torchalgo import _C, Settings
from torchalgo._base.call_context import CallContext
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.calls import as_tensor_model, bind_call
from torchalgo._capture.settings import Options
from torchalgo._ir.costs import key_of
from torchalgo._measure.checking import cropped
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.preparation import Prepared, prepare
from torchalgo._plan.sensitivities import Sensitivity, sensitivities_of
from torchalgo._refine.binding import bind_exact_plan, rewrite
from torchalgo._refine.end_of_call import CallBudget

# All have batch norms. Networks without any have no statistics.
NETWORKS = (
    "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121",
    "googlenet", "inception_v3", "vgg11_bn", "mobilenet_v2", "mobilenet_v3_small",
    "mobilenet_v3_large", "efficientnet_b0", "mnasnet1_0", "regnet_x_400mf", "regnet_y_400mf",
    "shufflenet_v2_x1_0", *digits.NETWORKS,
)  # fmt: skip
UNSEEN_IMAGES = 14
RECORDS = harness.RESULTS / "predicted_errors.jsonl"
FACTOR = 1.5  # a prediction is near if it is within this factor of the measured error


def subject(name: str, size: int, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Returns a network, the example images of its plan, and images that were never used."""
    if name in digits.NETWORKS:
        images = digits.read_digits()
        out = images.held_out_images
        return digits.trained(images, name), out[:batch], out[batch : batch + UNSEEN_IMAGES]
    photographs = read_photographs(SEEN)
    network = with_statistics(build(name), crops_of(photographs, CROPS, size, seed=0))
    unseen = crops_of(read_photographs(UNSEEN), UNSEEN_IMAGES, size, seed=1)
    return network, crops_of(photographs, batch, size, seed=2), unseen


def errors_of(
    network: nn.Module, x: Tensor, unseen: Tensor, bounds: Sequence[float]
) -> list[harness.Record]:
    """Returns the predicted and the measured error of the plan under each bound."""
    prepared = prepare(as_tensor_model(bind_call(network, (x,), {})), lambda _: None)
    bench = Bench(_invented, _check)  # type: ignore[arg-type]
    settings = TuneSettings(max(bounds))
    tuning = Tuning(prepared.graph, _candidates(prepared.graph), {}, settings, bench=bench)
    own = sensitivities_of(prepared.imported, prepared.inputs)
    return [_errors_under(bound, prepared, tuning, own, network, unseen) for bound in bounds]


def _errors_under(
    bound: float,
    prepared: Prepared,
    tuning: Tuning,
    sensitivities: Sequence[Sensitivity],
    network: nn.Module,
    unseen: Tensor,
) -> harness.Record:
    own = prepared.capture_error
    limits = Limits.of(tuning).predicting(sensitivities, bound - own)
    first = limits.settle()
    calls = [node for node in first.nodes if node.primitive.name]
    coarse = [node for node in calls if _C.rounds_coarsely(node.problem, node.primitive)]
    found: harness.Record = {
        "max_error": bound,
        "predicted_error": limits.predict(first).error,
        "rel_error": prepared.reference.error_of(rewrite(prepared.imported, first)),
        "calls": len(calls),
        "coarse_calls": len(coarse),
        "casts": sum("." in t.primitive.dst for t in first.transforms),
    }
    options = Options.of(Settings(progress=False), max_error=bound)
    tuned = bind_exact_plan(prepared, limits, options, CallBudget(CallContext.start()))
    final = tuned.limits.gain * tuned.limits.predict(tuned.native).error
    found["misses"] = tuned.limits.misses
    found["final"] = {"predicted_error": final, "rel_error": tuned.error}
    images = unseen.split(len(prepared.inputs[0]))
    single = [output_error(tuned.scripted(image), network(image)) for image in images]
    found["unseen"] = {"median_error": statistics.median(single), "worst_error": max(single)}
    return found


def _candidates(graph: _C.Graph) -> _C.Candidates:
    """Returns the candidates of a machine with AMX, without those of PyTorch in bf16."""
    here = _C.cpu_device()
    there = _C.Device(
        kind="cpu", name=here.name, isa=here.isa, threads=here.threads, bf16_isa="amx"
    )
    found = _C.find_candidates(graph, device=there, drop_dominated=True, coarse_types=True)
    return _C.Candidates([[c for c in own if not _is_atens(c)] for own in found.by_anchor])


def _is_atens(c: _C.Candidate) -> bool:
    return c.primitive.name.startswith("aten.") and _C.rounds_coarsely(c.problem, c.primitive)


def _check(
    problem: str, primitives: Sequence[_C.Primitive], bound: float
) -> list[tuple[float, str]]:
    small = cropped(key_of(problem, primitives[0]), most_s=0.0)
    return _C.check_primitives(small or problem, primitives, bound)


def _invented(tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **_: Any) -> list[Taken]:
    return [Taken([_invented_ns(problem, p)] * rounds) for problem, p in tasks]


def _invented_ns(problem: str, p: _C.Primitive) -> float:
    if problem.startswith("transform_"):
        return 10.0
    size = max(1e3, _C.flop_count(problem) / 1e3)
    return size / (3 if _C.rounds_coarsely(problem, p) else 1)


# ---- records -------------------------------------------------------------------------------------


def head_of(name: str, options: harness.Record) -> harness.Record:
    """Returns the fields of a record that are known before the network runs."""
    trained = {"statistics": "trained", "size": digits.SIDE} if name in digits.NETWORKS else {}
    return {
        "schema": 1, "benchmark": "predicted_errors", "network": name,
        "statistics": "photographs", **options, **trained,
        "git": harness.git_state(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def run_one(name: str, options: harness.Record) -> harness.Record:
    """Returns the record of one network, measured in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    network, x, unseen = subject(name, options["size"], options["batch"])
    return {**head_of(name, options), "bounds": errors_of(network, x, unseen, options["bounds"])}


def ratio_of(found: harness.Record) -> float:
    """Returns the predicted error of the first plan over the measured one."""
    return float(found["predicted_error"] / found["rel_error"])


def is_near(found: harness.Record) -> bool:
    return 1 / FACTOR <= ratio_of(found) <= FACTOR


HEAD = (
    "network", "statistics", "max_error", "coarse calls", "predicted", "measured", "ratio",
    "plans tried", "error of the last", "unseen images: median", "worst",
)  # fmt: skip


def rows_of(line: harness.Record) -> list[list[str]]:
    """Returns the cells of a network's rows, one for each bound."""
    return [
        [
            line["network"], line["statistics"], f"{found['max_error']:.0e}",
            f"{found['coarse_calls']} of {found['calls']}", f"{found['predicted_error']:.1e}",
            f"{found['rel_error']:.1e}", f"{ratio_of(found):.2f}", str(1 + found["misses"]),
            f"{found['final']['rel_error']:.1e}", f"{found['unseen']['median_error']:.1e}",
            f"{found['unseen']['worst_error']:.1e}",
        ]
        for found in line["bounds"]
    ]  # fmt: skip


def summary(lines: Sequence[harness.Record]) -> str:
    """Returns how many predictions are near, by bound."""
    by_bound: dict[float, list[harness.Record]] = {}
    for line in lines:
        for found in line["bounds"]:
            by_bound.setdefault(found["max_error"], []).append(found)
    return "\n".join(
        f"max_error {bound:.0e}: {sum(map(is_near, own))} of {len(own)} predictions are within a"
        f" factor of {FACTOR} of the measured error"
        for bound, own in sorted(by_bound.items())
    )


def show(line: harness.Record) -> None:
    """Prints the rows of a record."""
    for row in rows_of(line) if "bounds" in line else [[line["network"], line["failure"]]]:
        print(", ".join(row), flush=True)
