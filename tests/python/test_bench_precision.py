# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/bench_precision.py: the network that is trained, on images that are drawn here."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

import bench_precision
import digits
import torchalgo


def drawn(count: int) -> digits.Digits:
    """Images with one bright row, whose number is the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, digits.SIDE, (count,), generator=generator)
    images = torch.rand(count, 1, digits.SIDE, digits.SIDE, generator=generator) / 2
    images[torch.arange(count), 0, labels] += 1
    half = count // 2
    return digits.Digits(images[:half], labels[:half], images[half:], labels[half:])


def test_a_trained_network_classifies_images_that_it_has_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digits, "EPOCHS", 4)
    images = drawn(1024)
    net = digits.trained(images)
    with torch.no_grad():
        same = bench_precision.on_held_out(net, net, images)
        assert same["accuracy"] == same["accuracy_f64"] > 0.9
        assert same["rel_error"] < same["worst_error"] < 1e-5
        other = copy.deepcopy(net)
        head = other[-1]
        assert isinstance(head, nn.Linear)
        head.weight[0] += 100  # everything is a 0 now
        found = bench_precision.on_held_out(net, other, images)
        share = float((images.held_out_labels == 0).double().mean())
        assert found["accuracy"] == pytest.approx(share) and found["rel_error"] > 1


def test_a_trained_network_has_lines_of_its_own() -> None:
    options = {"batch": 1, "size": 224, "threads": 2, "max_error": 1e-2, "statistics": "data"}
    heads = [
        bench_precision.head_of(name, {**options, "machine": {}}) for name in ("digits", "vgg16")
    ]
    assert [head["statistics"] for head in heads] == ["trained", "data"]
    assert [head["size"] for head in heads] == [digits.SIDE, 224]


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(torchalgo.Error, match=r"pip install -r requirements-bench\.txt"):
        digits.read_digits()
