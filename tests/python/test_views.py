# SPDX-License-Identifier: BSD-3-Clause
"""What needs no work: concatenations whose inputs are written in place, changes of layout that move
nothing. The result is the model's, whatever the plan, and no element is copied."""

from __future__ import annotations

import io
import random
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import torchalgo
from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, op_counts, priced_plan, rewrite
from support.view_nets import Inception, conv
from torchalgo import _C
from torchalgo._db import CostStore


class ReluBehind(Inception):
    def forward(self, x: Tensor) -> Tensor:
        return self.join(F.relu(torch.cat(self.branches(x), 1)))


class ReadTwice(Inception):
    """A branch and the result have other readers too; both leave the model."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.branches(x)
        joined = torch.cat(parts, 1)
        return self.join(joined), joined, F.relu(parts[1])


class InputsLeave(Inception):
    def forward(self, x: Tensor) -> list[Tensor]:
        parts = self.branches(x)
        return [*parts, self.join(torch.cat(parts, 1))]


class Dense(nn.Module):
    """Each layer reads the list of all before it, as torchvision's DenseNet."""

    def __init__(self, growth: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.stem = conv(3, 48, 3)
        self.layers = nn.ModuleList(conv(48 + growth * i, growth, 3) for i in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(48 + growth * i) for i in range(layers))
        self.last = conv(48 + growth * layers, 16)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            features.append(layer(F.relu(norm(torch.cat(features, 1)))))
        return self.last(torch.cat(features, 1))


class DenseNested(Dense):
    """The same with concatenations of concatenations."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.last(x)


class Duplicates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 32, 3), conv(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.last(torch.cat([y, F.relu(y), y], 1))


class Foreign(nn.Module):
    """Inputs of the model and results of ops that are not planned."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(32, 32, 3), conv(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.last(torch.cat([x, torch.cumsum(y, 1), y, torch.flip(x, (1,))], 1))


class UNet(nn.Module):
    """A skip connection that is written long before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = conv(3, 32, 3), conv(32, 48, 3), conv(48, 32, 3)
        self.last = conv(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        deep = F.relu(self.deep(F.max_pool2d(skip, 2)))
        deep = F.interpolate(self.up(deep), scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([skip, deep], 1))


class Squeeze(nn.Module):
    """Squeeze and excitation, a global pool, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reduce, self.expand = conv(3, 64, 3), conv(64, 16), conv(16, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        scale = torch.sigmoid(self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(x, 1)))))
        x = x * scale
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


# model, channels of its input, how many view.concat its blocked plan has at least
MODELS: dict[str, tuple[nn.Module, int, int]] = {
    "inception": (Inception(), 32, 1),
    "ragged": (Inception(last=20), 32, 1),
    "relu_behind": (ReluBehind(), 32, 1),
    "read_twice": (ReadTwice(), 32, 1),
    "inputs_leave": (InputsLeave(), 32, 1),
    "dense": (Dense(), 3, 5),
    "dense_nested": (DenseNested(), 3, 4),
    "dense_thin": (Dense(growth=12), 3, 0),
    "duplicates": (Duplicates(), 3, 0),
    "foreign": (Foreign(), 32, 1),
    "unet": (UNet(), 3, 1),
    "squeeze": (Squeeze(), 3, 0),
}


def blocked_plan(graph: _C.Graph) -> _C.Plan:
    """The best plan where nChw16c is much cheaper than all else."""

    def price(key: _C.CostKey) -> int:
        if key.src == key.dst == "nChw16c":
            return 10
        return 20 if key.problem.startswith("transform_") else 1000

    return priced_plan(graph, price)


def plan_for(graph: _C.Graph, seed: int | None) -> _C.Plan:
    return blocked_plan(graph) if seed is None else any_plan(graph, seed)


def planned(name: str, seed: int | None) -> tuple[nn.Module, Tensor, _C.Plan, Any]:
    torch.manual_seed(0)
    model, channels, _ = MODELS[name]
    x = torch.rand(1, channels, 10, 12)
    imported = _C.import_graph(freeze(model.eval(), (x,), "trace")._c, (x,))
    plan = plan_for(imported.graph, seed)
    return model, x, plan, rewrite(imported, plan)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_any_plan_computes_what_the_model_computes(name: str, seed: int | None) -> None:
    model, x, plan, module = planned(name, seed)
    joins = sum(node.primitive.name == "view.concat" for node in plan.nodes)
    assert op_counts(module)["torchalgo::join"] == joins
    if seed is None:
        assert joins >= MODELS[name][2], [repr(node.primitive) for node in plan.nodes]
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    runner = _C.GraphRunner.make(loaded._c, [])
    assert runner is not None
    with torch.no_grad():
        for runs in (module, loaded, torch.jit.freeze(module.eval()), runner.run):
            for _ in range(3):  # the executor specializes what it ran before
                assert_close(runs(x), model, (x,))


@pytest.mark.parametrize("name", ["inception", "ragged", "relu_behind", "dense", "dense_nested"])
def test_nothing_is_copied_to_concatenate(name: str) -> None:
    _, x, plan, module = planned(name, None)
    assert not any("concat" in n.primitive.name and "view" not in n.primitive.name
                   for n in plan.nodes)  # fmt: skip
    with torch.no_grad(), torch.profiler.profile(acc_events=True) as profile:
        module(x)
    ran = {event.key for event in profile.key_averages()}
    assert "torchalgo::join" in ran
    assert not ran & {"aten::copy_", "aten::cat", "aten::clone"}, sorted(ran)


@pytest.mark.parametrize("name", ["inception", "dense", "dense_nested", "foreign", "unet"])
def test_other_sizes_than_planned_give_the_same_result(name: str) -> None:
    model, x, _, module = planned(name, None)
    for sizes in ((2, 10, 12), (1, 6, 8), (1, 20, 14), (3, 4, 4)):
        other = torch.rand(sizes[0], x.shape[1], *sizes[1:])
        with torch.no_grad():
            assert_close(module(other), model, (other,))


def test_results_and_calls_share_no_memory() -> None:
    _, x, _, module = planned("inputs_leave", None)
    with torch.no_grad():
        first, second = module(x), module(x)
    tensors = [*first, *second]
    kept = [tensor.clone() for tensor in tensors]
    for i, tensor in enumerate(tensors):
        tensor.fill_(float(i))
        for other, before in zip(tensors[i + 1 :], kept[i + 1 :], strict=True):
            assert torch.equal(other, before)


def test_calls_from_two_threads_at_once_agree() -> None:
    model, _, _, module = planned("dense", None)
    inputs = [torch.rand(1, 3, 10, 12) for _ in range(2)]
    results: list[list[Tensor]] = [[], []]

    def call(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                results[i].append(module(inputs[i]))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, found in zip(inputs, results, strict=True):
        for y in found:
            assert_close(y, model, (x,))


class RandomFlow(nn.Module):
    """A random program of convolutions, activations, sums, pools and concatenations."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        channels = [32]
        self.convs = nn.ModuleList()
        self.steps: list[tuple[str, list[int]]] = []
        for _ in range(12):
            kind = draw.choice(["conv", "conv", "relu", "add", "pool", "cat", "cat", "cat"])
            reads = [draw.randrange(len(channels)) for _ in range(draw.randint(2, 4))]
            if draw.random() < 0.5:  # what dense blocks do: neighbours in order
                first = draw.randrange(len(channels))
                reads = list(range(first, min(first + len(reads), len(channels))))
            if kind == "cat":
                made = sum(channels[i] for i in reads)
            elif kind == "add":
                reads = [
                    reads[0],
                    next(i for i, c in enumerate(channels) if c == channels[reads[0]]),
                ]
                made = channels[reads[0]]
            else:
                reads = reads[:1]
                made = channels[reads[0]]
            if kind == "conv" or made > 400:
                kind, made = "conv", draw.choice([16, 32, 32, 48, 20])
                self.convs.append(conv(sum(channels[i] for i in reads[:1]), made, 3))
                reads = reads[:1]
            self.steps.append((kind, reads))
            channels.append(made)
        self.outputs = draw.sample(range(1, len(channels)), 2) + [len(channels) - 1]

    def forward(self, x: Tensor) -> list[Tensor]:
        values = [x]
        convs = iter(self.convs)
        for kind, reads in self.steps:
            parts = [values[i] for i in reads]
            if kind == "cat":
                values.append(torch.cat(parts, 1))
            elif kind == "add":
                values.append(parts[0] + parts[1])
            elif kind == "pool":
                values.append(F.max_pool2d(parts[0], 3, 1, 1))
            else:
                values.append(next(convs)(parts[0]) if kind == "conv" else F.relu(parts[0]))
        return [values[i] for i in self.outputs]


def test_random_data_flows_equal_the_model() -> None:
    joins = 0
    for seed in range(25):
        torch.manual_seed(seed)
        model, x = RandomFlow(seed).eval(), torch.rand(1, 32, 6, 5)
        imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
        for choice in (None, seed):
            module = rewrite(imported, plan_for(imported.graph, choice))
            joins += op_counts(module)["torchalgo::join"]
            runner = _C.GraphRunner.make(module._c, [])
            assert runner is not None
            with torch.no_grad():
                assert_close(module(x), model, (x,))
                assert_close(runner.run(x), model, (x,))
    assert joins > 10


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_lies_alike_is_relabelled_and_never_measured(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    model, x = Squeeze().eval(), torch.rand(1, 3, 16, 16).to(memory_format=layout)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    changes = _C.transform_candidates(imported.graph, _C.find_candidates(imported.graph))
    names = {c.primitive.name for c in changes if "h1w1" in c.problem and "c64" in c.problem}
    assert names == {"view.relabel"}
    used = 0
    for seed in range(4):
        module = rewrite(imported, any_plan(imported.graph, seed))
        used += op_counts(module)["torchalgo::relabel"]
        other = torch.rand(2, 3, 24, 16)
        with torch.no_grad():
            assert_close(module(x), model, (x,))
            assert_close(module(other), model, (other,))
    assert used > 0


def test_optimize_asks_for_no_measurement_of_views(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model, x = Inception().eval(), torch.rand(1, 32, 8, 8)
    costs = tmp_path / "costs.sqlite3"
    fast = torchalgo.optimize(
        model, (x,), settings=torchalgo.Settings(cost_db=costs, progress=False), budget_s=5
    )
    with CostStore.open(costs) as store:
        kept = {row.primitive for row in store.rows()}
    assert kept and not [name for name in kept if name.startswith("view.")]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    proven = fast.plan.with_proof()
    torchalgo.check_plan(proven)
    again = torchalgo.Plan.from_json(proven.to_json())
    assert again == proven
    applied = torchalgo.optimize(
        model, (x,), plan=again, settings=torchalgo.Settings(progress=False)
    )
    with torch.no_grad():
        torch.testing.assert_close(applied(x), model(x), rtol=1e-4, atol=1e-5)
