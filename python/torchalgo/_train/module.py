# SPDX-License-Identifier: BSD-3-Clause
"""The result of optimize_training."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchalgo import _C
from torchalgo._base.read_file import path_of
from torchalgo._base.user_warning import warn_user
from torchalgo._ir.plan import GuardVerdict
from torchalgo._train.known_ops import is_altered
from torchalgo._train.plan import TrainingPlan, noted_regions
from torchalgo._train.region import PlannedRegion, why_transformed
from torchalgo._train.trace import Traced

_LOST = "the model as it was given was faster"  # a reason that is no news

Link = tuple[nn.Module, str, Any]  # a module, the name of an attribute, and its value
Layers = tuple[nn.Module, dict[str, nn.Module | None]]  # a module, and its layers by name


class TrainingModule(nn.Module):
    """A model that is trained, with the primitives of a plan in all three directions.

    It has the submodules, parameters and buffers of the model as it was given: the same objects
    under the same names. So the optimizer, the loss, checkpoints and the training loop stay as they
    are. `eval()` runs the model as it was given.

        planned = torchalgo.optimize_training(model, (x,))
        optimizer = torch.optim.SGD(planned.parameters(), lr=0.1)
        loss_of(planned(x)).backward()
        optimizer.step()
    """

    is_torchalgo_optimized = True

    _original: nn.Module
    plan: TrainingPlan
    # "baseline": the model as it was given, which was faster, or there was no time to see it.
    runs: Literal["plan", "baseline"]
    is_interrupted: bool  # True if Ctrl-C ended the tuning early

    def __init__(
        self, model: nn.Module, traced: Traced, regions: dict[str, PlannedRegion],
        plan: TrainingPlan, shapes: list[torch.Size], in_autocast: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.__dict__["_original"] = model  # it is no submodule
        self.plan, self.runs, self.is_interrupted = plan, "plan", False
        self._traced, self._regions = traced, regions
        self._shapes = shapes  # of the inputs: the trace holds for these
        self._in_autocast = in_autocast  # the plan is for calls inside of torch.autocast in bf16
        self._layers, self._links = _layers(model), _links(model, traced)
        self._modes = _modes(model, traced)
        self._others = Counter[str]()  # runs of regions in calls of the whole model, by reason
        self._told: set[str] = set()  # the reasons that a warning has told
        # The model's own dicts: what is registered later in one of both is in the other.
        for name, value in vars(model).items():
            if name in _SHARED or (name.endswith("_hooks") and name in self.__dict__):
                self.__dict__[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingModule:
        model = copy.deepcopy(self._original, memo)
        whole = copy.deepcopy(self._traced.whole, memo)
        entered = copy.deepcopy(self._traced.entered, memo)
        regions = {name: getattr(whole, name) for name in self._regions}
        traced = dataclasses.replace(self._traced, whole=whole, regions={}, entered=entered)
        copied = TrainingModule(model, traced, regions, self.plan, self._shapes, self._in_autocast)
        copied._modes = self._modes
        copied.__dict__.update(runs=self.runs, is_interrupted=self.is_interrupted)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _C.Error(
            "TA1603 pickle: a model of optimize_training cannot be pickled: save its"
            " state_dict(), or the model that was given"
        )

    @property
    def training(self) -> bool:
        """The mode of the model itself. Training loops may set it without a call of `train`."""
        return self._original.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_original" in vars(self):  # torch.nn.Module sets a mode before there is a model
            self._original.training = mode

    # These are the model's own, since its class may have others than torch.nn.Module. For example,
    # it may keep batch norms in eval mode.

    def train(self, mode: bool = True) -> TrainingModule:
        """Sets the mode of the model, as torch.nn.Module does."""
        self._original.train(mode)
        return self

    def eval(self) -> TrainingModule:
        """Sets the mode of the model to that of inference."""
        self._original.eval()
        return self

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
        """Runs the model. In train mode, regions run their plans.

        If a plan does not run in train mode, a warning says why, once per reason.
        """
        if not self.training:
            return self._original.forward(*args, **kwargs)
        why = self._why_not(args, kwargs)
        if why:
            self._others[why] += len(self._regions)
            self._tell(why)
            return self._original.forward(*args, **kwargs)
        result = self._traced.whole(*args)
        self._tell(next((each.why for each in self._regions.values() if each.why), ""))
        return result

    def _tell(self, why: str) -> None:
        """Warns that a plan did not run for this reason, if it is a new one."""
        if not why or why in self._told or why == _LOST or not self._regions:
            return
        self._told.add(why)
        warn_user(
            f"{why}. So a part of the model ran without its plan. This warning appears once per"
            " reason; .original_runs counts such runs"
        )

    def _why_not(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Returns why the model runs as it was given; empty if regions may run their plans."""
        if self.runs == "baseline":
            guard = self.plan.guard
            is_slower = guard is not None and guard.verdict == "slower"
            return _LOST if is_slower else "there was no time to see whether the plan is faster"
        if kwargs or len(args) != len(self._shapes) or not all(isinstance(x, Tensor) for x in args):
            return "a call has other arguments than the example inputs"
        if any(x.shape != shape for x, shape in zip(args, self._shapes, strict=True)):
            planned = ", ".join(str(list(shape)) for shape in self._shapes)
            return f"inputs have other sizes than those of the plan, {planned}"
        for owner, layers in self._layers:
            if owner._modules != layers:
                return f"layers of {self._name_of(owner)} were replaced, added or removed"
        for owner, name, value in self._links:
            if getattr(owner, name, None) is not value:
                return f"{name} of {self._name_of(owner)} is another tensor"
        if "forward" in vars(self._original):
            return "forward was set on the model itself"
        return why_transformed(self._in_autocast) or self._why_other_modes()

    def _why_other_modes(self) -> str:
        """Returns which module has another mode than in the trace, or new hooks; empty if none."""
        modes = _modes(self._original, self._traced)
        if modes == self._modes:
            return ""
        i = next(i for i, mode in enumerate(modes) if mode != self._modes[i])
        name = self._name_of(self._traced.entered[i])
        if modes[i][0] == self._modes[i][0]:
            return f"hooks or the forward of {name} were changed"
        now, then = ("eval", "train") if self._modes[i][0] else ("train", "eval")
        return f"{name} is in {now} mode, and it was in {then} mode when the plan was made"

    def _name_of(self, module: nn.Module) -> str:
        found = (name for name, each in self._original.named_modules() if each is module)
        return repr(next(found, "")) if module is not self._original else "the model"

    @property
    def given(self) -> nn.Module:
        """The model as it was given."""
        return self._original

    def guard_with(self, verdict: GuardVerdict | None) -> None:
        """Notes the verdict in `plan`. From now on, the faster one of both runs, see `runs`."""
        runs = "baseline" if verdict is not None and verdict.runs == "baseline" else "plan"
        self.__dict__.update(plan=dataclasses.replace(self.plan, guard=verdict), runs=runs)

    def report(self, path: str | Path) -> None:
        """Writes a report of the plan to a file. docs/report.md says how to read it.

            planned.report("report.html")

        Args:
            path: the file. Its suffix selects the format: .html, .txt, .csv, .trace.json or .json.

        Raises: torchalgo.Error for any other suffix, if no part of the model has a plan, or if the
            file cannot be written.
        """
        from torchalgo._report.page import write_report
        from torchalgo._report.subject import subjects_of

        if not self.plan.regions:
            raise _C.Error(
                "TA1408 report: the model runs as it was given, since no part of it has a plan;"
                " planned.plan.left_alone lists what PyTorch runs"
            )
        plans = zip(noted_regions(self.plan), self.plan.graphs, strict=True)
        write_report(
            subjects_of(list(plans)), path_of(path, "report"), type(self._original).__name__
        )

    @property
    def planned_runs(self) -> int:
        """How often regions have run their plans."""
        return sum(region.planned_runs for region in self._regions.values())

    @property
    def original_runs(self) -> Counter[str]:
        """How often regions have run as they were given in train mode, by reason."""
        return sum((each.original_runs for each in self._regions.values()), self._others.copy())


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
