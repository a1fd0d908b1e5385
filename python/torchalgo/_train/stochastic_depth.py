# SPDX-License-Identifier: BSD-3-Clause
"""Makes stochastic depth a product with numbers per channel, which regions know.

The random numbers do not depend on the images. So PyTorch draws them before the region runs, in the
order in which the model draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from torchalgo._train.known_ops import is_altered, is_class, sizes_of

IS_NOISE = "is_noise"  # the key in the meta of a call of draw_noise


def draw_noise(like: Tensor, channels: int, survival: float, scales: bool, per_row: bool) -> Tensor:
    """Returns [n, channels, 1, 1]: for each image 1, or 1 / survival, or 0 if its layer is skipped.

    Args:
        like: an input of the model with n images.
        survival: the probability of not being skipped.
        scales: 1 / survival instead of 1.
        per_row: each image has a number of its own; otherwise all have the same.
    """
    noise = like.new_empty((len(like) if per_row else 1, 1, 1, 1)).bernoulli_(survival)
    if scales and survival > 0.0:
        noise.div_(survival)
    return noise.expand(len(like), channels, 1, 1)


def is_drop_path(module: nn.Module) -> bool:
    """Returns whether this is timm's stochastic depth."""
    return is_class(module, "timm.layers.drop.DropPath")


def open_stochastic_depth(whole: fx.GraphModule) -> list[nn.Module]:
    """Replaces calls of stochastic depth in train mode by products with random numbers.

    Returns the modules that were replaced.
    """
    modules = dict(whole.named_modules(remove_duplicate=False))
    found: list[nn.Module] = []
    for node in list(whole.graph.nodes):
        depth = _depth_of(node, modules)
        shape = sizes_of(node.args[0]) if depth is not None else None
        if depth is None or shape is None or len(shape) != 4:
            continue
        if (like := _input_with(whole.graph, shape[0])) is None:
            continue
        if node.op == "call_module":
            found.append(modules[str(node.target)])
        product = node.args[0]
        if depth[0] < 1.0:
            with whole.graph.inserting_before(node):
                noise = whole.graph.call_function(draw_noise, (like, shape[1], *depth))
                product = whole.graph.call_function(torch.mul, (node.args[0], noise))
            noise.meta["layer"] = "random numbers of stochastic depth"
            noise.meta[IS_NOISE] = True
            product.meta["layer"] = str(node.target) if node.op == "call_module" else node.name
            for each, sizes in ((noise, (*shape[:2], 1, 1)), (product, shape)):
                each.meta["tensor_meta"] = node.meta["tensor_meta"]._replace(shape=sizes)
        node.replace_all_uses_with(product)
        whole.graph.erase_node(node)
    whole.recompile()
    return found


def _depth_of(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[float, bool, bool] | None:
    """Returns the last arguments of draw_noise, if the node is a call of stochastic depth."""
    if node.op == "call_module":
        module: Any = modules[str(node.target)]
        if not is_drop_path(module) or is_altered(module) or not module.training:
            return None
        if len(node.args) != 1:
            return None
        return 1.0 - module.drop_prob, module.scale_by_keep, True
    target: Any = node.target
    of = (getattr(target, "__module__", ""), getattr(target, "__name__", ""))
    if of != ("torchvision.ops.stochastic_depth", "stochastic_depth"):
        return None
    names = ("input", "p", "mode", "training")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    is_known = isinstance(given.get("p"), float | int) and given.get("mode") in ("row", "batch")
    if not node.args or not is_known or not given.get("training", True):
        return None
    return 1.0 - given["p"], True, given["mode"] == "row"


def _input_with(graph: fx.Graph, n: int) -> fx.Node | None:
    """Returns an input of the model whose first size is n."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return next((x for x in inputs if (sizes_of(x) or (None,))[0] == n), None)
