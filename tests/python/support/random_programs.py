# SPDX-License-Identifier: BSD-3-Clause
"""Random programs as `forward`: broadcasts, constants, in-place ops, views, lists, reductions.

Each statement keeps the batch in dimension 0, so a program accepts other batch sizes. Values stay
small and divisors stay away from 0, so that f32 and f64 agree.
"""

from __future__ import annotations

import dataclasses
import linecache
import random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

BATCH = 2
INPUT = (BATCH, 8, 6, 8)
LARGEST = 4.0  # above this bound of its values, a result goes through tanh
MOST_ELEMENTS = 12_000

UNARY = (
    "torch.relu({})", "{}.sigmoid()", "torch.tanh({})", "F.hardswish({})", "F.silu({})",
    "F.leaky_relu({}, 0.1)", "F.gelu({})", "{}.clamp(-0.5, 0.75)", "F.relu6({})", "{}.abs()",
    "-{}", "({}.abs() + 0.25).sqrt()", "{}.pow(2)", "F.elu({})", "F.hardsigmoid({})",
    "F.softplus({})", "torch.exp(-{}.abs())",
)  # fmt: skip
UNARY_IN_PLACE = (
    "{}.relu_()", "{}.sigmoid_()", "{}.tanh_()", "{}.mul_(0.5)", "{}.clamp_(min=-0.5)",
    "F.relu({}, inplace=True)", "F.hardswish({}, inplace=True)", "F.silu({}, inplace=True)",
    "F.leaky_relu_({}, 0.2)", "{}.neg_()", "F.relu6({}, inplace=True)", "{}.zero_()",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor of the program: its sizes, a bound of its values, whose memory it may share."""

    name: str
    sizes: tuple[int, ...]
    bound: float
    root: str


class RandomProgram(nn.Module):
    """A module with the parameters, buffers and layers that its `forward` reads."""

    source = ""


class Writer:
    """Writes one program, statement by statement."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        torch.manual_seed(seed)
        self.module = RandomProgram()
        self.lines: list[str] = []
        self.made = [Made("x", INPUT, 1.0, "x")]
        self.lists: list[tuple[str, list[Made]]] = []
        self.parts: set[str] = set()  # chunks: TorchScript drops some changes of them
        self.names = 0

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def any_of(self, rank: int | None = None) -> Made:
        found = [t for t in self.made if rank is None or len(t.sizes) == rank]
        return self.pick.choice(found[-6:] if self.pick.random() < 0.7 else found)

    def like(self, sizes: tuple[int, ...]) -> Made:
        return self.pick.choice([t for t in self.made if t.sizes == sizes])

    def writable(self) -> Made:
        found = [t for t in self.made if t.root not in self.parts and t.name != "x"]
        if self.pick.random() < 0.05 or not found:
            return self.made[0]
        return self.pick.choice(found[-8:])

    def emit(self, line: str) -> None:
        self.lines.append(f"    {line}")

    def add(
        self, expression: str, sizes: tuple[int, ...], bound: float, root: str | None = None
    ) -> Made:
        """Writes `name = expression`. Without a root, the result has memory of its own."""
        if bound > LARGEST:
            expression, bound, root = f"torch.tanh({expression})", 1.0, None
        name = self.fresh("t")
        self.emit(f"{name} = {expression}")
        result = Made(name, sizes, bound, root or name)
        self.made.append(result)
        return result

    def rebound(self, tensor: Made, bound: float) -> None:
        """Records the bound of `tensor`, and of all that share its memory, after a change."""
        if bound > LARGEST:
            self.emit(f"{tensor.name}.tanh_()")
            bound = 1.0
        self.made = [
            dataclasses.replace(t, bound=max(t.bound, bound)) if t.root == tensor.root else t
            for t in self.made
        ]

    def layer(self, layer: nn.Module) -> str:
        name = self.fresh("layer")
        self.module.add_module(name, layer)
        return f"self.{name}"

    def constant(self, sizes: tuple[int, ...], positive: bool) -> str:
        """Returns a parameter, a buffer, or a tensor that forward makes, of these sizes."""
        values = torch.rand(sizes) + 0.5 if positive else torch.rand(sizes) * 2 - 1
        kind = self.pick.choice(("parameter", "parameter", "buffer", "made"))
        if kind == "made" and len(sizes) <= 1 and values.numel() <= 20:
            numbers = [round(value, 3) for value in values.flatten().tolist()]
            return f"torch.tensor({numbers if sizes else numbers[0]}, dtype=x.dtype)"
        name = self.fresh("constant")
        if kind == "buffer":
            self.module.register_buffer(name, values)
        else:
            self.module.register_parameter(name, nn.Parameter(values))
        return f"self.{name}"

    def operand(self, target: Made, positive: bool) -> tuple[str, float]:
        """Returns something that can be broadcast to `target`, and a bound of its values."""
        sizes = target.sizes
        kind = self.pick.choice(("number", "number", "constant", "constant", "constant", "tensor"))
        kind = self.pick.choice((kind, kind, "same", "reduced", "reduced", "gate"))
        if kind == "number":
            number = self.pick.choice((2, 3, 0.5, 0.75, 1.25, 1))
            return str(number), float(number)
        if kind in ("tensor", "same", "reduced"):
            other = self.like(sizes)
            text, bound = other.name, other.bound
            if kind == "reduced" and len(sizes) >= 3:
                dims = self.pick.choice(((1,), (2,), (-1,), tuple(range(2, len(sizes))), (1, 2)))
                how = self.pick.choice(("mean", "amax", "sum"))
                text = f"{text}.{how}({dims}, keepdim=True)"
                if how == "sum":
                    text, bound = f"torch.tanh({text})", 1.0
            elif other.root == target.root:
                text, bound = f"torch.tanh({text})", 1.0  # a partial overlap is not defined
            return (f"({text}.abs() + 0.5)", bound + 0.5) if positive else (text, bound)
        if kind == "gate" and len(sizes) == 4:
            other = self.like(sizes)
            c = sizes[1]
            pool = f"{self.layer(nn.Linear(c, c))}({other.name}.mean((2, 3)))"
            shape = self.pick.choice((f"view(-1, {c}, 1, 1)", "unsqueeze(-1).unsqueeze(-1)"))
            expand = self.pick.choice(("", f".expand_as({other.name})"))
            return f"(torch.sigmoid({pool}).{shape}{expand} + 0.25)", 1.25
        rank = self.pick.randint(0, len(sizes))
        shape = tuple(
            size if self.pick.random() < 0.5 else 1 for size in sizes[len(sizes) - rank :]
        )
        if rank == len(sizes):
            shape = (1, *shape[1:])  # a constant has no batch
        return self.constant(shape, positive), 1.5


class Statements(Writer):
    """One method for each kind of statement."""

    def binary(self) -> None:
        a = self.any_of()
        op = self.pick.choice(("+", "+", "-", "*", "*", "/", "rsub", "alpha", "/ left"))
        b, bound = self.operand(a, positive=op == "/")
        sums = a.bound + bound
        if op == "rsub":
            self.add(f"torch.rsub({a.name}, {b})", a.sizes, sums)
        elif op == "alpha":
            self.add(f"torch.add({a.name}, {b}, alpha=0.5)", a.sizes, sums)
        elif op == "/ left":
            self.add(f"{b} / ({a.name}.abs() + 1)", a.sizes, bound)
        elif op == "/":
            self.add(f"{a.name} / {b}", a.sizes, 2 * a.bound)
        else:
            left, right = (a.name, b) if self.pick.random() < 0.5 else (b, a.name)
            self.add(f"{left} {op} {right}", a.sizes, sums if op != "*" else a.bound * bound)

    def binary_in_place(self) -> None:
        a = self.writable()
        op = self.pick.choice(("+=", "+=", "-=", "*=", "/=", "add_", "sub_", "mul_", "div_"))
        b, bound = self.operand(a, positive=op in ("/=", "div_"))
        text = f"{a.name}.{op}({b})" if op.endswith("_") else f"{a.name} {op} {b}"
        if op == "add_" and self.pick.random() < 0.5:
            text = f"{a.name}.add_({b}, alpha=0.5)"
        self.emit(text)
        product = {"*=": bound, "mul_": bound, "/=": 2.0, "div_": 2.0}
        self.rebound(a, a.bound * product[op] if op in product else a.bound + bound)

    def unary(self) -> None:
        a = self.any_of()
        self.add(self.pick.choice(UNARY).format(a.name), a.sizes, max(1.0, a.bound, a.bound**2))

    def unary_in_place(self) -> None:
        a = self.writable()
        text = self.pick.choice(UNARY_IN_PLACE).format(a.name)
        if self.pick.random() < 0.5:
            self.emit(text)
        else:
            self.add(text, a.sizes, a.bound, a.root)
        self.rebound(a, max(1.0, a.bound))

    def conv(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        k = self.pick.choice((c, 8, 8, 12))
        kernel = self.pick.choice((1, 3, 3))
        groups = c if k == c and self.pick.random() < 0.25 else 1
        stride = 2 if min(h, w) >= 6 and self.pick.random() < 0.2 else 1
        conv = nn.Conv2d(
            c, k, kernel, stride, kernel // 2, groups=groups, bias=self.pick.random() < 0.7
        )
        text = f"{self.layer(conv)}({a.name})"
        if self.pick.random() < 0.3:
            norm = nn.BatchNorm2d(k)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            text = f"{self.layer(norm)}({text})"
        sizes = (BATCH, k, (h - 1) // stride + 1, (w - 1) // stride + 1)
        self.add(text, sizes, 1.5 * a.bound)

    def conv_of_lines(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        how, length = self.pick.choice((("flatten(2)", h * w), ("mean(2)", w), ("amax(3)", h)))
        conv = nn.Conv1d(c, 8, 3, padding=1)
        sizes = (BATCH, 8, length)
        self.add(f"{self.layer(conv)}({a.name}.{how})", sizes, 1.5 * a.bound)

    def linear(self) -> None:
        a = self.any_of()
        if self.pick.random() < 0.6:
            layer = nn.Linear(a.sizes[-1], 8)
            self.add(f"{self.layer(layer)}({a.name})", (*a.sizes[:-1], 8), 1.5 * a.bound)
        else:
            norm = nn.LayerNorm(a.sizes[-1], eps=0.01)
            self.add(f"{self.layer(norm)}({a.name})", a.sizes, 3.0)

    def view(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        cut = self.pick.randint(1, c - 1) if c > 1 else 0
        choices = [
            (f"{a.name}[..., ::2, ::2]", (BATCH, c, (h + 1) // 2, (w + 1) // 2)),
            (f"{a.name}[:, :, : {(h + 1) // 2}]", (BATCH, c, (h + 1) // 2, w)),
            (f"{a.name}.permute(0, 2, 3, 1)", (BATCH, h, w, c)),
            (f"{a.name}.transpose(1, 3)", (BATCH, w, h, c)),
            (f"{a.name}.transpose(-2, -1)", (BATCH, c, w, h)),
            (f"{a.name}.flatten(2)", (BATCH, c, h * w)),
            (f"{a.name}[:, 0].unsqueeze(1)", (BATCH, 1, h, w)),
            (f"{a.name}.reshape({a.name}.size(0), {c}, -1)", (BATCH, c, h * w)),
        ]
        if cut:
            choices += [
                (f"{a.name}[:, :{cut}]", (BATCH, cut, h, w)),
                (f"{a.name}[:, {cut}:]", (BATCH, c - cut, h, w)),
                (f"{a.name}.narrow(1, 0, {cut})", (BATCH, cut, h, w)),
            ]
        text, sizes = self.pick.choice(choices)
        self.add(text, sizes, a.bound, a.root)

    def chunk(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        if c % 2:
            return
        names = self.fresh("t"), self.fresh("t")
        how = self.pick.choice(("{}.chunk(2, dim=1)", f"torch.split({{}}, {c // 2}, 1)"))
        self.emit(f"{names[0]}, {names[1]} = {how.format(a.name)}")
        self.made += [Made(name, (BATCH, c // 2, h, w), a.bound, a.root) for name in names]
        self.parts.add(a.root)

    def reshape(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        groups = 2 if c % 2 == 0 else 1
        n = f"{a.name}.shape[0]"
        text, root = self.pick.choice(
            (
                (
                    f"{a.name}.reshape({n}, {groups}, {c // groups}, {h}, {w}).transpose(1, 2)"
                    f".contiguous().view({n}, -1, {h}, {w})",
                    None,
                ),
                (f"{a.name}.reshape({n}, -1).view({n}, {c}, {h}, {w})", a.root),
                (f"torch.softmax({a.name}.flatten(2), dim=-1).view({n}, {c}, {h}, {w})", None),
                (f"{a.name}.flatten(1).reshape({a.name}.size())", a.root),
                (f"{a.name}.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)", None),
                (f"{a.name}.squeeze().view_as({a.name}).clone()", None),
            )
        )
        self.add(text, a.sizes, a.bound, root)

    def reduce(self) -> None:
        a = self.any_of()
        rank = len(a.sizes)
        if rank < 3:
            return
        dims = self.pick.choice([(1,), (-1,), (rank - 2, rank - 1), tuple(range(2, rank))])
        dims = tuple(sorted({dim % rank for dim in dims} - {0}))
        keep = self.pick.random() < 0.5
        how = self.pick.choice(("mean", "mean", "amax", "sum"))
        sizes = tuple(
            1 if dim in dims else size
            for dim, size in enumerate(a.sizes)
            if keep or dim not in dims
        )
        if len(sizes) < 2:
            return  # the last dimension would be the batch
        text = f"{a.name}.{how}({dims}, keepdim={keep})"
        self.add(text, sizes, a.bound if how != "sum" else 100.0)

    def resize(self) -> None:
        a = self.any_of(4)
        c, h, w = a.sizes[1:]
        other = self.any_of(4)
        half, pooled = (BATCH, c, h // 2, w // 2), (BATCH, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
        double = (BATCH, c, 2 * h, 2 * w)
        aligned = self.pick.choice((True, False))
        bilinear = f'mode="bilinear", align_corners={aligned}'
        size = f"size={other.name}.shape[-2:]"
        choices: list[tuple[str, tuple[int, ...]]] = [
            (f"F.interpolate({a.name}, {size}, {bilinear})", (BATCH, c, *other.sizes[2:])),
            (f"F.interpolate({a.name}, {size})", (BATCH, c, *other.sizes[2:])),
            (f"F.max_pool2d({a.name}, 3, 2, 1)", pooled),
            (f"F.adaptive_avg_pool2d({a.name}, 1)", (BATCH, c, 1, 1)),
            (f"F.adaptive_avg_pool2d({a.name}, (3, 2))", (BATCH, c, 3, 2)),
        ]
        if min(h, w) >= 2:
            choices += [
                (f"F.avg_pool2d({a.name}, 2)", half), (f"F.max_pool2d({a.name}, 2, 2)", half),
                (f'F.pad({a.name}, (1, 0, 1, 1), mode="reflect")', (BATCH, c, h + 2, w + 1)),
            ]  # fmt: skip
        choices += [
            (f"F.pad({a.name}, (1, 2, 0, 1))", (BATCH, c, h + 1, w + 3)),
            (f"F.pad({a.name}, (0, 1), value=0.5)", (BATCH, c, h, w + 1)),
            (f'F.pad({a.name}, (1, 1, 1, 0), mode="replicate")', (BATCH, c, h + 1, w + 2)),
            (f"F.interpolate({a.name}, scale_factor=2.0, {bilinear})", double),
            (f'F.interpolate({a.name}, scale_factor=2.0, mode="nearest")', double),
        ]
        if c % 4 == 0:
            choices += [(f"F.pixel_shuffle({a.name}, 2)", (BATCH, c // 4, 2 * h, 2 * w))] * 3
        if h % 2 == 0 and w % 2 == 0:
            choices += [(f"F.pixel_unshuffle({a.name}, 2)", (BATCH, 4 * c, h // 2, w // 2))] * 2
        text, sizes = self.pick.choice(choices)
        if torch.Size(sizes).numel() <= MOST_ELEMENTS:
            self.add(text, sizes, max(1.0, a.bound))

    def new_list(self) -> None:
        first = self.any_of(4)
        items = [first] + [self.like(first.sizes) for _ in range(self.pick.randint(1, 2))]
        name = self.fresh("list")
        if self.pick.random() < 0.5:
            self.emit(f"{name} = [{', '.join(item.name for item in items)}]")
        else:
            self.emit(f"{name} = [{items[0].name}]")
            for item in items[1:]:
                self.emit(f"{name}.append({item.name})")
        self.lists.append((name, items))

    def join(self) -> None:
        if not self.lists:
            self.new_list()
        name, items = self.pick.choice(self.lists)
        n, c, h, w = items[0].sizes
        count, bound = len(items), LARGEST  # the items may have changed since
        kind = self.pick.choice(("cat", "cat", "cut", "stack", "softmax", "max", "mean"))
        if kind == "cat":
            if count * c * h * w * n <= MOST_ELEMENTS:
                self.add(f"torch.cat({name}, 1)", (n, count * c, h, w), bound)
        elif kind == "cut":
            cat = f"torch.cat({name}, dim=1)[:, :{c}]"
            self.add(cat, (n, c, h, w), bound)
        elif kind == "softmax":
            stack = self.fresh("t")
            self.emit(f"{stack} = torch.stack({name}, dim=1)")
            weights = f"torch.softmax({stack}.mean((3, 4), keepdim=True), dim=1)"
            self.add(f"({stack} * {weights}).sum(dim=1)", (n, c, h, w), bound)
        else:
            how = {"stack": "sum", "max": "amax", "mean": "mean"}[kind]
            dim = self.pick.choice((0, 1))
            bound = bound * count if kind == "stack" else bound
            self.add(f"torch.stack({name}, {dim}).{how}({dim})", (n, c, h, w), bound)

    def fill(self) -> None:
        """Writes a part of a new tensor, as volumes and shifts are built."""
        a = self.any_of(4)
        b = self.like(a.sizes)
        new = self.add(f"torch.zeros_like({a.name})", a.sizes, 1.0)
        cut = self.pick.randint(0, a.sizes[-1] - 1)
        self.emit(f"{new.name}[..., {cut}:] = {b.name}[..., : {a.sizes[-1] - cut}]")
        self.rebound(new, b.bound)


KINDS = (
    "binary", "binary", "binary", "binary_in_place", "binary_in_place", "unary",
    "unary_in_place", "conv", "conv", "conv", "linear", "view", "chunk", "reshape", "reduce",
    "resize", "resize", "new_list", "join", "join", "fill", "conv_of_lines",
)  # fmt: skip


def random_program(seed: int) -> RandomProgram:
    """Returns the program of a seed in eval mode. `source` is the text of its forward."""
    writer = Statements(seed)
    writer.add(f"{writer.layer(nn.Conv2d(8, 8, 3, padding=1))}(x)", INPUT, 1.0)
    for _ in range(writer.pick.randint(6, 20)):
        getattr(writer, writer.pick.choice(KINDS))()
    made = writer.made[1:]
    results = {made[-1].name, *(t.name for t in writer.pick.sample(made, min(2, len(made))))}
    writer.emit(f"return ({', '.join(sorted(results))},)")
    module = writer.module
    source = "\n".join(["def forward(self, x):", *writer.lines]) + "\n"
    module.source = source  # type: ignore[assignment]
    name = f"<random program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # for torch.jit
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, name, "exec"), names)
    # TorchScript compiles `forward` once for each class.
    module.__class__ = type(f"RandomProgram{seed}", (RandomProgram,), names | {"source": source})
    return module.eval()


def random_batch(seed: int, count: int = BATCH) -> Tensor:
    """Returns an input of `count` images."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, *INPUT[1:]), generator=generator) * 2 - 1
