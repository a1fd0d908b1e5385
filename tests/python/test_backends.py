# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo.backends.cudnn and torchalgo.algorithms: settings outside a convolution's arguments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torchalgo
from torchalgo import _C
from torchalgo.backends import cudnn

X, W = torch.rand(1, 8, 9, 9), torch.rand(8, 8, 3, 3)


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    """Each test leaves the flags free."""
    yield
    assert _C.flag_choices() == ("auto", "auto", "auto")
    assert _C.context_choices() == ("auto", "auto", "auto")


def ran(**choices: object) -> str:
    """The primitive that computes a convolution here and now."""
    with torch.no_grad(), torchalgo.record_runs() as runs:
        torchalgo.conv2d(X, W, **choices)  # type: ignore[arg-type]
    (run,) = runs
    return run.primitive


def test_a_flag_reads_as_it_was_set() -> None:
    assert cudnn.conv_fwd_algo is None
    for given, read in [
        (1, 1),
        ("WINOGRAD", 6),
        ("CUDNN_CONVOLUTION_FWD_ALGO_FFT", 4),
        ("6@fma", "cudnn_legacy.fwd.6@fma"),
        ("cpu.direct", "cpu.direct"),
        ({"f16": 1, "cpu": "cpu.direct"}, "f16:cudnn_legacy.fwd.1;cpu.direct"),
        (None, None),
    ]:
        torchalgo.backends.cudnn.conv_fwd_algo = given
        assert cudnn.conv_fwd_algo == read


def test_each_flag_speaks_of_its_direction() -> None:
    cudnn.conv_bwd_data_algo = 1
    cudnn.conv_bwd_filter_algo = 3
    assert _C.flag_choices() == ("auto", "cudnn_legacy.bwd_data.1", "cudnn_legacy.bwd_filter.3")
    assert cudnn.conv_fwd_algo is None
    cudnn.conv_bwd_data_algo = cudnn.conv_bwd_filter_algo = None


def test_a_wrong_value_or_name_changes_nothing() -> None:
    with pytest.raises(torchalgo.Error, match="conv_fwd_algo: 99 is neither"):
        cudnn.conv_fwd_algo = 99
    with pytest.raises(AttributeError, match="conv_bwd_filter_algo"):
        cudnn.conv_forward_algo = 1
    with (
        pytest.raises(torchalgo.Error, match="conv_bwd_data_algo"),
        cudnn.flags(conv_fwd_algo=1, conv_bwd_data_algo="nonsense"),
    ):
        pass


def test_flags_are_put_back_whatever_happens() -> None:
    cudnn.conv_fwd_algo = 2
    with pytest.raises(ZeroDivisionError), cudnn.flags(conv_fwd_algo=1):
        assert cudnn.conv_fwd_algo == 1
        cudnn.conv_bwd_data_algo = 1
        raise ZeroDivisionError
    assert cudnn.conv_fwd_algo == 2
    cudnn.conv_fwd_algo = None


def test_a_flag_decides_what_runs() -> None:
    assert ran() == "auto"
    with cudnn.flags(conv_fwd_algo="cpu.direct"):
        assert ran().startswith("cpu.direct")


def test_argument_goes_before_context_and_context_before_flag() -> None:
    with cudnn.flags(conv_fwd_algo="cpu.direct"):
        with torchalgo.algorithms(forward="cpu.im2col_gemm"):
            assert ran(forward="aten.conv") == "aten.conv"
            assert ran().startswith("cpu.im2col_gemm")
            assert ran(forward="free") == "auto"
        assert ran().startswith("cpu.direct")


def test_contexts_nest_and_keep_what_they_do_not_set() -> None:
    with torchalgo.algorithms(forward="cpu.direct", backward_data="aten.conv"):
        with torchalgo.algorithms(forward="cpu.im2col_gemm"):
            assert _C.context_choices() == ("cpu.im2col_gemm", "aten.conv", "auto")
        with torchalgo.algorithms(forward=None):
            assert ran() == "auto"
        with pytest.raises(ZeroDivisionError), torchalgo.algorithms(forward="aten.conv"):
            raise ZeroDivisionError
        assert ran().startswith("cpu.direct")
    with (
        pytest.raises(torchalgo.Error, match="algorithms: forward: 99"),
        torchalgo.algorithms(forward=99),
    ):
        pass


def test_a_context_can_decorate_a_function() -> None:
    @torchalgo.algorithms(forward="cpu.direct")
    def run() -> str:
        return ran()

    assert run().startswith("cpu.direct")
    assert run().startswith("cpu.direct")


def test_version_and_availability_agree() -> None:
    assert cudnn.is_available() == (cudnn.version() is not None)
    if cudnn.is_available():
        assert cudnn.version() == torch.backends.cudnn.version()
