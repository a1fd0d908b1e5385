# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize(training=True)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from torchalgo import _C
from torchalgo._train.region import PlannedRegion


class TrainingModule(nn.Module):
    """A model that is trained, with the primitives of a plan in all three directions.

    It has the submodules, parameters and buffers of the model as it was given: the same objects
    under the same names. So the optimizer, the loss, checkpoints and the training loop stay as they
    are. `eval()` runs the model as it was given.
    """

    is_torchalgo_optimized = True

    _original: nn.Module
    _whole: fx.GraphModule
    _regions: dict[str, PlannedRegion]
    plans: dict[str, _C.Plan]  # of the regions

    def __init__(
        self, model: nn.Module, whole: fx.GraphModule, regions: dict[str, PlannedRegion],
        plans: dict[str, _C.Plan],
    ) -> None:  # fmt: skip
        super().__init__()
        self.__dict__.update(_original=model, _whole=whole, _regions=regions, plans=plans)
        # The model's own dicts: what is registered later in one of both is in the other.
        self._modules = model._modules
        self._parameters = model._parameters
        self._buffers = model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self.training = model.training

    def train(self, mode: bool = True) -> TrainingModule:
        """Sets the mode of the model, as torch.nn.Module does."""
        super().train(mode)
        self._original.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. In train mode, regions run their plans."""
        is_planned = self.training and not kwargs and all(isinstance(x, Tensor) for x in args)
        return self._whole(*args) if is_planned else self._original(*args, **kwargs)

    @property
    def planned_runs(self) -> int:
        """How often regions have run their plans."""
        return sum(region.plan_runs for region in self._regions.values())

    @property
    def other_runs(self) -> int:
        """How often regions have run as they were given: for other shapes, modes or hooks."""
        return sum(region.others for region in self._regions.values())
