# SPDX-License-Identifier: BSD-3-Clause
"""What users do with the module that optimize returns."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from nets import Net, fp64_error


@pytest.mark.parametrize("shape", [(1, 3, 33, 57), (3, 3, 40, 40), (2, 3, 8, 8), (1, 3, 64, 40)])
def test_other_shapes_and_batches_are_right(
    net: Net, fast: torchalgo.Optimized, shape: tuple[int, ...]
) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    assert fp64_error(net, fast, x) <= 1e-5


def test_another_memory_format_is_right(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    last = x.contiguous(memory_format=torch.channels_last)
    assert fp64_error(net, fast, last) <= 1e-5
    assert fp64_error(net, fast, x.expand(2, -1, -1, -1)) <= 1e-5
    assert fp64_error(net, fast, x[..., ::2]) <= 1e-5


def test_another_number_of_threads_after_planning_is_right(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            assert fp64_error(net, fast, x) <= 1e-5
    finally:
        torch.set_num_threads(before)


def test_two_threads_may_call_at_once(fast: torchalgo.Optimized) -> None:
    inputs = [torch.rand(1, 3, 24 + 8 * i, 40) for i in range(4)]
    want = [fast(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.allclose(fast(inputs[i]), want[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_may_make_the_first_call(net: Net, x: torch.Tensor) -> None:
    fast = torchalgo.optimize(net, progress=False)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(fast(x))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(results[0], results[1])


def test_deepcopy_and_pickle_run_the_same_plan(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    saved = io.BytesIO()
    torch.save(fast, saved)
    saved.seek(0)
    for again in (
        copy.deepcopy(fast),
        copy.copy(fast),
        pickle.loads(pickle.dumps(fast)),
        torch.load(saved, weights_only=False),
    ):
        assert again is not fast
        assert again.runs == "plan"
        assert again.plan == fast.plan
        assert torch.equal(again(x), fast(x))


def test_it_is_a_submodule_like_any_other(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    whole = nn.Sequential(fast, nn.Linear(10, 2)).eval()
    assert whole.to(torch.float32)(x).shape == (1, 2)
    assert [name for name, _ in whole.named_parameters()] == ["1.weight", "1.bias"]
    with pytest.raises(torchalgo.Error, match="train: an optimized module is for inference"):
        whole.train()
    with pytest.raises(torchalgo.Error, match="state_dict: an optimized module"):
        whole.state_dict()


def test_moves_that_change_nothing_are_allowed(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    assert fast.to("cpu") is fast
    assert fast.float() is fast
    assert fast.to(memory_format=torch.channels_last) is fast
    assert fast.eval() is fast
    assert fast.train(False) is fast
    assert not fast.training
    assert fast.requires_grad_(False) is fast


def test_moves_that_would_change_it_are_errors(fast: torchalgo.Optimized) -> None:
    for move in (
        fast.half,
        fast.double,
        fast.bfloat16,
        lambda: fast.to(torch.float64),
        lambda: fast.to("meta"),
    ):
        with pytest.raises(torchalgo.Error, match=r"cannot be moved from torch.float32 on cpu to"):
            move()
    with pytest.raises(torchalgo.Error, match="inference"):
        fast.train()
    with pytest.raises(torchalgo.Error, match="no parameters"):
        fast.state_dict()
    with pytest.raises(torchalgo.Error, match="no parameters"):
        fast.load_state_dict({})


def test_an_input_of_another_dtype_or_device_is_an_error(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    with pytest.raises(torchalgo.Error, match=r"input 0 is torch.float64, .*for torch.float32"):
        fast(x.double())
    with pytest.raises(torchalgo.Error, match="input 0 is on meta, expected cpu"):
        fast(x.to("meta"))


def test_an_input_that_requires_grad_is_an_error_and_never_a_missing_gradient(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    leaf = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="grad"):
        fast(leaf)
    with torch.no_grad():
        assert fast(leaf).shape == (1, 10)
    with torch.inference_mode():
        assert fast(x).shape == (1, 10)


def test_a_wrong_number_of_channels_is_an_error(fast: torchalgo.Optimized) -> None:
    with pytest.raises(RuntimeError, match="channels"):
        fast(torch.rand(1, 4, 40, 40))


def test_the_report_is_html_text_or_json(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    for suffix in (".html", ".txt", ".json"):
        fast.report(tmp_path / f"report{suffix}")
    html = (tmp_path / "report.html").read_text()
    assert "layer1.0.conv2" in html
    assert "<script" not in html
    assert "http" not in html
    assert (tmp_path / "report.txt").read_text() == f"{fast.plan}\n"
    assert torchalgo.load_plan(tmp_path / "report.json") == fast.plan
    with pytest.raises(torchalgo.Error, match=r"ends in '.pdf', expected .html, .txt, .json"):
        fast.report(tmp_path / "report.pdf")


def test_its_text_says_what_runs(fast: torchalgo.Optimized, net: Net) -> None:
    assert "runs='plan'" in repr(fast)
    assert "plans on its first call" in repr(torchalgo.optimize(net))
