# SPDX-License-Identifier: BSD-3-Clause
"""Planned models in training loops of other packages."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import torchalgo
from support.training_models import images, options

pytestmark = pytest.mark.slow  # `make test-all` installs the packages
BATCHES = 4


class Net(nn.Module):
    """Reads its own mode, and has layers with modes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.fc(functional.dropout(y, 0.5, training=self.training))


def planned_net(tmp_path: Path) -> torchalgo.TrainingModule:
    return torchalgo.optimize_training(Net().train(), (images(),), **options(tmp_path))


def loader() -> Any:
    data = TensorDataset(images(2 * BATCHES, 8, 16, 16), torch.arange(2 * BATCHES) % 3)
    return DataLoader(data, batch_size=2)


def is_random(model: nn.Module) -> bool:
    with torch.no_grad():
        return not torch.equal(model(images()), model(images()))


def test_lightning_trains_by_the_plan_after_each_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightning = pytest.importorskip("lightning")
    modes: list[tuple[str, bool, bool]] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def loss(self, batch: Any, name: str) -> Tensor:
            modes.append((name, self.net.training, is_random(self.net)))
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.loss(batch, "train")

        def validation_step(self, batch: Any, _: int) -> None:
            self.loss(batch, "eval")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    monkeypatch.chdir(tmp_path)
    net = planned_net(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning
        warnings.filterwarnings("error", "torchalgo: ")
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=2, val_check_interval=2,
        )  # fmt: skip
        trainer.fit(Module(net), loader(), loader())
    steps = [(mode, random) for name, mode, random in modes if name == "train"]
    assert steps == [(True, True)] * (2 * BATCHES)
    checks = [(mode, random) for name, mode, random in modes if name == "eval"]
    assert checks == [(False, False)] * (2 + 4 * BATCHES)
    regions = len(net.plan.regions)
    assert net.planned_runs == 3 * 2 * BATCHES * regions and net.original_runs.total() == 0


def test_accelerate_trains_by_the_plan_after_each_validation(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    net = planned_net(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(net, optimizer, loader())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torchalgo: ")
        for _ in range(2):
            model.train()
            for x, target in batches:
                assert is_random(model)
                accelerator.backward(functional.cross_entropy(model(x), target))
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            assert not is_random(accelerator.unwrap_model(model))
    assert (
        net.planned_runs == 3 * 2 * BATCHES * len(net.plan.regions)
        and net.original_runs.total() == 0
    )


def test_accelerate_s_mixed_precision_runs_the_model_as_it_was_given_and_says_why(
    tmp_path: Path,
) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    net = planned_net(tmp_path)
    model = accelerator.prepare(net)
    with pytest.warns(UserWarning, match=r"torchalgo: torch.autocast is on"):
        assert model(images()).dtype is torch.float32
    assert net.planned_runs == 0 and net.original_runs.total() > 0
    accelerate.state.AcceleratorState._reset_state(True)
