# SPDX-License-Identifier: BSD-3-Clause
"""Small networks with tokens [n, t, c]: attention, norms and linear layers over the last dimension.

Each takes an image [n, 8, h, w] with even h and w.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WIDTH = 16


class Attention(nn.Module):
    def __init__(self, c: int = WIDTH, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Mlp(nn.Sequential):
    def __init__(self, c: int = WIDTH, act: type[nn.Module] = nn.GELU) -> None:
        super().__init__(nn.Linear(c, 2 * c), act(), nn.Linear(2 * c, c))


class Block(nn.Module):
    """A block of a transformer, with its norms first."""

    def __init__(self, c: int = WIDTH, act: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(c), Attention(c)
        self.norm2, self.mlp = nn.LayerNorm(c), Mlp(c, act)
        self.gamma = nn.Parameter(torch.rand(c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.gamma * self.mlp(self.norm2(x))


class Vit(nn.Module):
    """A patch embedding, two blocks, and a mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(8, WIDTH, 2, stride=2)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


class ClassToken(Vit):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.norm(self.blocks(x))[:, 0])


class MobileVit(nn.Module):
    """Patches of 2x2 pixels: the same pixels of all patches look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, WIDTH, 1))
        self.blocks = nn.Sequential(Block(act=nn.SiLU), Block(act=nn.SiLU))
        self.norm, self.proj = nn.LayerNorm(WIDTH), nn.Conv2d(WIDTH, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        b, c, h, w = y.shape
        n = (h // 2) * (w // 2)
        y = y.reshape(b * c * (h // 2), 2, w // 2, 2).transpose(1, 2)
        y = y.reshape(b, c, n, 4).transpose(1, 3).reshape(b * 4, n, -1)
        y = self.norm(self.blocks(y)).contiguous().view(b, 4, n, -1)
        y = y.transpose(1, 3).reshape(b * c * (h // 2), w // 2, 2, 2)
        return x + self.proj(y.transpose(1, 2).reshape(b, c, h, w))


class CrossCovariance(nn.Module):
    """The attention of EdgeNeXt: over channels, between an image and an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, WIDTH, 3, padding=1)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj, self.mlp = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Mlp()
        self.gain, self.gamma = nn.Parameter(torch.rand(2, 1, 1)), nn.Parameter(torch.rand(WIDTH))

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, -1).permute(2, 0, 3, 4, 1).unbind(0)
        weights = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.gain
        return self.proj((weights.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(b, n, c))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        b, c, h, w = x.shape
        y = x.reshape(b, c, h * w).permute(0, 2, 1)
        y = y + self.gamma * self.attend(self.norm1(y))
        y = self.gamma * self.mlp(self.norm2(y.reshape(b, h, w, c)))
        return x + y.permute(0, 3, 1, 2)


class LevitAttention(nn.Module):
    """Linear layers with a batch norm behind them, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv = nn.Conv2d(8, WIDTH, 1), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.bn, self.out = nn.BatchNorm1d(3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Conv2d(WIDTH, 8, 1)
        with torch.no_grad():
            self.bn.running_mean.uniform_(), self.bn.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        z = self.qkv(y)
        z = self.bn(z.flatten(0, 1)).reshape_as(z)
        q, k, v = z.view(b, h * w, 2, -1).split([c // 2, c // 2, c // 2], 3)
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        weights = (q @ k * 0.25).softmax(-1)
        y = y + self.out(F.hardswish((weights @ v).transpose(1, 2).reshape(b, h * w, c)))
        return self.last(y.transpose(1, 2).reshape(b, c, h, w))


class Gated(nn.Module):
    """A gated linear unit on tokens of rank 4, [n, h, w, c], that no permute made."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(8), nn.Linear(8, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(x.shape[0], 2, -1, 8)
        a, b = self.wide(self.norm(rows)).chunk(2, -1)
        return rows + self.out(a * F.silu(b))


class BackToAnImage(nn.Module):
    """Tokens between two convolutions, dense in between as `view` needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, WIDTH, 1), nn.Conv2d(WIDTH, 8, 3, padding=1)
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x.view(x.shape[0], x.shape[1], -1).transpose(1, 2)
        y = y + self.mlp(self.norm(y))
        y = y.transpose(1, 2).contiguous().view(x.shape[0], WIDTH, x.shape[2], x.shape[3])
        return self.last(y + x)


class ReturnsTokens(nn.Module):
    """The caller gets tokens at four places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mlp, self.norm = nn.Conv2d(8, WIDTH, 1), Mlp(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        tokens = self.first(x).flatten(2).transpose(1, 2)
        normed = self.norm(tokens)
        return tokens, normed, self.mlp(normed), normed.sum(1)


class ChangedTokens(nn.Module):
    """Somebody writes to tokens between two reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Conv2d(8, WIDTH, 1), Mlp(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x).flatten(2).transpose(1, 2)
        before = self.a(tokens)
        tokens[:, 0] += 1.0
        return before + self.b(tokens)


class PartsOfTokens(nn.Module):
    """A position code, a part of the tokens, and a part of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a = nn.Conv2d(8, WIDTH, 1), nn.Linear(WIDTH, 3 * WIDTH)
        self.b, self.place = nn.Linear(WIDTH, 4), nn.Parameter(torch.rand(1, 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x).flatten(2).transpose(1, 2)[:, 1:5] + self.place
        q, k, v = self.a(tokens).split(WIDTH, -1)
        return self.b((q @ k.transpose(1, 2)).softmax(-1) @ v / 2 - 1)


NETS: dict[str, Callable[[], nn.Module]] = {
    net.__name__: net
    for net in (
        Vit, ClassToken, MobileVit, CrossCovariance, LevitAttention, Gated, BackToAnImage,
        ReturnsTokens, ChangedTokens, PartsOfTokens,
    )
}  # fmt: skip
