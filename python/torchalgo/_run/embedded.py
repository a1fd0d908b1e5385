# SPDX-License-Identifier: BSD-3-Clause
"""Implements the nn.Module interface of an optimized module, alone and inside a bigger model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from typing_extensions import Self

from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._run.original import Original


class Embedded(nn.Module):
    """A module whose weights and attributes are those of an original model.

    It has no parameters, buffers or submodules of its own: `parameters()`, `len()` and indexing are
    those of the original. So a bigger model does not see weights that it could not train.
    """

    _original: Original | None  # None: the model is not available, for example after load
    _device: torch.device
    _dtypes: list[set[torch.dtype]]  # the types of each input

    @property
    def scripted(self) -> ScriptModule:
        """The TorchScript module that runs."""
        raise NotImplementedError

    def refresh_if_planned(self) -> None:
        """Packs the original's present weights, if weights are packed."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the original, such as config, dtype or a submodule.

        A method of the original that calls layers does not use the plan.
        """
        original = self.__dict__.get("_original")
        if name.startswith("_"):
            return super().__getattr__(name)
        if original is None:
            raise AttributeError(
                f"an optimized module has no attribute {name!r}, and the original model is not"
                " available after load or unpickling"
            )
        return getattr(original.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self.__dict__.get("_original")
        is_of_original = (
            original is not None
            and not name.startswith("_")
            and not hasattr(type(self), name)
            and name != "training"
            and hasattr(original.model, name)
        )
        if is_of_original or isinstance(value, (nn.Module, nn.Parameter)):
            raise Error(
                f"TA1401 {name}: this cannot be set on an optimized module. Set {name!r} on the"
                " original model, and call .refresh() on the optimized module"
            )
        # Parameters and modules, which nn.Module registers by type, are never set here.
        object.__setattr__(self, name, value)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns the parameters of the original model, which `parameters()` gives too."""
        return self._need_original("parameters").model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the buffers of the original model, which `buffers()` gives too."""
        return self._need_original("buffers").model.named_buffers(*args, **kwargs)

    # Python looks these up in the class. A model without them raises the usual TypeError.

    def __len__(self) -> int:
        return len(self._sized("len"))

    def __getitem__(self, key: Any) -> Any:
        return self._sized("[]")[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sized("iter"))

    def __bool__(self) -> bool:
        return self._original is None or bool(self._original.model)

    def _sized(self, what: str) -> Any:
        return self._need_original(what).model

    def train(self, mode: bool = True) -> Self:
        """Changes nothing and returns the module.

        It stays in inference mode, also inside a model that is trained.
        """
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the state dict of the original model, with its keys."""
        return self._need_original("state_dict").model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads into the original model and packs the new weights for the same plans."""
        result = self._need_original("load_state_dict").model.load_state_dict(*args, **kwargs)
        self.refresh_if_planned()
        return result

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads the weights of this module, when load_state_dict of a bigger model was called."""
        model = self._need_original("load_state_dict").model
        own = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        assign = local_metadata.get("assign_to_params_buffers", False)
        try:
            missing, unexpected = model.load_state_dict(own, strict=False, assign=assign)
        except RuntimeError as problem:
            error_msgs.append(str(problem))
            return
        missing_keys += [prefix + key for key in missing]
        unexpected_keys += [prefix + key for key in unexpected]
        self.refresh_if_planned()

    def _need_original(self, what: str) -> Original:
        if self._original is None:
            raise Error(
                f"TA1403 {what}: the original model, which has the weights, is not available after"
                " load or unpickling. Call this on the original model, then optimize it with"
                " plan=optimized.plan, which measures nothing"
            )
        return self._original

    def __prepare_scriptable__(self) -> nn.Module:
        """Returns a module that calls `.scripted`. torch.jit.script compiles it instead of this.

        Raises: torchalgo.Error if an argument of `.scripted` is no tensor.
        """
        scripted: Any = self.scripted
        graph = fx.Graph()
        arguments = scripted.forward.schema.arguments[1:]
        if any(argument.type.kind() != "TensorType" for argument in arguments):
            raise Error(
                "TA1402 torch.jit.script: got an optimized module, expected a plain one: use"
                " .scripted, which is TorchScript already"
            )
        inputs = tuple(graph.placeholder(argument.name) for argument in arguments)
        graph.output(graph.call_module("planned", inputs))
        module = fx.GraphModule({"planned": scripted}, graph)
        # A GraphModule has attributes of which TorchScript warns, so a plain module is returned.
        holder: nn.Module = type("Planned", (nn.Module,), {"forward": type(module).forward})()
        holder.add_module("planned", scripted)
        return holder

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        floating = {d for each in self._dtypes for d in each if d.is_floating_point}
        for dtype in floating or {torch.float32}:
            before = torch.empty(1, dtype=dtype, device=self._device)
            try:
                after = fn(before)
            except (RuntimeError, AssertionError) as problem:  # no such device here
                why = str(problem).splitlines()[0]
                raise Error(
                    f"TA1401 to: an optimized module stays on {self._device}, where its plan was"
                    f" measured. Move the original model and optimize it again ({why})"
                ) from None
            if after.dtype != before.dtype or after.device != before.device:
                change = (
                    f"from {before.dtype} on {before.device} to {after.dtype} on {after.device}"
                )
                raise Error(
                    f"TA1401 to: an optimized module cannot be moved {change}, because its plan was"
                    " measured for the first dtype and device. Convert the original model and"
                    " optimize it again"
                )
        return self
