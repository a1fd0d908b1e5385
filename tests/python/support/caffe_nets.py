# SPDX-License-Identifier: BSD-3-Clause
"""Published networks as files of Caffe with random weights; smaller ones keep the structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchalgo._caffe.schema import messages

Array = Any


def weights_file(layers: dict[str, Sequence[Array]], is_v1: bool = False) -> bytes:
    """Returns a caffemodel. The old format has four sizes for each blob."""
    weights = messages()[1]()
    for name, blobs in layers.items():
        layer = (weights.layers if is_v1 else weights.layer).add(name=name.encode())
        for array in blobs:
            blob = layer.blobs.add(data=[np.asarray(array, np.float32).tobytes()])
            if is_v1:
                sizes = (1,) * (4 - np.ndim(array)) + np.shape(array)
                blob.num, blob.channels, blob.height, blob.width = sizes
            else:
                blob.shape.dim.extend(np.shape(array))
    return bytes(weights.SerializeToString())


class Net:
    """Writes a network layer by layer.

    Args:
        divisor: of the numbers of channels.
        style: how the input is written: "layer", "input_dim" or "input_shape".
    """

    def __init__(self, sizes: tuple[int, int, int], divisor: int, style: str = "layer") -> None:
        dims = [f"dim: {size}" for size in (1, *sizes)]
        self.text = [
            {
                "layer": 'layer { name: "data" type: "Input" top: "data" input_param'
                f" {{ shape {{ {' '.join(dims)} }} }} }}",
                "input_dim": f'input: "data" {" ".join(f"input_{dim}" for dim in dims)}',
                "input_shape": f'input: "data" input_shape {{ {" ".join(dims)} }}',
            }[style]
        ]
        self.divisor, self.is_v1 = divisor, False
        self.rng = np.random.default_rng(7)
        self.shapes: dict[str, tuple[int, ...]] = {"data": sizes}
        self.blobs: dict[str, list[Array]] = {}

    def layer(
        self, kind: str, name: str, bottoms: str | list[str], top: str, more: str = "",
        blobs: Sequence[Array] = (),
    ) -> str:  # fmt: skip
        given = [bottoms] if isinstance(bottoms, str) else bottoms
        reads = " ".join(f'bottom: "{each}"' for each in given)
        word, kind = ("layers", kind.upper()) if self.is_v1 else ("layer", f'"{kind}"')
        self.text.append(f'{word} {{ name: "{name}" type: {kind} {reads} top: "{top}" {more} }}')
        if blobs:
            self.blobs[name] = list(blobs)
        self.shapes.setdefault(top, self.shapes[given[0]])
        return top

    def normal(self, *sizes: int, scale: float = 0.1, mean: float = 0.0) -> Array:
        return self.rng.standard_normal(sizes) * scale + mean

    def conv(
        self, name: str, x: str, count: int, window: int, stride: int = 1, pad: int = 0,
        group: int = 1, has_bias: bool = True, relu: bool = True,
    ) -> str:  # fmt: skip
        c, h, w = self.shapes[x]
        k = count if count <= 16 else max(8, count // self.divisor)
        fan = c // group * window**2
        blobs = [self.normal(k, c // group, window, window, scale=(2 / fan) ** 0.5)]
        blobs += [self.normal(k)] if has_bias else []
        self.shapes[name] = (k, *((n + 2 * pad - window) // stride + 1 for n in (h, w)))
        self.layer(
            "Convolution", name, x, name,
            f"convolution_param {{ num_output: {k} kernel_size: {window} stride: {stride}"
            f" pad: {pad} group: {group} bias_term: {str(has_bias).lower()}"
            ' weight_filler { type: "msra" } }', blobs,
        )  # fmt: skip
        return self.relu(name) if relu else name

    def relu(self, x: str) -> str:
        return self.layer("ReLU", f"{x}/relu", x, x)

    def norm(self, x: str, relu: bool = True) -> str:
        c = self.shapes[x][0]
        # Residual branches are small, so that their sums keep their scale.
        factor, variance = (0.5 + self.rng.random(c) for _ in range(2))
        factor *= 1.0 if relu else 0.25
        statistics = [self.normal(c), variance, np.array([0.9])]
        self.layer("BatchNorm", f"{x}/bn", x, x, "batch_norm_param { eps: 1e-5 }", statistics)
        more = "scale_param { bias_term: true }"
        self.layer("Scale", f"{x}/scale", x, x, more, [factor, self.normal(c)])
        return self.relu(x) if relu else x

    def pool(
        self, name: str, x: str, window: int, stride: int, pad: int = 0, kind: str = "MAX"
    ) -> str:
        c, *sizes = self.shapes[x]
        counts = [-(-(n + 2 * pad - window) // stride) + 1 for n in sizes]
        clipped = [
            k - (pad > 0 and (k - 1) * stride >= n + pad)
            for k, n in zip(counts, sizes, strict=True)
        ]
        self.shapes[name] = (c, *clipped)
        more = f"pool: {kind} kernel_size: {window} stride: {stride} pad: {pad}"
        return self.layer("Pooling", name, x, name, f"pooling_param {{ {more} }}")

    def mean(self, name: str, x: str) -> str:
        self.shapes[name] = (self.shapes[x][0], 1, 1)
        more = "pooling_param { pool: AVE global_pooling: true }"
        return self.layer("Pooling", name, x, name, more)

    def fc(self, name: str, x: str, count: int, relu: bool = False) -> str:
        length, k = int(np.prod(self.shapes[x])), max(10, count // self.divisor)
        blobs = [self.normal(k, length, scale=length**-0.5), self.normal(k)]
        self.shapes[name] = (k,)
        kind = "Inner_Product" if self.is_v1 else "InnerProduct"
        self.layer(kind, name, x, name, f"inner_product_param {{ num_output: {k} }}", blobs)
        return self.relu(name) if relu else name

    def lrn(self, x: str, name: str, more: str = "alpha: 0.0001") -> str:
        return self.layer("LRN", name, x, name, f"lrn_param {{ local_size: 5 beta: 0.75 {more} }}")

    def concat(self, name: str, xs: list[str]) -> str:
        self.shapes[name] = (sum(self.shapes[x][0] for x in xs), *self.shapes[xs[0]][1:])
        return self.layer("Concat", name, xs, name)

    def end(self, x: str) -> Net:
        self.layer("Dropout", "drop", x, x, "dropout_param { dropout_ratio: 0.5 }")
        self.layer("Softmax", "prob", x, "prob")
        return self

    def write(self, folder: Path, name: str = "net") -> tuple[Path, Path]:
        """Writes the text and the weights, and returns both paths."""
        paths = folder / f"{name}.prototxt", folder / f"{name}.caffemodel"
        paths[0].write_text("\n".join(self.text) + "\n")
        paths[1].write_bytes(weights_file(self.blobs, self.is_v1))
        return paths


def lenet(divisor: int, size: int) -> Net:
    net = Net((1, 28, 28), divisor, "input_dim")
    x = net.pool("pool1", net.conv("conv1", "data", 20, 5, relu=False), 2, 2)
    x = net.pool("pool2", net.conv("conv2", x, 50, 5, relu=False), 2, 2)
    return net.end(net.fc("ip2", net.fc("ip1", x, 500, relu=True), 10))


def alexnet(divisor: int, size: int) -> Net:
    net = Net((3, size + 3, size + 3), divisor)
    x = net.pool("pool1", net.lrn(net.conv("conv1", "data", 96, 11, 4), "norm1"), 3, 2)
    x = net.pool("pool2", net.lrn(net.conv("conv2", x, 256, 5, pad=2, group=2), "norm2"), 3, 2)
    x = net.conv("conv4", net.conv("conv3", x, 384, 3, pad=1), 384, 3, pad=1, group=2)
    x = net.pool("pool5", net.conv("conv5", x, 256, 3, pad=1, group=2), 3, 2)
    return net.end(net.fc("fc8", net.fc("fc7", net.fc("fc6", x, 4096, True), 4096, True), 1000))


INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip


def googlenet(divisor: int, size: int) -> Net:
    net = Net((3, size, size), divisor, "input_shape")
    x = net.pool("pool1/3x3_s2", net.conv("conv1/7x7_s2", "data", 64, 7, 2, 3), 3, 2)
    x = net.conv("conv2/3x3_reduce", net.lrn(x, "pool1/norm1"), 64, 1)
    x = net.lrn(net.conv("conv2/3x3", x, 192, 3, pad=1), "conv2/norm2")
    x = net.pool("pool2/3x3_s2", x, 3, 2)
    for name, (a, b, c, d, e, f) in INCEPTIONS.items():
        p = f"inception_{name}"
        parts = [net.conv(f"{p}/1x1", x, a, 1)]
        parts.append(net.conv(f"{p}/3x3", net.conv(f"{p}/3x3_reduce", x, b, 1), c, 3, pad=1))
        parts.append(net.conv(f"{p}/5x5", net.conv(f"{p}/5x5_reduce", x, d, 1), e, 5, pad=2))
        parts.append(net.conv(f"{p}/pool_proj", net.pool(f"{p}/pool", x, 3, 1, 1), f, 1))
        x = net.concat(f"{p}/output", parts)
        if name in ("3b", "4e"):
            x = net.pool(f"pool{name[0]}/3x3_s2", x, 3, 2)
    x = net.pool("pool5/7x7_s1", x, net.shapes[x][1], 1, kind="AVE")
    return net.end(net.fc("loss3/classifier", x, 1000))


def _resnet(counts: Sequence[int], is_deep: bool, divisor: int, size: int) -> Net:
    net = Net((3, size, size), divisor)

    def unit(name: str, x: str, count: int, window: int, stride: int = 1, relu: bool = True) -> str:
        y = net.conv(name, x, count, window, stride, window // 2, has_bias=False, relu=False)
        return net.norm(y, relu)

    x = net.pool("pool1", unit("conv1", "data", 64, 7, 2), 3, 2)
    for stage, count in enumerate(counts):
        width = 64 << stage
        for i in range(count):
            p, stride = f"res{stage + 2}{'abcdef'[i]}", 2 if stage and i == 0 else 1
            if is_deep:
                y = unit(f"{p}_branch2a", x, width, 1, stride)
                y = unit(f"{p}_branch2b", y, width, 3)
                y = unit(f"{p}_branch2c", y, 4 * width, 1, relu=False)
            else:
                y = unit(f"{p}_branch2a", x, width, 3, stride)
                y = unit(f"{p}_branch2b", y, width, 3, relu=False)
            if net.shapes[x] != net.shapes[y]:
                x = unit(f"{p}_branch1", x, 4 * width if is_deep else width, 1, stride, relu=False)
            x = net.relu(net.layer("Eltwise", p, [x, y], p, "eltwise_param { operation: SUM }"))
    return net.end(net.fc("fc1000", net.pool("pool5", x, net.shapes[x][1], 1, kind="AVE"), 1000))


def resnet18(divisor: int, size: int) -> Net:
    return _resnet((2, 2, 2, 2), False, divisor, size)


def resnet50(divisor: int, size: int) -> Net:
    return _resnet((3, 4, 6, 3), True, divisor, size)


def mobilenet(divisor: int, size: int) -> Net:
    net = Net((3, size, size), divisor)
    x = net.norm(net.conv("conv1", "data", 32, 3, 2, 1, has_bias=False, relu=False))
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for i, (count, stride) in enumerate([*blocks, (1024, 2), (1024, 1)]):
        c = net.shapes[x][0]
        text = "num_output: {} kernel_size: 3 stride: {} pad: 1 group: {} bias_term: false"
        name, (h, w) = f"conv{i + 2}/dw", net.shapes[x][1:]
        net.shapes[name] = (c, (h - 1) // stride + 1, (w - 1) // stride + 1)
        net.layer(
            "Convolution", name, x, name, f"convolution_param {{ {text.format(c, stride, c)} }}",
            [net.normal(c, 1, 3, 3, scale=0.5)],
        )  # fmt: skip
        y = net.conv(f"conv{i + 2}/sep", net.norm(name), count, 1, has_bias=False, relu=False)
        x = net.norm(y)
    return net.end(net.conv("fc7", net.mean("pool6", x), 1000, 1, relu=False))


def squeezenet(divisor: int, size: int) -> Net:
    net = Net((3, size + 3, size + 3), divisor)
    x = net.pool("pool1", net.conv("conv1", "data", 64, 3, 2), 3, 2)
    fires = [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)]
    for i, (squeeze, expand) in enumerate(fires):
        p = f"fire{i + 2}"
        y = net.conv(f"{p}/squeeze1x1", x, squeeze, 1)
        parts = [net.conv(f"{p}/expand{r}x{r}", y, expand, r, pad=r // 2) for r in (1, 3)]
        x = net.concat(f"{p}/concat", parts)
        if i in (1, 3):
            x = net.pool(f"pool{i + 2}", x, 3, 2)
    return net.end(net.mean("pool10", net.conv("conv10", x, 1000, 1)))


def cifar10_full(divisor: int, size: int) -> Net:
    """Returns a network of V1 layers, with both poolings and both norms."""
    net = Net((3, 32, 32), divisor, "input_dim")
    net.is_v1 = True
    x = net.relu(net.pool("pool1", net.conv("conv1", "data", 32, 5, pad=2, relu=False), 3, 2))
    within = "alpha: 5e-5 norm_region: WITHIN_CHANNEL"
    x = net.conv("conv2", net.lrn(x, "norm1", within), 32, 5, pad=2)
    x = net.lrn(net.pool("pool2", x, 3, 2, kind="AVE"), "norm2")
    x = net.pool("pool3", net.conv("conv3", x, 64, 5, pad=2), 3, 2, kind="AVE")
    return net.end(net.fc("ip1", x, 10))


NETWORKS: dict[str, Callable[[int, int], Net]] = {
    "lenet": lenet, "alexnet": alexnet, "googlenet": googlenet, "squeezenet": squeezenet,
    "mobilenet": mobilenet, "resnet18": resnet18, "resnet50": resnet50,
    "cifar10_full": cifar10_full,
}  # fmt: skip
