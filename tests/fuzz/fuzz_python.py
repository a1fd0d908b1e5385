# SPDX-License-Identifier: BSD-3-Clause
"""Models whose Python code does more than compute, changes after optimize, and overlapping calls.

    python tests/fuzz/fuzz_python.py reads --minutes 10

reads: code that reads values of tensors, sizes or weights. writes: code that writes to weights,
buffers and attributes. hooks: forward hooks, before and after optimize. changes: layers that are
replaced and settings that are changed afterwards. overlap: several calls of optimize at once.
baselines: rare convolutions, which PyTorch's own ways run beside the plan. A case is a call whose
result is compared with that of a copy of the model, or an error of torchalgo. The models are equal
before and after optimize. Only public names are used, so that older commits can be searched.
"""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import isolated
import torchalgo
from campaign import FindingError, main, told

Step = Callable[[Any, Tensor], Tensor]

PLAIN: list[Step] = [
    lambda m, y: y.relu(), lambda m, y: y + 1, lambda m, y: y * m.scale,
    lambda m, y: functional.interpolate(y, scale_factor=2.0), lambda m, y: y.flip(3),
]  # fmt: skip
READS: list[Step] = [
    lambda m, y: y * y.max().item(), lambda m, y: y if y.max() > m.limit else y + 1,
    lambda m, y: y + 1 if not y.isnan().any() else y.nan_to_num(),
    lambda m, y: y * float(np.abs(y.detach().numpy()).max()),
    lambda m, y: torch.as_tensor(np.tanh(y.detach())),
    lambda m, y: torch.from_dlpack(torch.utils.dlpack.to_dlpack(y.detach())) * 2,
    lambda m, y: y.contiguous() * float(y.contiguous().untyped_storage()[3] > 90),
    lambda m, y: y if len(y[y > m.limit]) > 3 else y - 1, lambda m, y: y * y.data.mean().item(),
    lambda m, y: y + 1 if torch.equal(y, y.abs()) else y, lambda m, y: y * (1 + y.stride(1) % 7),
    lambda m, y: y if y.is_contiguous() else y + 1, lambda m, y: y * m.scale.item(),
    lambda m, y: y + len(f"{y.shape[2]}"), lambda m, y: sum(y[:, i : i + 1] for i in range(len(y))),
    lambda m, y: y[:, : 1 + int(y.abs().sum()) % 3],
]  # fmt: skip


def wrote(change: Callable[[Any, Tensor], Any]) -> Step:
    def step(model: Any, y: Tensor) -> Tensor:
        change(model, y)
        return y * model.state

    return step


WRITES: list[Step] = [
    wrote(lambda m, y: m.state.mul_(0.9)), wrote(lambda m, y: m.state.copy_(y.mean()[None])),
    wrote(lambda m, y: setattr(m, "state", m.state + 1)),
    wrote(lambda m, y: setattr(m.scale, "data", m.scale.data * 0.9)),
    wrote(lambda m, y: m.scale.data.clamp_(0, 1)),
    wrote(lambda m, y: m.stem.weight.data.mul_(0.99)),
    wrote(lambda m, y: setattr(m, "calls", m.calls + 1)),
    wrote(lambda m, y: setattr(m, "kept", y.shape)),
]  # fmt: skip


class Net(nn.Module):
    """Two blocks of convolutions with steps of Python code between them."""

    def __init__(self, rng: random.Random, steps: list[Step]) -> None:
        super().__init__()
        torch.manual_seed(rng.randrange(1 << 30))
        width = rng.choice([4, 8, 16])
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.scale, self.limit = nn.Parameter(torch.tensor(1.5)), rng.choice([0.5, 5.0, 20.0])
        self.register_buffer("state", torch.ones(1))
        self.calls, self.kept, self.steps = 0, None, steps

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.norm(self.stem(x)))
        for step in self.steps:
            y = step(self, y)
        return y


def optimized(model: nn.Module, x: Tensor) -> Any:
    """Optimizes in a second. Raises FindingError if the model is another one afterwards."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    settings = torchalgo.Settings(progress=False, cost_db=False, run_untimed=True)
    fast = torchalgo.optimize(model, x, budget_s=1.0, settings=settings)
    after = model.state_dict()
    for name, value in before.items():
        if after[name].device.type != "cpu" or not torch.equal(after[name], value):
            raise FindingError(f"optimize changed {name}")
    return fast


def compare(fast: Any, model: Any, x: Tensor, what: str) -> str:
    try:
        want = model(x)
    except Exception:  # the model refuses such an input
        return "refused"
    try:
        got = fast(x)
    except torchalgo.Error as problem:
        return str(problem)[:6]
    scale = 1e-6 + max([0.0, *want.nan_to_num().abs().flatten().tolist()])
    near = {"rtol": 1e-3, "atol": 1e-4 * scale, "equal_nan": True}
    if got.shape != want.shape or not torch.allclose(got, want, **near):
        raise FindingError(f"{what}: other values for input {tuple(x.shape)} {x.stride()}")
    return "equal"


def inputs(rng: random.Random) -> list[Tensor]:
    x = torch.rand(1, 3, rng.randrange(8, 20), rng.randrange(8, 20))
    others = [x, x * 30, -x, x * 0, x.contiguous(memory_format=torch.channels_last), x * np.nan]
    return [*others, torch.rand(2, 3, *x.shape[2:])]


def prepare() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")


def _of_steps(seed: int, kinds: list[Step]) -> list[str]:
    prepare()
    rng = random.Random(seed)
    steps = [*rng.choices(kinds, k=rng.choice([1, 1, 2])), *rng.choices(PLAIN, k=rng.randrange(2))]
    rng.shuffle(steps)
    model, every = Net(rng, steps).eval(), inputs(rng)
    try:
        fast = optimized(model, every[0])
    except torchalgo.Error as problem:
        return [str(problem)[:6]]
    other = copy.deepcopy(model)
    known = [*READS, *WRITES, *PLAIN]
    what = f"steps {[known.index(step) for step in steps]}"
    return [compare(fast, other, x, what) for x in every]


def reads(seed: int) -> list[str]:
    return _of_steps(seed, READS)


def writes(seed: int) -> list[str]:
    return _of_steps(seed, WRITES)


def hooks(seed: int) -> list[str]:
    prepare()
    rng = random.Random(seed)
    model, every, runs = Net(rng, rng.choices(PLAIN, k=1)).eval(), inputs(rng), [0]

    def pre(module: Any, args: Any) -> None:
        runs[0] += 1

    def post(module: Any, args: Any, y: Tensor) -> Tensor:
        runs[0] += 1
        return y * 2

    def add() -> None:
        module = rng.choice(list(model.modules()))
        if rng.random() < 0.5:
            module.register_forward_pre_hook(pre)
        else:
            module.register_forward_hook(post)

    is_before = rng.random() < 0.5
    if is_before:
        add()
    fast = optimized(model, every[0])
    if not is_before or rng.random() < 0.3:
        add()
    ended = []
    for x in every:
        before = runs[0]
        want = model(x)
        expected, before = runs[0] - before, runs[0]
        ended.append(compare(fast, lambda given, want=want: want, x, "hooks"))
        if runs[0] - before != expected:
            raise FindingError(f"a hook ran {runs[0] - before} times, expected {expected}")
    return ended


CHANGES: list[Callable[[Any], Any]] = [
    lambda m: setattr(m, "stem", nn.Conv2d(3, m.stem.out_channels, 1).eval()),
    lambda m: setattr(m.body, "0", nn.Sequential(m.body[0], nn.Tanh()).eval()),
    lambda m: m.body.append(nn.Sigmoid().eval()), lambda m: m.body.__delitem__(1),
    lambda m: setattr(m.norm, "eps", 0.5), lambda m: setattr(m.stem, "padding_mode", "circular"),
    lambda m: setattr(m.stem, "forward", lambda x: x.sum() + m.norm.bias.view(1, -1, 1, 1)),
    lambda m: setattr(m.stem, "padding", (0, 0)), lambda m: m.scale.data.mul_(2),
    lambda m: m.stem.weight.mul_(1.5), lambda m: m.norm.running_mean.add_(1),
    lambda m: setattr(m, "norm", nn.Identity()),
]  # fmt: skip


def changes(seed: int) -> list[str]:
    prepare()
    rng = random.Random(seed)
    model, every = Net(rng, [*rng.choices(PLAIN, k=1), PLAIN[2]]).eval(), inputs(rng)
    fast = optimized(model, every[0])
    number = rng.randrange(len(CHANGES))
    CHANGES[number](model)
    ended = [compare(fast, model, x, f"change {number}") for x in every]
    try:
        fast.refresh()
    except torchalgo.Error as problem:
        return [*ended, str(problem)[:6]]
    return ended + [compare(fast, model, x, f"change {number}, refreshed") for x in every]


def overlap(seed: int) -> list[str]:
    prepare()
    rng = random.Random(seed)
    models = [Net(rng, rng.choices(PLAIN + READS, k=2)).eval() for _ in range(4)]
    every = [inputs(rng) for _ in models]
    optimized(Net(rng, PLAIN[:1]).eval(), every[0][0])  # imports of libraries add warning filters
    globals_before = (torch.Tensor.stride, torch.SymInt.__repr__, list(warnings.filters))
    ended: list[Any] = []

    def run(i: int) -> None:
        torch.set_grad_enabled(False)  # each thread has its own setting
        try:
            fast = optimized(models[i], every[i][0])
            other = copy.deepcopy(models[i])
            ended.extend(compare(fast, other, x, f"thread {i}") for x in every[i])
        except torchalgo.Error as problem:
            ended.append(str(problem)[:6])
        except BaseException as problem:
            ended.append(FindingError(told(problem)))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in ended:
        if isinstance(each, FindingError):
            raise each
    if (torch.Tensor.stride, torch.SymInt.__repr__, list(warnings.filters)) != globals_before:
        raise FindingError("the state of the process is another one")
    return ended


def baselines(seed: int) -> list[str]:
    prepare()
    rng = random.Random(seed)
    layers: list[nn.Module] = []
    groups = rng.choice([1, 2, 3, 4])
    width = groups * rng.choice([4, 16])
    size = [rng.choice([1, 2, 5, 8, 19]) for _ in range(2)]  # rare ones have faults
    x = torch.rand(rng.choice([1, 2]), width, *size)
    torch.manual_seed(seed)
    for _ in range(rng.choice([1, 1, 2])):
        wide = groups * rng.choice([4, 16, 17])
        layers.append(nn.Conv2d(
            width, wide, rng.choice([1, 1, 1, 2, 3]), stride=rng.choice([1, 2, (1, 2), (2, 1)]),
            padding=rng.choice([0, 1, 1]), dilation=rng.choice([1, 2]), groups=groups,
        ))  # fmt: skip
        width = wide
    model = nn.Sequential(*layers).eval()
    try:
        model(x)
    except RuntimeError:
        return ["refused"]
    return [compare(optimized(model, x), model, x, "baselines")]


FUZZERS = {
    "reads": reads, "writes": writes, "hooks": hooks, "changes": changes, "overlap": overlap,
    "baselines": baselines,
}  # fmt: skip

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
