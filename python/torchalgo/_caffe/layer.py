# SPDX-License-Identifier: BSD-3-Clause
"""One layer of a network, as the functions that read it see it: bottoms, parameters and weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchalgo._caffe.schema import type_of
from torchalgo._onnx_ops.names import checked_path, notes_of
from torchalgo._onnx_ops.network import Input, Node, identifier
from torchalgo._onnx_ops.refusal import DamagedError, DataError, TooLargeError
from torchalgo._onnx_ops.to_fx import read_node
from torchalgo._onnx_ops.values import Builder, Constant, Value, dims_of

OPSET = 20  # of the nodes that are made
MOST_RANDOM_BYTES = 1 << 30
SEED = 0
Norm = tuple[str, list[str], float]  # source, mean and variance, epsilon


class Nodes:
    """Collects the nodes and the weights of a network.

    Each node also runs on tensors without data, so the sizes of all values are known.

    Args:
        stored: the blobs of a file of weights, by layer; None if all weights are random.
    """

    def __init__(self, stored: Mapping[str, Sequence[Any]] | None) -> None:
        self.stored = stored
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.norms: dict[str, Norm] = {}
        self.shared: dict[str, torch.Tensor] = {}  # by the names of `param`
        self.paths: set[str] = set()
        self.builder = Builder(1)
        self.values: dict[str, Value] = {}
        self._random = torch.Generator().manual_seed(SEED)
        self._random_bytes = 0

    def input(self, blob: str, sizes: Sequence[int]) -> str:
        """Adds an input of the network, and returns the name of its value."""
        if not 1 <= len(sizes) <= 16 or not all(1 <= size <= 1 << 31 for size in sizes):
            raise DamagedError(f"the input has the sizes {list(sizes)[:16]}, expected 1 or more")
        name = identifier(blob)
        while name in self.values:
            name += "_"
        self.inputs.append(Input(name, torch.float32, list(sizes)))
        self.values[name] = self.builder.input(name, [list(sizes)], torch.float32)
        return name

    def random(self, role: str, sizes: Sequence[int]) -> torch.Tensor:
        """Returns weights that keep the scale of a layer's input."""
        count = math.prod(sizes)
        self._random_bytes += 4 * count
        if self._random_bytes > MOST_RANDOM_BYTES:
            raise TooLargeError(f"its random weights have the sizes {list(sizes)}")
        if role in ("factor", "slope"):
            return torch.full(sizes, 1.0 if role == "factor" else 0.25, dtype=torch.float32)
        normal = torch.empty(sizes, dtype=torch.float32).normal_(generator=self._random)
        if len(sizes) > 1:
            return normal * math.sqrt(2 / math.prod(sizes[1:]))
        return normal * 0.1 + (1.0 if role in ("weight", "running_var") else 0.0)


class Layer:
    """A layer, and what makes its nodes.

    Args:
        sources: the names of the values of its bottoms.
        position: its number in the network.
    """

    def __init__(self, nodes: Nodes, proto: Any, sources: Sequence[str], position: int) -> None:
        self.name, self.type, self.tops = proto.name, type_of(proto), list(proto.top)
        self.sources = list(sources)
        self._nodes, self._proto = nodes, proto
        steps = re.sub(r"[^\w./-]", "_", proto.name, flags=re.ASCII).replace("/", ".")
        path = checked_path(steps) or f"layer_{position}"
        while path in nodes.paths:
            path += f"_{position}"
        nodes.paths.add(path)
        self._path = path

    def source(self, i: int = 0) -> str:
        return self.sources[i]

    def dims(self, i: int = 0) -> list[int]:
        """Returns the sizes of a bottom."""
        dims = dims_of(self._nodes.values[self.sources[i]])  # type: ignore[arg-type]
        return [size for size in dims if size is not None]

    def parameters(self, name: str) -> Any:
        return getattr(self._proto, name)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node, and returns the name of its result."""
        return self.emit_many(1, op, *inputs, **attributes)[0]

    def emit_many(self, count: int, op: str, *inputs: str, **attributes: Any) -> list[str]:
        nodes = self._nodes
        outputs = [f"{self._path}:{len(nodes.nodes)}.{i}" for i in range(count)]
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        node = Node(self.name, op, inputs, outputs, values, notes_of(self._path))
        results = read_node(node, nodes.values, OPSET, nodes.builder)
        nodes.values |= dict(zip(outputs, results, strict=True))
        nodes.nodes.append(node)
        return outputs

    def constant(self, role: str, tensor: torch.Tensor) -> str:
        """Adds a weight or a number, and returns its name. Layers that share a tensor share it."""
        nodes, name = self._nodes, f"{self._path}.{role}"
        if any(tensor is each for each in nodes.shared.values()):
            known = next((n for n, other in nodes.weights.items() if other is tensor), None)
            if known is not None:
                return known
        while name in nodes.weights:
            name += "_"
        nodes.weights[name] = tensor
        nodes.values[name] = Constant(tensor, name)
        return name

    def weights(self, **shapes: Sequence[int]) -> list[str]:
        """Returns the names of the layer's weights, as the file has them."""
        tensors = self.blobs(**shapes)
        return [self.constant(role, each) for role, each in zip(shapes, tensors, strict=True)]

    def blobs(self, **shapes: Sequence[int]) -> list[torch.Tensor]:
        """Returns the layer's weights with these sizes, which are those of the file or random."""
        nodes = self._nodes
        names = [each if isinstance(each, str) else each.name for each in self._proto.param]
        names += [""] * (len(shapes) - len(names))
        stored = None if nodes.stored is None else nodes.stored.get(self.name, ())
        is_shared = not stored and all(name in nodes.shared for name in names[: len(shapes)])
        if stored is not None and len(stored) != len(shapes) and not is_shared:
            raise DataError(f"the file has {len(stored)} weights for it, not {len(shapes)}")
        found = []
        for i, (role, sizes) in enumerate(shapes.items()):
            tensor = nodes.shared.get(names[i]) if names[i] else None
            if tensor is None and stored is None:
                tensor = nodes.random(role, sizes)
            elif tensor is None:
                tensor = stored_tensor(stored[i], sizes, role)  # type: ignore[index]
            if list(tensor.shape) != list(sizes):
                raise DamagedError(f"it shares weights of {list(tensor.shape)}, not {sizes}")
            if names[i]:
                nodes.shared[names[i]] = tensor
            found.append(tensor)
        return found

    def unit(self, sizes: Sequence[int]) -> list[str]:
        """Returns the names of weights that change nothing, and of biases of 0."""
        ones = torch.ones(sizes, dtype=torch.float32)
        return [self.constant("weight", ones), self.constant("bias", torch.zeros_like(ones))]

    def normalize(
        self, source: str, weights: Sequence[str], norm: Sequence[str], epsilon: float
    ) -> str:
        names = *weights, *norm
        result = self.emit("BatchNormalization", source, *names, epsilon=float(epsilon))
        self._nodes.norms[result] = source, list(norm), float(epsilon)
        return result

    def norm_before(self) -> Norm | None:
        """Returns the batch norm that makes the first bottom."""
        return self._nodes.norms.get(self.sources[0])


def stored_tensor(blob: Any, sizes: Sequence[int], role: str) -> torch.Tensor:
    """Returns a blob of a file of weights. Old files write sizes with leading ones."""
    old = [blob.num, blob.channels, blob.height, blob.width]
    dims = list(blob.shape.dim) if blob.HasField("shape") else old
    if _without_ones(dims) != _without_ones(sizes):
        raise DataError(f"its {role} has the sizes {dims[:16]} in the file, not {list(sizes)}")
    dtype = torch.float32 if blob.data else torch.float64
    data = bytearray().join(blob.data or blob.double_data)
    if len(data) != math.prod(sizes) * dtype.itemsize:
        raise DataError(f"its {role} has {len(data)} bytes in the file, too few or too many")
    return torch.frombuffer(data, dtype=dtype).to(torch.float32).reshape(list(sizes))


def _without_ones(sizes: Sequence[int]) -> list[int]:
    first = next((i for i, size in enumerate(sizes) if size != 1), len(sizes))
    return list(sizes[first:])
