# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize(training=True)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from torchalgo import _C
from torchalgo._ir.plan import GuardVerdict
from torchalgo._train.known_ops import is_altered
from torchalgo._train.plan import TrainingPlan
from torchalgo._train.region import PlannedRegion, is_transformed
from torchalgo._train.trace import Traced

Link = tuple[nn.Module, str, Any]  # a module, the name of an attribute, and its value
Layers = tuple[nn.Module, dict[str, nn.Module | None]]  # a module, and its layers by name


class TrainingModule(nn.Module):
    """A model that is trained, with the primitives of a plan in all three directions.

    It has the submodules, parameters and buffers of the model as it was given: the same objects
    under the same names. So the optimizer, the loss, checkpoints and the training loop stay as they
    are. `eval()` runs the model as it was given.

        planned = torchalgo.optimize(model, (x,), training=True)
        optimizer = torch.optim.SGD(planned.parameters(), lr=0.1)
        loss_of(planned(x)).backward()
        optimizer.step()
    """

    is_torchalgo_optimized = True

    _original: nn.Module
    _whole: fx.GraphModule
    _traced: Traced
    _regions: dict[str, PlannedRegion]
    _shapes: list[torch.Size]  # of the inputs: the trace holds for these
    _others: int  # runs of regions in calls that ran the whole model as it was given
    _layers: list[Layers]
    _links: list[Link]
    _modes: list[tuple[bool, bool]]
    plan: TrainingPlan
    runs: Literal["plan", "baseline"]  # "baseline": the model as it was given, which was faster
    is_interrupted: bool  # True if Ctrl-C ended the tuning early

    def __init__(
        self, model: nn.Module, traced: Traced, regions: dict[str, PlannedRegion],
        plan: TrainingPlan, shapes: list[torch.Size],
    ) -> None:  # fmt: skip
        super().__init__()
        self.__dict__.update(
            _original=model, _traced=traced, _whole=traced.whole, _regions=regions, plan=plan,
            _shapes=shapes, _others=0, _layers=_layers(model), _links=_links(model, traced),
            _modes=_modes(model, traced), runs="plan", is_interrupted=False,
        )  # fmt: skip
        # The model's own dicts: what is registered later in one of both is in the other.
        for name, value in vars(model).items():
            if name in _SHARED or (name.endswith("_hooks") and name in self.__dict__):
                self.__dict__[name] = value
        self.training = model.training

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingModule:
        model = copy.deepcopy(self._original, memo)
        whole = copy.deepcopy(self._whole, memo)
        entered = copy.deepcopy(self._traced.entered, memo)
        regions = {name: getattr(whole, name) for name in self._regions}
        traced = dataclasses.replace(self._traced, whole=whole, regions={}, entered=entered)
        copied = TrainingModule(model, traced, regions, self.plan, self._shapes)
        copied.__dict__.update(
            _modes=self._modes, runs=self.runs, is_interrupted=self.is_interrupted
        )
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _C.Error(
            "TA1603 pickle: a model of optimize(training=True) cannot be pickled: save its"
            " state_dict(), or the model that was given"
        )

    def train(self, mode: bool = True) -> TrainingModule:
        """Sets the mode of the model, as torch.nn.Module does."""
        self._original.train(mode)  # its class may do more, for example keep batch norms in eval
        self.training = self._original.training
        return self

    # These are the model's own, since its class may have others than torch.nn.Module.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the state of the model, with the keys of the model."""
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads the state of the model."""
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._original._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> TrainingModule:
        self._original._apply(*args, **kwargs)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. In train mode, regions run their plans."""
        if self._fits(args, kwargs):
            return self._whole(*args)
        if self.training:
            self.__dict__["_others"] += len(self._regions)
        return self._original.forward(*args, **kwargs)

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return (
            self.training
            and self.runs == "plan"
            and not kwargs
            and len(args) == len(self._shapes)
            and all(isinstance(x, Tensor) for x in args)
            and all(x.shape == shape for x, shape in zip(args, self._shapes, strict=True))
            and all(owner._modules == layers for owner, layers in self._layers)
            and all(getattr(owner, name, None) is value for owner, name, value in self._links)
            and "forward" not in vars(self._original)
            and not is_transformed()
            and _modes(self._original, self._traced) == self._modes
        )

    @property
    def given(self) -> nn.Module:
        """The model as it was given."""
        return self._original

    def guard_with(self, verdict: GuardVerdict | None) -> None:
        """Notes the verdict in `plan`. From now on, the faster one of both runs, see `runs`."""
        runs = "baseline" if verdict is not None and verdict.runs == "baseline" else "plan"
        self.__dict__.update(plan=dataclasses.replace(self.plan, guard=verdict), runs=runs)

    @property
    def planned_runs(self) -> int:
        """How often regions have run their plans."""
        return sum(region.plan_runs for region in self._regions.values())

    @property
    def other_runs(self) -> int:
        """How often regions have run as they were given: for other shapes, modes or hooks."""
        return self._others + sum(region.others for region in self._regions.values())


# Attributes of a module that its hooks have beside the dicts whose names end with "_hooks".
_SHARED = frozenset(
    (
        "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set",
        "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs", "_is_full_backward_hook",
    )
)  # fmt: skip


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _layers(model: nn.Module) -> list[Layers]:
    """Returns the layers of each module that may choose which of its layers run."""
    return [
        (owner, dict(owner._modules))
        for owner in model.modules()
        if isinstance(owner, _CONTAINERS) or not type(owner).__module__.startswith("torch.nn.")
    ]


def _links(model: nn.Module, traced: Traced) -> list[Link]:
    """Returns the tensors that the trace has found, with their owners."""
    found: list[Link] = []
    for node in traced.whole.graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = model.get_submodule(path)
            if hasattr(owner, name):  # it is no constant of the trace
                found.append((owner, name, getattr(owner, name)))
    return found


def _modes(model: nn.Module, traced: Traced) -> list[tuple[bool, bool]]:
    """Returns what the trace has taken from modules that it has entered: their modes and hooks."""
    return [
        (module.training, module is not model and is_altered(module)) for module in traced.entered
    ]
