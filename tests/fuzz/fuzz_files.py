# SPDX-License-Identifier: BSD-3-Clause
"""Mutated files of optimized models: refused, or they compute what the model does.

A changed weight is a valid file of another model: the members that hold weights stay as they are,
except where whole bytes of the archive change, which its checksums find.
"""

from __future__ import annotations

import functools
import io
import random
import re
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch

import isolated
import torchalgo
from campaign import main
from mutate import mutated_bytes
from small_model import PLAN, check_outputs, model

SUBSTITUTES = (
    (rb"st1x1", b"st2x2"), (rb"pad1x1", b"pad0x0"), (rb"nChw16c", b"nChw8cc"), (rb"nchw", b"nhwc"),
    (rb"k16r3s3", b"k16r1s1"), (rb"n1c", b"n9c"), (rb"dil1x1", b"dil2x2"),
    (rb"winograd_f4x4_3x3", b"winograd_f6x6_3x3"), (rb"cpu.stem", b"cpu.fft."), (rb"_g1", b"_g2"),
)  # fmt: skip


@functools.cache
def file() -> bytes:
    """A file that holds the golden plan, as this version writes it."""
    plan = torchalgo.load_plan(PLAN)
    fast = torchalgo.optimize(
        model(),
        torch.rand(1, 3, 24, 24),
        plan=plan,
        settings=torchalgo.Settings(progress=False, cost_db=False),
    )
    with tempfile.TemporaryDirectory() as folder:
        fast.save(Path(folder) / "model.pt")
        return (Path(folder) / "model.pt").read_bytes()


def with_changed_member(rng: random.Random, data: bytes) -> bytes:
    """Writes the archive again, with sound checksums and one member changed."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        names = [n for n in old.namelist() if not re.search(r"/(data|constants)/\d+$", n)]
        target = rng.choice(names)
        for name in old.namelist():
            content = old.read(name)
            if name == target and content:
                content = changed_member(rng, content)
            new.writestr(name, content)
    return written.getvalue()


def changed_member(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.5:
        return mutated_bytes(rng, content)
    for old, new in rng.sample(SUBSTITUTES, 3):
        places = [match.start() for match in re.finditer(old, content)]
        if places:
            at = rng.choice(places)
            content = content[:at] + new + content[at + len(new) :]
    return content


def files(seed: int) -> list[str]:
    rng = random.Random(seed)
    torch.set_num_threads(1)
    change = with_changed_member if rng.random() < 0.6 else mutated_bytes
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.pt"
        path.write_bytes(change(rng, file()))
        try:
            fast = torchalgo.load(path)
        except torchalgo.Error:
            return ["refused"]
        check_outputs(fast, (torchalgo.Error, RuntimeError))
        return ["loaded"]


FUZZERS = {"files": files}

if __name__ == "__main__":
    main(__doc__, FUZZERS, isolated.results)
