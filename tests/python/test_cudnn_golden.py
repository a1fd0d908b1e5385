# SPDX-License-Identifier: BSD-3-Clause
"""What the real cuDNN answers for described GPUs; no GPU is needed.

One file per cuDNN version and device: tests/golden/cudnn/9.19.0/h100.json. Another version skips;
`pytest --update-golden tests/python/test_cudnn_golden.py` writes the files of the mapped one.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torchalgo import _C
from torchalgo._ir.devices import list_devices, named_device

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cudnn"
DEVICES = ["a100", "b200", "h100", "t4"]
PROBLEMS = [
    "fwd_f16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_tf32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias",
    "fwd_bf16_n8c3h224w224_k64r7s7_st2x2_pad3x3_dil1x1_g1+bias+relu",
    "fwd_f16_n8c64h56w56_k256r1s1_st1x1_pad0x0_dil1x1_g1+bias+add+relu",
    "fwd_f16_n8c96h28w28_k96r3s3_st1x1_pad1x1_dil1x1_g96",
    "fwd_bf16_n1c16d8h14w14_k32t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1",
    "bwd_data_f16_n8c64h56w56_k128r3s3_st2x2_pad1x1_dil1x1_g1",
    "bwd_data_f32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_filter_bf16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_filter_tf32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f16_n8c144h56w56_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
]
NO_LIMIT = 1 << 62

VERSION = _C.cudnn_version()

pytestmark = pytest.mark.skipif(VERSION is None, reason=_C.cudnn_absence())


Offered = list[tuple[_C.Primitive, _C.Traits]]


@cache
def ask(device: str, problem: str) -> tuple[Offered, list[_C.Refusal]]:
    """cuDNN's graph engines only."""
    primitives, traits, refusals = _C.offers_of(problem, NO_LIMIT, named_device(device))
    offered = list(zip(primitives, traits, strict=True))
    return (
        [one for one in offered if one[0].name.startswith("cudnn9")],
        [one for one in refusals if one.primitive.startswith("cudnn9")],
    )


def summary(device: str, problem: str) -> dict[str, list[int | None]]:
    """Of each engine with its default knobs the workspaces by layouts, dst fastest, None: refused.

    Engines that are compiled at run time are left out: where there is no driver, cuDNN does not
    tell whether they run.
    """
    layouts = [(s, w, d) for s in ("nchw", "nhwc") for w in ("", ".krsc") for d in ("nchw", "nhwc")]
    found: dict[str, list[int | None]] = {}
    for primitive, traits in ask(device, problem)[0]:
        if "{" in primitive.name or traits.is_runtime_compiled:
            continue
        weights = ".krsc" if primitive.name.endswith(".krsc") else ""
        engine = primitive.name.removesuffix(".krsc").rpartition(".")[2]
        row = found.setdefault(engine, [None] * 8)
        row[layouts.index((primitive.src, weights, primitive.dst))] = primitive.workspace_bytes
    return found


def write(path: Path, problems: dict[str, Any]) -> None:
    """One engine per line, so that a difference is readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = []
    for problem, engines in problems.items():
        lines = ",\n".join(f'  "{engine}": {json.dumps(row)}' for engine, row in engines.items())
        blocks.append(f'"{problem}": {{\n{lines}\n}}')
    path.write_text("{" + ",\n".join(blocks) + "}\n")


@pytest.mark.parametrize("device", DEVICES)
def test_engines_and_workspaces_are_those_of_the_golden_file(
    device: str, request: pytest.FixtureRequest
) -> None:
    path = GOLDEN / str(VERSION) / f"{device}.json"
    if request.config.getoption("--update-golden"):
        write(path, {problem: summary(device, problem) for problem in PROBLEMS})
    if not path.exists():
        pytest.skip(f"no golden file for cuDNN {VERSION}")
    golden = json.loads(path.read_text())
    assert sorted(golden) == sorted(PROBLEMS)
    for problem in PROBLEMS:
        assert summary(device, problem) == golden[problem], problem


@pytest.mark.parametrize("device", list_devices())
def test_every_described_device_is_accepted(device: str) -> None:
    offered, _ = ask(device, PROBLEMS[0])
    assert len(offered) > 40
    assert len({(p.name, p.src, p.dst) for p, _ in offered}) == len(offered)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_primitive_is_offered_again_by_its_name(problem: str) -> None:
    device = named_device("h100")
    for primitive, traits in ask("h100", problem)[0]:
        again, again_traits, refusal = _C.offer_one(problem, primitive, device)
        assert again is not None, refusal
        assert (again.name, again.src, again.dst) == (
            primitive.name,
            primitive.src,
            primitive.dst,
        )
        assert again.workspace_bytes == primitive.workspace_bytes, primitive
        assert again_traits.is_deterministic == traits.is_deterministic


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_name_of_a_row_stands_for_what_the_heuristics_put_first(problem: str) -> None:
    offered = {repr(primitive) for primitive, _ in ask("h100", problem)[0]}
    row = ask("h100", problem)[0][0][0].name.rpartition(".e")[0]
    asked = _C.Primitive(f"{row}.krsc", "nhwc", "nhwc")
    best, _, refusal = _C.offer_one(problem, asked, named_device("h100"))
    assert best is not None, refusal
    assert repr(best) in offered
    assert (best.src, best.dst) == ("nhwc", "nhwc")
    assert ".krsc" in best.name


@pytest.mark.parametrize("problem", PROBLEMS)
def test_hidden_copies_fit_into_the_workspace(problem: str) -> None:
    for primitive, traits in ask("h100", problem)[0]:
        assert (traits.hidden_bytes or 0) <= primitive.workspace_bytes, primitive


def test_f32_is_strict_and_says_why() -> None:
    offered, refused = ask("h100", PROBLEMS[1])
    assert all("tensor_core" not in traits.numerics for _, traits in offered)
    assert any("TENSOR_CORE" in r.reason and "the problem is f32" in r.reason for r in refused)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_engine_rounds_its_inputs(problem: str) -> None:
    for device in DEVICES:
        assert all("down_convert_inputs" not in t.numerics for _, t in ask(device, problem)[0])


def test_hopper_has_no_winograd_and_turing_has() -> None:
    problem = PROBLEMS[1]
    of_the_row = [r.reason for r in ask("h100", problem)[1] if r.primitive == "cudnn9.conv"]
    assert len(of_the_row) == 1
    assert of_the_row[0].startswith("no Winograd or FFT engine of cuDNN 9.")
    assert any("winograd" in traits.numerics for _, traits in ask("t4", problem)[0])


def test_engines_for_another_gpu_are_refused_with_status() -> None:
    reasons = {r.reason for r in ask("h100", PROBLEMS[0])[1]}
    assert "not for this GPU (sm_90): ARCH_MISMATCH (3007)" in reasons


def test_nondeterministic_engines_say_so() -> None:
    by_engine = {p.name: t for p, t in ask("h100", PROBLEMS[8])[0]}
    assert not by_engine["cudnn9.conv_bwd_data.e25"].is_deterministic
    assert by_engine["cudnn9.conv_bwd_data.e0"].is_deterministic


def test_threads_get_the_same_answers() -> None:
    def names(problem: str) -> list[str]:
        primitives, _, _ = _C.offers_of(problem, NO_LIMIT, named_device("a100"))
        return [repr(p) for p in primitives]

    fresh = [problem.replace("n8", "n6") for problem in PROBLEMS]  # asked nowhere else
    with ThreadPoolExecutor(6) as threads:
        at_once = list(threads.map(names, fresh * 2))
    assert at_once == [names(problem) for problem in fresh * 2]
    assert all(at_once)


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_of_known_wrong_gradients_is_refused(device: str) -> None:
    problem = next(problem for problem in PROBLEMS if problem.startswith("bwd_data_f16"))
    offered, refusals = ask(device, problem)
    assert not any(".e23" in primitive.name for primitive, _ in offered)
    reasons = {r.reason for r in refusals if r.primitive == "cudnn9.conv_bwd_data.e23"}
    assert reasons == {"is known to compute wrong results or to fail (pytorch#171747)"}
