# SPDX-License-Identifier: BSD-3-Clause
"""The plans that the real cuDNN makes for described GPUs; no GPU is needed.

tests/golden/cudnn/9.19.0/plans.json says for 60 problems what cuDNN has understood of the plan that
its heuristics propose first. Another version of cuDNN skips these tests;
`pytest --update-golden tests/python/test_cudnn_plans.py` writes the file of the mapped one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import test_cudnn_golden as golden
import torchalgo
from torchalgo import _C
from torchalgo._ir.devices import named_device

PATH = golden.GOLDEN / str(golden.VERSION) / "plans.json"
SHAPES = {
    "3x3": "n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "1x1": "n8c64h56w56_k256r1s1_st1x1_pad0x0_dil1x1_g1",
    "stem": "n8c3h224w224_k64r7s7_st2x2_pad3x3_dil1x1_g1",
    "stride": "n8c128h28w28_k256r3s3_st2x2_pad1x1_dil1x1_g1",
    "depthwise": "n8c96h28w28_k96r3s3_st1x1_pad1x1_dil1x1_g96",
    "3d": "n1c16d8h14w14_k32t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1",
}
EPILOGUES = ("", "+bias", "+bias+relu", "+bias+add", "+bias+add+relu")
PROBLEMS = [
    *(f"fwd_f16_{shape}{epilogue}" for shape in SHAPES.values() for epilogue in EPILOGUES),
    *(f"{kind}_f16_{shape}" for kind in ("bwd_data", "bwd_filter") for shape in SHAPES.values()),
    *(f"{kind}_{dtype}_{SHAPES[name]}" for kind in ("fwd", "bwd_data", "bwd_filter")
      for dtype in ("f32", "tf32", "bf16") for name in ("3x3", "1x1")),
]  # fmt: skip

pytestmark = pytest.mark.skipif(golden.VERSION is None, reason=_C.cudnn_absence())


def understood(text: str) -> dict[str, Any]:
    """Returns what a plan's JSON says of operations and tensors, one text for each."""
    graph = json.loads(text)["operationGraph"]
    tensors = {t["name"]: t for t in graph["tensors"]}

    def spell(tensor: dict[str, Any]) -> str:
        dtype = tensor["dataType"].removeprefix("CUDNN_DATA_").lower()
        sizes, strides = ("x".join(map(str, tensor[key])) for key in ("dim", "stride"))
        place = "in registers" if tensor["isVirtual"] else f"aligned to {tensor['ptrAlignment']}"
        return f"{dtype} {sizes}, strides {strides}, {place}"

    operations = []
    for node in graph["nodes"]:
        name = node["operation"].removeprefix("CUDNN_BACKEND_OPERATION_")
        parts = [name.removesuffix("_DESCRIPTOR").lower()]
        parts += [
            f"{key} {node[key]}" for key in ("mode", "mathPrec", "pad", "stride") if key in node
        ]
        parts += [f"{key} = {spell(tensors[value])}" for key, value in sorted(node.items())
                  if isinstance(value, str) and value in tensors]  # fmt: skip
        operations.append("; ".join(parts))
    return {"mode": graph["finalizeMode"], "operations": operations}


def first_plan(problem: str) -> dict[str, Any]:
    """Returns the plan that the heuristics propose first for an H100, all tensors in nhwc."""
    device = named_device("h100")
    (algorithm,) = {
        name.rpartition(".e")[0]
        for name in (p.name.partition("{")[0] for p, _ in golden.ask("h100", problem)[0])
    }
    asked = _C.Primitive(f"{algorithm}.krsc", "nhwc", "nhwc")
    primitive, _, refusal = _C.offer_one(problem, asked, device)
    assert primitive is not None, refusal
    workspace, text = _C.cudnn_plan(problem, primitive, device)
    assert workspace == primitive.workspace_bytes
    return {"primitive": primitive.name, "workspace": workspace, **understood(text)}


def test_what_cudnn_has_understood_is_that_of_the_golden_file(
    request: pytest.FixtureRequest,
) -> None:
    assert len(PROBLEMS) == 60
    found = {problem: first_plan(problem) for problem in PROBLEMS}
    if request.config.getoption("--update-golden"):
        PATH.write_text(json.dumps(found, indent=1) + "\n")
    if not PATH.exists():
        pytest.skip(f"no golden plans of cuDNN {golden.VERSION}")
    expected = json.loads(PATH.read_text())
    assert found.keys() == expected.keys()
    for problem, plan in found.items():
        assert plan == expected[problem], problem


def test_each_pattern_is_one_fused_operation_graph_in_f32_arithmetic() -> None:
    for problem in PROBLEMS:
        plan = first_plan(problem)
        epilogue = problem.count("+")
        assert len(plan["operations"]) == 1 + epilogue, problem
        assert all("mathPrec CUDNN_DATA_FLOAT" in each for each in plan["operations"]), problem
        assert plan["operations"][-1].count("in registers") == min(epilogue, 1), problem


@pytest.mark.parametrize("device", golden.DEVICES)
def test_every_engine_with_default_knobs_makes_a_plan_of_the_promised_workspace(
    device: str,
) -> None:
    plans = 0
    for problem in golden.PROBLEMS:
        for primitive, traits in golden.ask(device, problem)[0]:
            if "{" in primitive.name or traits.is_runtime_compiled:
                continue
            workspace, _ = _C.cudnn_plan(problem, primitive, named_device(device))
            assert workspace == primitive.workspace_bytes, (problem, primitive)
            plans += 1
    assert plans > 500


def test_an_engine_that_cannot_make_a_plan_says_why() -> None:
    primitive = _C.Primitive("cudnn9.conv.e999", "nhwc", "nhwc")
    with pytest.raises(torchalgo.Error, match=r"TA5103 .*"):
        _C.cudnn_plan(PROBLEMS[0], primitive, named_device("h100"))


WITH_STUB = """
import json
from torchalgo import _C, Error
from torchalgo._ir.devices import named_device

problem, h100 = "{problem}", named_device("h100")
primitives, traits, _ = _C.offers_of(problem, 1 << 62, h100)
compiled = [p for p, t in zip(primitives, traits) if t.is_runtime_compiled]
own = [p.name for p in compiled if p.name.startswith("cudnn9")]
try:
    _C.cudnn_plan(problem, compiled[0], h100)
except Error as error:
    print(json.dumps([own, str(error)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epilogue", "pattern"),
    [
        ("", "cudnn9.conv.e"), ("+relu", "cudnn9.conv_relu.e"),
        ("+bias+silu", "cudnn9.conv_bias_silu.e"), ("+bias+gelu", "cudnn9.conv_bias_gelu.e"),
    ],
)  # fmt: skip
def test_compiled_engines_are_listed_and_then_refused_by_a_driver_that_loads_nothing(
    tmp_path: Path, epilogue: str, pattern: str
) -> None:
    """CUDA's toolkit has a libcuda whose functions all fail. With it, cuDNN compiles engines."""
    nvcc = shutil.which("nvcc")
    stubs = [] if nvcc is None else list(Path(nvcc).resolve().parents[1].rglob("stubs/libcuda.so"))
    if not stubs or list(Path("/usr").rglob("libcuda.so.1")):
        pytest.skip("no toolkit, or a real driver")
    (tmp_path / "libcuda.so.1").symlink_to(stubs[0])
    code = WITH_STUB.format(problem=f"fwd_f16_{SHAPES['3x3']}{epilogue}")
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    engines, refusal = json.loads(done.stdout)
    assert any(name.startswith(pattern) for name in engines)
    assert refusal.startswith("TA5103 cuDNN makes no plan: the CUDA driver (libcuda) does not load")
