# SPDX-License-Identifier: BSD-3-Clause
"""Mutated files of Caffe: load_caffe refuses them, or gives a module that runs.

    python tests/fuzz/fuzz_caffe.py text --cases 100000 --record tests/fuzz/records/caffe.jsonl
    python tests/fuzz/fuzz_caffe.py weights --cases 100000 --record tests/fuzz/records/caffe.jsonl

`text` changes numbers, words and lines of small networks, `weights` changes a file of weights. A
finding is an exception other than torchalgo.Error, a crash, a hang, or more memory than the limit.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np

import isolated
import torchalgo
from campaign import main
from fuzz_onnx import INTS, NAMES, fuzzer_of, load_modules
from mutate import mutated, mutated_bytes, seeds_of
from torchalgo._caffe.layers import LAYERS
from torchalgo._caffe.schema import messages

SEEDS = seeds_of("caffe")
WORDS = (*sorted(LAYERS), "Foo", "MAX", "AVE", "TRAIN", "TEST", "true", "false", "data", "a", "b")
NUMBERS = ("0", "-1", "1", "2", "3", "4", "7", "64", "100000", "2147483648", "1e9", "nan")
# The sizes of the weights of the first network.
BLOBS = {
    "c": [[4, 3, 3, 3], [4]], "n": [[4], [4], [1]], "s": [[4], [4]], "d": [[4, 1, 3, 1]],
    "p": [[4]], "l": [[5, 4], [5]],
}  # fmt: skip


def weights() -> Any:
    """Returns the weights of the first network."""
    found, rng = messages()[1](), np.random.default_rng(0)
    for name, shapes in BLOBS.items():
        layer = found.layer.add(name=name.encode())
        for sizes in shapes:
            layer.blobs.add(data=[rng.random(sizes, dtype=np.float32).tobytes()]).shape.dim[:] = (
                sizes
            )
    return found


def changed_weights(rng: random.Random) -> bytes:
    found = weights()
    data = found.SerializeToString()
    kind, layer = rng.random(), rng.choice(found.layer)
    if kind < 0.4:
        return mutated_bytes(rng, data)
    blob = rng.choice(layer.blobs)
    at = rng.randrange(len(blob.shape.dim))
    if kind < 0.6:
        blob.shape.dim[at] = rng.choice(INTS)
    elif kind < 0.7:
        blob.data[0] = blob.data[0] * rng.randrange(3) + blob.data[0][: rng.randrange(9)]
    elif kind < 0.8:
        layer.name = rng.choice([*NAMES, *BLOBS]).encode()
    elif kind < 0.9:
        layer.blobs.append(blob)
    else:
        del layer.blobs[-1]
    return bytes(found.SerializeToString())


def changed_text(rng: random.Random) -> str:
    """Returns a network with other numbers, words and lines."""
    text = rng.choice(SEEDS)
    if rng.random() < 0.2:
        return mutated(rng, text, SEEDS)
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines = text.splitlines()
        kind, at = rng.random(), rng.randrange(len(lines))
        if kind < 0.2:
            other = rng.choice(rng.choice(SEEDS).splitlines())
            lines[at : at + 1] = rng.choice(([], [other], [other, lines[at]], [lines[at], other]))
        elif words := list(re.finditer(r"\w+" if kind < 0.6 else r"(?<= )\d+", lines[at])):
            own = [match[0] for match in re.finditer(r"\w+", text)]
            start, end = rng.choice(words).span()
            new = rng.choice((*WORDS, *own) if kind < 0.6 else NUMBERS)
            lines[at] = lines[at][:start] + new + lines[at][end:]
        text = "\n".join(lines) + "\n"
    return text


def load_text(rng: random.Random, folder: Path) -> Any:
    path = folder / "net.prototxt"
    path.write_text(changed_text(rng))
    return torchalgo.load_caffe(path)


def load_weights(rng: random.Random, folder: Path) -> Any:
    network, path = folder / "net.prototxt", folder / "net.caffemodel"
    network.write_text(SEEDS[0])
    path.write_bytes(changed_weights(rng))
    return torchalgo.load_caffe(network, path)


FUZZERS = {"text": fuzzer_of(load_text, True), "weights": fuzzer_of(load_weights, True)}

if __name__ == "__main__":
    load_modules([load_text, load_weights])
    main(__doc__, FUZZERS, isolated.results)
