# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile(backend="torchalgo") with changing weights and sizes, and changed .pt2 files.

    python tests/fuzz/fuzz_compile.py weights --cases 1200

weights: a sequence of six random changes of the weights of two models that share a graph. A case is
a change; each is followed by a call. shapes: 20 input shapes; a case is a call. samples: PyTorch's
own samples of convolutions. plan_objects: the plan in a .pt2 file with changed bytes. PyTorch reads
the archive around it.
"""

from __future__ import annotations

import copy
import functools
import io
import random
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import isolated
import torchalgo
from campaign import FindingError, main
from small_model import PLAN, model
from torchalgo import dynamo

CHANGES_PER_SEED = 6
SHAPES_PER_SEED = 20
OBJECTS_PER_SEED = 20
QUICK = {"cost_db": False, "budget_s": 0.5}
CONVOLUTIONS = [f"conv{dims}d" for dims in (1, 2, 3)]


def prepare() -> None:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    warnings.simplefilter("ignore")


def expect_equal(compiled: Any, net: nn.Module, x: Tensor, what: str) -> None:
    with torch.no_grad():
        expected = copy.deepcopy(net).double()(x.double())
        error = ((compiled(x).double() - expected).norm() / expected.norm()).item()
    if not error <= 1e-5:
        raise FindingError(f"the output for {tuple(x.shape)} has an error of {error:.2g}, {what}")


# ---- weights -------------------------------------------------------------------------------------


def step_of(optimizer: type[torch.optim.Optimizer]) -> Callable[[Any], None]:
    def step(net: Any) -> None:
        with torch.enable_grad():
            net(torch.rand(2, 3, 24, 24)).square().mean().backward()
        optimizer(net.parameters(), lr=1e-3).step()  # type: ignore[call-arg]
        net.zero_grad()

    return step


def new_state(net: Any) -> dict[str, Tensor]:
    return {k: v * 1.1 if v.is_floating_point() else v.clone() for k, v in net.state_dict().items()}


def replace_weight(net: Any) -> None:
    net.layer1[0].conv1.weight = nn.Parameter(1.1 * net.layer1[0].conv1.weight)


def call_in_train_mode(net: Any) -> None:
    net.train()(torch.rand(4, 3, 24, 24))  # changes the statistics of batch norms
    net.eval()


CHANGES: dict[str, Callable[[Any], object]] = {
    "sgd": step_of(torch.optim.SGD),
    "adam": step_of(torch.optim.Adam),
    "load_state_dict": lambda net: net.load_state_dict(new_state(net)),
    "load_state_dict, assign": lambda net: net.load_state_dict(new_state(net), assign=True),
    "copy_": lambda net: net.fc.weight.copy_(torch.randn_like(net.fc.weight) / 10),
    "data =": lambda net: setattr(net.fc.weight, "data", torch.randn_like(net.fc.weight) / 10),
    "data.mul_": lambda net: net.stem[0].weight.data.mul_(1.1),
    "replaced": replace_weight,
    "statistics": lambda net: net.stem[1].running_var.mul_(1.2),
    "train mode": call_in_train_mode,
    "none": lambda net: None,
}


def weights(seed: int) -> list[str]:
    prepare()
    torch.manual_seed(seed)
    rng, outcomes = random.Random(seed), []
    nets = [copy.deepcopy(model()).eval() for _ in range(2)]
    options = {"cost_db": False, "plan": torchalgo.load_plan(PLAN)}
    compiled = [torch.compile(net, backend="torchalgo", options=options) for net in nets]
    for _ in range(CHANGES_PER_SEED):
        i, name = rng.randrange(2), rng.choice(list(CHANGES))
        with torch.no_grad():
            CHANGES[name](nets[i])
        expect_equal(compiled[i], nets[i], torch.randn(1, 3, 24, 24), f"after {outcomes} {name}")
        outcomes.append(name)
    if dynamo.report().original_runs:
        raise FindingError(f"PyTorch ran calls: {dynamo.report().original_runs}")
    return outcomes


# ---- shapes --------------------------------------------------------------------------------------


def shapes(seed: int) -> list[str]:
    prepare()
    torch.manual_seed(seed)
    rng, net = random.Random(seed), copy.deepcopy(model())  # a report lists graphs by weights
    compiled = torch.compile(net, backend="torchalgo", options=QUICK)
    # 0 and 1 are special to torch.compile. The second call varies every size.
    sizes = [(2, 24, 24), (3, 26, 28)]
    while len(sizes) < SHAPES_PER_SEED:
        sizes.append((rng.randint(2, 6), rng.randint(9, 64), rng.randint(9, 64)))
    for n, height, width in sizes:
        expect_equal(compiled, net, torch.randn(n, 3, height, width), f"sizes {sizes}")
    report = dynamo.report(compiled)
    if report.original_runs or len(report.graphs) > 2:
        raise FindingError(f"{len(report.graphs)} graphs, PyTorch ran {report.original_runs}")
    return ["equal"] * len(sizes)


# ---- samples of convolutions ---------------------------------------------------------------------


class Sample(nn.Module):
    """Calls an op with a sample's arguments. Its tensors but the first are weights."""

    def __init__(self, op: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__()
        self.op, self.kwargs = op, kwargs
        self.args = [None if isinstance(value, Tensor) else value for value in args]
        for i, value in enumerate(args):
            if isinstance(value, Tensor):
                self.register_parameter(f"weight{i}", nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        given = [getattr(self, f"weight{i}", value) for i, value in enumerate(self.args)]
        return self.op(x, *given, **self.kwargs)


@functools.cache
def all_samples() -> list[tuple[str, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    names = [*CONVOLUTIONS, *(f"conv_transpose{name[4:]}" for name in CONVOLUTIONS)]
    ops = [op for op in op_db if op.name.removeprefix("nn.functional.") in names]
    return [
        (op.name, (op.op, sample))
        for op in ops
        for sample in op.sample_inputs("cpu", torch.float32)
    ]


def samples(seed: int) -> list[str]:
    prepare()
    name, (op, sample) = all_samples()[seed % len(all_samples())]
    net = Sample(op, sample.args, sample.kwargs).eval()
    compiled = torch.compile(net, backend="torchalgo", options=QUICK)
    x = sample.input
    with torch.no_grad():
        result, expected = compiled(x), copy.deepcopy(net).double()(x.double())
    if result.shape != expected.shape or not torch.allclose(result.double(), expected, 1e-4, 1e-4):
        raise FindingError(f"{name} {sample.summary()}: another result than PyTorch")
    return ["PyTorch ran it" if dynamo.report().original_runs else "planned"]


# ---- damaged plans -------------------------------------------------------------------------------


@functools.cache
def archive() -> bytes:
    """Returns the plan object in a .pt2 file, which is an archive in the archive."""
    settings = torchalgo.Settings(progress=False, cost_db=False)
    plan, x = torchalgo.load_plan(PLAN), torch.rand(1, 3, 24, 24)
    fast = torchalgo.optimize(model(), x, plan=plan, settings=settings)
    with tempfile.TemporaryDirectory() as folder:
        fast.save(Path(folder) / "model.pt2")
        with zipfile.ZipFile(Path(folder) / "model.pt2") as file:
            return file.read("archive/data/constants/custom_obj_0")


def with_changed_values(rng: random.Random, data: bytes) -> bytes:
    """Changes bytes of the pickled values, with sound checksums. Weights stay."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        for item in old.infolist():
            content = bytearray(old.read(item))
            for _ in range(rng.choice((1, 2, 4)) if item.filename.endswith("data.pkl") else 0):
                content[rng.randrange(len(content))] = rng.randrange(256)
            new.writestr(item.filename, bytes(content))
    return written.getvalue()


def plan_objects(seed: int) -> list[str]:
    prepare()
    rng, outcomes = random.Random(seed), []
    for _ in range(OBJECTS_PER_SEED):
        try:
            plan = torch._C._pickle_load_obj(with_changed_values(rng, archive()))  # type: ignore[attr-defined]
            if not isinstance(plan, torch.ScriptObject):
                raise RuntimeError("it holds something else")
        except (RuntimeError, ValueError, MemoryError) as problem:
            outcomes.append("torchalgo" if "TA" in str(problem) else "PyTorch refuses it")
            continue
        try:
            # A changed number may be a sound plan of another model, so results are not compared.
            torch.ops.torchalgo.run_plan([torch.rand(1, 3, 24, 24)], plan)
            torchalgo._C.modules_of_plan_object(plan, ["x"])
            outcomes.append("runs")
        except RuntimeError:
            outcomes.append("an error of the call")
    return outcomes


FUZZERS = {"weights": weights, "shapes": shapes, "samples": samples, "plan_objects": plan_objects}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
