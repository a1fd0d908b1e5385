# SPDX-License-Identifier: BSD-3-Clause
"""torch and torchalgo on the GPU in software of tests/software_gpu. Nothing else can run the path
of CUDA from its start to its end on a machine without a GPU."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support import software_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not software_gpu.is_built(), reason="the GPU in software is not built: -DTORCHALGO_TESTS=ON"
    ),
]


def lines_of(tmp_path: Path, code: str, fault: str = "", **variables: str) -> list[str]:
    """Runs a program and returns what it prints."""
    done = software_gpu.run(tmp_path, "-W", "ignore", "-c", code, fault=fault, variables=variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()


TORCH = """
import torch
assert torch.cuda.is_available() and torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
x = torch.arange(12.0).reshape(3, 4).cuda()
assert torch.empty(5, device="cuda").isnan().all()
assert torch.equal((x.t().contiguous() + 1).relu().cpu(), torch.arange(12.0).reshape(3, 4).t() + 1)
y = x.clone()
y[1] = 7
assert y[1].tolist() == [7.0] * 4 and x[1, 0].item() == 4
start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
y.add_(1)
stop.record()
stop.synchronize()
assert start.elapsed_time(stop) >= 0

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = x * 2
assert z.isnan().all()
graph.replay()
assert torch.equal(z, x * 2)
x.fill_(3)
graph.replay()
assert (z == 6).all()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.synchronize()
except RuntimeError as error:
    print("refused" if "error 90" in str(error) else error)
"""


def test_torch_finds_a_gpu_and_its_graphs_obey_the_rules_of_cuda(tmp_path: Path) -> None:
    assert lines_of(tmp_path, TORCH) == ["refused"]


OPTIMIZED = """
assert any(node.cost_source == "measured" for node in fast.plan.nodes), str(fast.plan)
assert "guard: " in str(fast.plan)
print(sum(line == "begin-capture" for line in open("gpu.log").read().splitlines()))
assert error(fast(x.cuda()), x) < 1e-5 and not torchalgo.fallbacks()
fast.save("fast.pt")
assert error(torchalgo.load("fast.pt")(x.cuda()), x) < 1e-5
captured = fast.captured()
for scale in (1, 2, -1):
    assert error(captured((scale * x).cuda()), scale * x) < 1e-5
times = captured.compare(x.cuda(), budget_s=10.0)
ways = {"plan, as a graph", "plan, without graphs", "make_graphed_callables",
        "make_graphed_callables, channels_last"}
assert ways <= times.ns.keys() and str(times).count("x ") >= 3, str(times)
gpu_net.wide.weight.mul_(2)
net.wide.weight.mul_(2)
try:
    captured(x.cuda())
except torchalgo.Error as problem:
    print(str(problem)[:6])
fast.refresh()
assert error(captured(x.cuda()), x) < 1e-5
forced = torchalgo.optimize(gpu_net, (x.cuda(),), budget_s=3.0, settings=settings,
                            overrides={"stem": "cudnn_legacy.fwd.1"})
assert error(forced(x.cuda()), x) < 1e-5
print(*(node.primitive for node in forced.plan.nodes if node.name == "stem"))
"""


def test_a_model_is_measured_planned_run_saved_and_captured(tmp_path: Path) -> None:
    printed = lines_of(tmp_path, software_gpu.model(budget_s=120.0) + OPTIMIZED)
    log = software_gpu.log(tmp_path)
    captures, error, forced = printed
    assert int(captures) > 0  # by the timer: captured() comes later
    assert error == "TA1404" and forced.startswith("cudnn_legacy.fwd.1")
    assert not [line for line in log if line.startswith("launch-without-effect")]
    in_use = dict(line.split()[1:] for line in log if line.startswith("memory "))  # by process
    assert len(in_use) == 2  # the program and its worker
    assert min(map(int, in_use.values())) == 0  # the worker keeps nothing


OWN_KERNELS = """
import copy, dataclasses, torch, torchalgo
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.norm, self.act = nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(24), nn.SiLU()
        self.deep, self.conv = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(24, 8, 1)
        self.mean, self.layers = nn.AdaptiveAvgPool2d(1), nn.LayerNorm(16)

    def forward(self, x):
        x = self.layers(self.pool(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = torch.cat([x[:, :8], self.deep(x)], 1)
        x = self.conv(torch.relu(self.norm(x)))
        return self.act(x) * self.mean(x)

torch.manual_seed(0)
torch.set_grad_enabled(False)
net, x = Net().eval(), torch.randn(2, 16, 12, 12)
net.norm.running_mean.uniform_(-1, 1)
net.norm.running_var.uniform_(0.5, 2)
own = {"pool": "cuda.pool", "slice_0": "cuda.slice", "deep": "cuda.depthwise",
       "cat_0": "cuda.concat", "norm": "cuda.pointwise", "act": "cuda.pointwise",
       "mean": "cuda.pool", "mul_0": "cuda.pointwise", "layers.permute#1": "cuda.layer_norm"}
settings = torchalgo.Settings(progress=False, run_untimed=True)
y = x.cuda()
gpu = copy.deepcopy(net).cuda()
tuned = torchalgo.optimize(gpu, (y,), budget_s=5.0, settings=settings, overrides=own)
plan = dataclasses.replace(tuned.plan, guard=None)  # the times of this GPU mean nothing
fast = torchalgo.optimize(gpu, (y,), plan=plan, settings=settings)
chosen = {node.name: node.primitive.split(" ")[0] for node in fast.plan.nodes}
print({name: chosen[name] for name in own} == own, torch.allclose(fast(y).cpu(), net(x), atol=1e-5))
runner = fast._first_runner  # runs the plan without TorchScript's interpreter
print(runner.run_planned(y) is not NotImplemented, runner.run_planned(x) is NotImplemented)
"""


def test_own_kernels_run_in_a_plan_without_the_interpreter(tmp_path: Path) -> None:
    assert lines_of(tmp_path, OWN_KERNELS) == ["True True", "True True"]
    launched = {line.split()[1] for line in software_gpu.log(tmp_path) if " _Z" in line}
    kernels = (
        "max_pool",
        "mean_with_barriers",
        "pointwise",
        "join_rows",
        "depthwise",
        "layer_norm",
    )
    for kernel in kernels:
        assert any(kernel in name for name in launched), kernel


PACKING = """
import torch, torchalgo
ops = torch.ops.torchalgo
torch.manual_seed(0)
torch.set_grad_enabled(False)
x, w, b = torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
weights = [w.cuda(), b.cuda()]
problem = "fwd_f32_n2c3h9w8_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias"

def pack():  # copies the weights to channels_last
    return ops.pack_conv(problem, "aten.conv", "nhwc", "nhwc", "layer", weights)

def is_right(packed):
    images = x.cuda().to(memory_format=torch.channels_last)
    got = ops.run_conv(images, packed, None, primitive="aten.conv", layer="layer")
    return torch.allclose(got.cpu(), torch.conv2d(x, w, b, padding=1), rtol=1e-4, atol=1e-5)

def waits():
    return open("gpu.log").read().splitlines().count("wait-for-stream")

before = waits()
packed = pack()
print(waits() > before, is_right(packed))
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        packed = pack()
except RuntimeError as problem_of_capture:
    print("TA5105" in str(problem_of_capture))
print(is_right(packed), is_right(pack()))
"""


def test_packing_waits_for_the_packed_weights_and_is_refused_in_a_capture(tmp_path: Path) -> None:
    assert lines_of(tmp_path, PACKING) == ["True True", "True", "True True"]


REFUSED_ENGINES = """
import dataclasses
half, images = copy.deepcopy(net).half().cuda(), x.half().cuda()
fast = torchalgo.optimize(half, (images,), budget_s=3.0, settings=settings)

def renamed(node, engine):
    problem, *epilogue = node.problem.split("+")
    pattern = "_".join(["cudnn9.conv", *epilogue])
    is_conv = problem.startswith("fwd_")
    return dataclasses.replace(node, primitive=f"{pattern}.{engine}") if is_conv else node

# The plan names engines of another GPU, of another cuDNN, and knobs of another cuDNN.
for engine in ("e6", "e99", "e2.krsc{SPLIT_K=9}"):
    nodes = [renamed(node, engine) for node in fast.plan.nodes]
    plan = dataclasses.replace(fast.plan, nodes=nodes, guard=None)
    torchalgo.reset_fallbacks()
    moved = torchalgo.optimize(half, (images,), plan=plan, settings=settings)
    with torch.profiler.profile() as seen:
        result = moved(images)
    assert error(result, x) < 2e-2
    names = {event.key.split()[0] for event in seen.key_averages()}
    print(len(torchalgo.fallbacks()), *sorted(each for each in names if each.startswith("cudnn")))
"""


def test_engines_that_another_gpu_refuses_are_replaced_by_those_of_the_heuristics(
    tmp_path: Path,
) -> None:
    lines = lines_of(tmp_path, software_gpu.model(budget_s=3.0) + REFUSED_ENGINES)
    assert len(lines) == 3
    for line in lines:
        count, *names = line.split()
        assert int(count) >= 3 and names, line
        # Engine 0 is the first in cuDNN's list, engine 2 the first that the heuristics propose.
        assert all(re.search(r"\.e2\b", name) for name in names), line


ON_THE_SECOND_GPU = """
second = copy.deepcopy(net).to("cuda:1")
fast = torchalgo.optimize(second, (x.to("cuda:1"),), budget_s=3.0, settings=settings)
assert torch.cuda.current_device() == 0
assert any(node.cost_source == "measured" for node in fast.plan.nodes), str(fast.plan)
captured = fast.captured()
for scale in (1, 2, -1):
    result = captured((scale * x).to("cuda:1"))
    assert result.device.index == 1 and error(result, scale * x) < 1e-5
times = captured.compare(x.to("cuda:1"), budget_s=5.0)
print("make_graphed_callables" in times.ns, torch.cuda.current_device())
"""


def test_a_model_on_another_gpu_than_the_current_one_is_planned_and_captured_there(
    tmp_path: Path,
) -> None:
    code = software_gpu.model(budget_s=3.0) + ON_THE_SECOND_GPU
    gpus = {"SOFTWARE_GPU_COUNT": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert lines_of(tmp_path, code, **gpus) == ["True 0"]


EXCLUSIVE = """
import warnings
from torchalgo._db.store import CostStore

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    fast = torchalgo.optimize(gpu_net, (x.cuda(),), budget_s=3.0, settings=settings)
print(*(str(w.message) for w in seen if "cannot use the GPU" in str(w.message)), sep="\\n")
assert any(node.cost_source == "measured" for node in fast.plan.nodes), str(fast.plan)
assert error(fast(x.cuda()), x) < 1e-5
"""


def test_a_gpu_with_one_process_is_measured_by_this_process(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    code = software_gpu.model(budget_s=3.0) + EXCLUSIVE
    (warning,) = lines_of(tmp_path, code, SOFTWARE_GPU_EXCLUSIVE=lock)
    assert "measured in this process" in warning and "error 46" in warning


PRECISION = """
import torch
torch.backends.{setting}.fp32_precision = "{precision}"
from torchalgo._db.environment import Environment
from torchalgo import _C
print("matmul=tf32" in Environment.of(_C.cuda_device(0)).facts["flags"])
"""
TYPES = """
print(*{node.problem.split("_")[1] for node in fast.plan.nodes if node.problem.startswith("fwd_")})
assert error(fast(x.cuda()), x) < 1e-5
print(["strict f32" in note for note in fast.plan.notes])
"""


@pytest.mark.parametrize(
    ("setting", "precision", "word", "products"),
    [
        ("cudnn.conv", "ieee", "f32", "False"),
        ("cudnn.conv", "tf32", "tf32", "False"),
        ("cuda.matmul", "tf32", "tf32", "True"),
    ],
)
def test_a_plan_obeys_the_newer_settings_of_float32_precision(
    tmp_path: Path, setting: str, precision: str, word: str, products: str
) -> None:
    flags = PRECISION.format(setting=setting, precision=precision)
    code = flags + software_gpu.model(budget_s=3.0) + TYPES
    assert lines_of(tmp_path, code) == [products, word, "[True]" if word == "f32" else "[]"]


DOORS = """
compiled = torch.compile(copy.deepcopy(gpu_net), backend="torchalgo")
assert error(compiled(x.cuda()), x) < 1e-5
both = torchalgo.optimize(gpu_net, (x.cuda(),), shapes=[(2, 3, 16, 16), (4, 3, 16, 16)],
                          budget_s=3.0, settings=settings)
for count in (1, 2, 3):
    assert error(both(torch.cat([x] * count).cuda()), torch.cat([x] * count)) < 1e-5
program = torch.export.export(gpu_net, (x.cuda(),))
exported = torchalgo.optimize(program, (x.cuda(),), budget_s=3.0, settings=settings)
exported.save("fast.pt2")
assert error(torch.export.load("fast.pt2").module()(x.cuda()), x) < 1e-5
assert error(copy.deepcopy(exported)(x.cuda()), x) < 1e-5
exported.report("report.html")
torch.use_deterministic_algorithms(True)
strict = torchalgo.optimize(gpu_net, (x.cuda(),), budget_s=3.0, settings=settings)
assert error(strict(x.cuda()), x) < 1e-5
torch.use_deterministic_algorithms(False)
assert "H100" in str(torchalgo.candidates(gpu_net, x.cuda()))
assert "H100" in str(torchalgo.profile(gpu_net, x.cuda(), budget_s=0.2))

with torch.enable_grad(), torchalgo.enable(), torchalgo.record_runs() as runs:
    with torchalgo.algorithms(forward=1, backward_data=1, backward_filter=1):
        gpu_net(x.cuda()).square().sum().backward()
with torch.enable_grad():
    net(x).square().sum().backward()
for ours, exact in zip(gpu_net.parameters(), net.parameters()):
    assert (ours.grad.cpu() - exact.grad).norm() < 1e-5 * exact.grad.norm()
print(*sorted({run.primitive for run in runs}))

for wrong in (lambda: fast(x), lambda: fast.cpu(), lambda: torchalgo.optimize(gpu_net, (x,))):
    try:
        wrong()
    except torchalgo.Error as problem:
        print(problem.code)
"""


def test_the_other_doors_lead_to_the_gpu_too(tmp_path: Path) -> None:
    printed = lines_of(tmp_path, software_gpu.model(budget_s=6.0) + DOORS)
    assert printed == [
        "cudnn_legacy.bwd_data.1 cudnn_legacy.bwd_filter.1 cudnn_legacy.fwd.1",
        "TA1203", "TA1401", "TA1203",
    ]  # fmt: skip


TRAINING = """
import copy, torch, torchalgo
from torch import nn

class Residual(nn.Sequential):  # no activation follows its batch norm
    def forward(self, x):
        return x + super().forward(x)

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
    Residual(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)),
    nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(256, 4),
).train()
for norm in (net[1], net[3][1]):
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
x, gpu_net = torch.randn(2, 3, 16, 16), copy.deepcopy(net).cuda()
settings = torchalgo.Settings(progress=False, run_untimed=True)
legacy = {"forward": "cudnn_legacy.fwd.1", "backward_filter": "cudnn_legacy.bwd_filter.1",
          "backward_data": "cudnn_legacy.bwd_data.1"}
planned = torchalgo.optimize_training(gpu_net, (x.cuda(),), budget_s=60.0,
                             settings=settings, overrides={"*": legacy})
with torch.profiler.profile() as seen:
    for scale in (1.0, -2.0):
        for model, given in ((planned, x.cuda()), (net, x)):
            model.zero_grad()
            (scale * model(given)).square().sum().backward()
        for (name, ours), exact in zip(planned.named_parameters(), net.parameters()):
            distance = (ours.grad.cpu() - exact.grad).norm() / exact.grad.norm()
            assert ours.grad.is_cuda and distance < 1e-4, (name, float(distance))
        for (name, ours), exact in zip(planned.named_buffers(), net.buffers()):
            assert torch.allclose(ours.cpu(), exact, rtol=1e-5, atol=1e-6), name
assert planned.planned_runs == 2 and planned.original_runs.total() == 0
ran = [event.key.replace("@", ".").split(".") for event in seen.key_averages()]
print(*sorted({".".join(words[:3]).split()[0] for words in ran if words[0] == "cudnn_legacy"}))
nodes = [node for region in planned.plan.regions for node in region.nodes if node.primitive]
print(*sorted({"tf32" if "_tf32_" in node.problem else "f32" for node in nodes}))
print(any(node.cost_source == "measured" for node in nodes))

planned.plan.save("net.train.json")
again = torchalgo.optimize_training(gpu_net, (x.cuda(),), settings=torchalgo.Settings(),
                           plan=torchalgo.TrainingPlan.load("net.train.json"))
print(again.plan.guard.runs == again.runs)
try:
    planned(x)
except RuntimeError as problem:
    print(planned.original_runs.total(), type(problem).__name__)
try:
    torchalgo.optimize_training(net.to("meta"), (x.to("meta"),))
except torchalgo.Error as problem:
    print(problem.code)
"""


@pytest.mark.parametrize("tf32", [False, True])
def test_a_model_is_trained_with_algorithms_for_all_directions(tmp_path: Path, tf32: bool) -> None:
    flag = f"import torch\ntorch.backends.cudnn.allow_tf32 = {tf32}\n"
    printed = lines_of(tmp_path, flag + TRAINING)
    names = [f"cudnn_legacy.{direction}.1" for direction in ("bwd_data", "bwd_filter", "fwd")]
    types = "f32 tf32" if tf32 else "f32"
    assert printed == [" ".join(names), types, "True", "True", "1 RuntimeError", "TA1604"]


def records(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def check(
    tmp_path: Path, *words: str, fault: str = ""
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Runs gpu_check.py with small stages. Returns its exit status, its records and its output."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"
    done = software_gpu.run(
        tmp_path, str(script), "--module", "support.small_gpu_stages", "--quick", "--out", "out",
        "--minutes", "40", *words, fault=fault, timeout_s=2700,
    )  # fmt: skip
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        assert {path.name for path in (tmp_path / "out").glob("*.json")} == {
            name for name in archive.getnames() if name.endswith(".json")
        }
    found = records(tmp_path / "out")
    found = {name: each for name, each in found.items() if "stage" in each}  # no plan, no device
    return done.returncode, found, done.stdout + done.stderr


def test_each_stage_of_gpu_check_runs(tmp_path: Path) -> None:
    """The order, the records and every line of the stages; times mean nothing here."""
    from support.small_gpu_stages import STAGES

    _, found, text = check(tmp_path)
    assert found.keys() == {stage.name for stage in STAGES}, text
    failed = {name: record for name, record in found.items() if record["status"] != "passed"}
    # The timer's control is one of time, and no kernel of cuDNN has a name here. Inductor finds no
    # GPU, which is a finding.
    assert failed.keys() <= {"control", "hidden"}, text
    assert found["mission"]["data"]["doors"]["conv_fwd_algo"].startswith("cudnn_legacy.fwd")
    assert {row["status"] for row in found["mission"]["data"]["rows"]} == {"ran", "refused"}
    row, beside = found["baselines"]["data"]["rows"]
    assert row["us"].keys() >= {"frozen", "optimize", "captured()"}, text
    assert sum(row["tuning"]["sources"].values()) > 0 and row["tuning"]["guard"] is not None
    assert beside["us"].keys() >= {"frozen", "optimize"} and not beside["tuning"]  # the same plan
    assert beside["us"].keys() | beside["missing"].keys() >= {"max-autotune"}
    assert max(row["errors"].values()) < 0.01 and found["refused"]["data"]["rows"][0]["changed"] > 0
    legacy = [row for row in found["energy"]["data"]["rows"] if "supported" in row]
    assert {row["supported"] for row in legacy} == {True, False}  # strict: no other one runs


@pytest.mark.slow
def test_tables_are_recorded_resumed_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the stage is killed in the middle. Another one continues."""
    from gpu_replay import run_gpu

    monkeypatch.setenv("SMALL_GPU_STAGES_KILL", str(tmp_path / "killed"))
    status, found, text = check(tmp_path, "--stages", "tables")
    assert status == 0 and (tmp_path / "killed").exists(), text
    assert "SIGKILL" in " ".join(found["tables"]["findings"]), text
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "tables.jsonl").read_text().splitlines()
    ]
    samples: dict[tuple[str, ...], list[float]] = {}
    for line in lines:
        for key, (cold, *_) in line.get("costs", ()):
            before = samples.get(tuple(key), cold)
            assert cold[: len(before)] == before  # none was taken anew
            samples[tuple(key)] = cold
    assert len(samples) > 20
    (table,) = (tmp_path / "out").glob("*_table.json.gz")
    assert run_gpu(tmp_path / "gpu.jsonl", table) == 0
    status, found, text = check(tmp_path, "--stages", "tables", "--resume")
    assert status == 0 and "passed*" in text


def test_gpu_check_goes_on_after_stages_that_fail(tmp_path: Path) -> None:
    from support.small_gpu_stages import STAGES

    status, found, text = check(tmp_path, fault="cudaMalloc:1:700")
    assert status == 1
    assert found.keys() == {stage.name for stage in STAGES}, text
    assert all(record["status"] in ("passed", "failed") for record in found.values())
    failed = {name: record for name, record in found.items() if record["status"] == "failed"}
    assert {"tables", "baselines", "mission", "capture", "plans"} <= failed.keys(), text
    assert all(record["failures"] for record in failed.values())
    assert found["env"]["status"] == "passed"
