# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/bench_precision.py: networks that are trained, on images that are drawn here, and the
errors that plans predict."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import nn

import bench_precision
import digits
import photographs
import predicted_errors
import torchalgo
from support.nets import make_net


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


@pytest.mark.parametrize("name", digits.NETWORKS)
def test_each_network_has_a_block_with_a_stride_and_ten_results(name: str) -> None:
    net = digits.network(name).eval()
    assert net(torch.rand(2, 1, digits.SIDE, digits.SIDE)).shape == (2, 10)
    assert [stride for _, _, stride in digits.NETWORKS[name][1]].count(2) == 1


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
    for read in (digits.read_digits, lambda: photographs.read_photographs(photographs.SEEN)):
        with pytest.raises(torchalgo.Error, match=r"pip install -r requirements-bench\.txt"):
            read()  # type: ignore[operator]


# ---- predicted errors ----------------------------------------------------------------------------


def images(count: int, seed: int) -> torch.Tensor:
    """Crops of two photographs that are drawn here: one dark, one bright."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 60, 80, generator=generator) / 2
    pixels[1] += 0.5
    return photographs.crops_of(list(pixels), count, 32, seed)


def test_crops_differ_and_are_normalized() -> None:
    x = images(4, seed=1)
    assert x.shape == (4, 3, 32, 32)
    assert torch.equal(x, images(4, seed=1)) and not torch.equal(x, images(4, seed=2))
    dark, bright = x[::2], x[1::2]
    assert dark.max() <= (0.5 - 0.406) / 0.224 + 1e-5 < bright.mean()
    assert not torch.equal(x[0], x[2])


def test_a_batch_norm_gets_the_statistics_of_what_it_reads() -> None:
    net, x = make_net(), images(8, seed=1)
    photographs.with_statistics(net, x)
    with torch.no_grad():
        read = net.stem[0](x)
    norm = net.stem[1]
    assert isinstance(norm, nn.BatchNorm2d)
    torch.testing.assert_close(norm.running_mean, read.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, read.var((0, 2, 3)))
    assert not any(module.training for module in net.modules())


def test_the_predicted_error_is_near_that_of_plans_with_coarse_types() -> None:
    net = photographs.with_statistics(make_net(), images(8, seed=1))
    with torch.no_grad():
        tight, loose = predicted_errors.errors_of(
            net, images(1, seed=2), images(3, seed=3), bounds=[2e-3, 0.1]
        )
    assert loose["coarse_calls"] == loose["calls"] > tight["coarse_calls"]
    assert loose["casts"] == loose["misses"] == 0
    assert predicted_errors.is_near(loose) and tight["final"]["rel_error"] <= 2e-3
    assert loose["rel_error"] == loose["final"]["rel_error"] > 1e-3
    unseen = loose["unseen"]
    assert 1e-3 < unseen["median_error"] <= unseen["worst_error"]


def test_the_summary_counts_what_is_near_in_both_directions() -> None:
    def line(name: str, *errors: float) -> dict[str, Any]:
        bounds = [
            {"max_error": bound, "predicted_error": error, "rel_error": 1e-2}
            for bound, error in zip((1e-2, 5e-2), errors, strict=True)
        ]
        return {"network": name, "bounds": bounds}

    lines = [line("a", 1.4e-2, 0.7e-2), line("b", 1.6e-2, 0.6e-2), line("c", 1e-2, 1e-2)]
    assert predicted_errors.summary(lines).splitlines() == [
        f"max_error {bound}: 2 of 3 predictions are within a factor of 1.5 of the measured error"
        for bound in ("1e-02", "5e-02")
    ]
