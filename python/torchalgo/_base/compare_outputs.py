# SPDX-License-Identifier: BSD-3-Clause
"""Compares the results of two modules for the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def output_error(result: Any, reference: Any) -> float:
    """Returns the greatest relative L2 error of any tensor or number in `result`.

    Returns inf if the structures, types or shapes differ, and 0 if there is nothing to compare.
    Where the reference is not finite, the result must be the same. One in a thousand integers
    (labels, an argmax) may differ, since rounding decides ties. A reference in f64 is compared with
    results of any dtype.
    """
    got, want = leaves_of(result), leaves_of(reference)
    if len(got) != len(want):
        return float("inf")
    return max([_error(a, b) for a, b in zip(got, want, strict=True)], default=0.0)


def worst_output_error(result: Any, reference: Any) -> float:
    """Returns the greatest error of a single element of any floating tensor in `result`.

    It is relative to the element's own size plus the median of the tensor's sizes above 0. So a
    large value elsewhere does not hide it, as it does in a norm. Elements that are not finite are
    left out.
    """
    pairs = zip(leaves_of(result), leaves_of(reference), strict=True)
    tensors = [p for p in pairs if all(isinstance(x, torch.Tensor) for x in p)]
    return max((_worst_error(got, want) for got, want in tensors), default=0.0)


def _worst_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if got.shape != want.shape or not (want.is_floating_point() or want.is_complex()):
        return 0.0
    finite = want.isfinite() & got.isfinite()
    sizes = want.detach().abs()[finite].double()
    if not bool(sizes.any()):
        return 0.0
    difference = (got.detach()[finite] - want.detach()[finite]).abs().double()
    return float((difference / (sizes + sizes[sizes > 0].median())).max())


def leaves_of(value: Any) -> list[Any]:
    """Lists the values inside nested lists, tuples and dicts, in order, with the dicts' keys."""
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in (key, *leaves_of(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def in_f64(value: Any) -> Any:
    """Returns a floating tensor in f64, and any other value as it is."""
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_floating else value


def _error(got: Any, want: Any) -> float:
    if isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor):
        return _tensor_error(got, want)
    is_number = isinstance(want, (int, float)) and type(got) is type(want)
    if is_number and not isinstance(want, bool):
        return _tensor_error(torch.tensor(got), torch.tensor(want))
    return 0.0 if type(got) is type(want) and got == want else float("inf")


def _tensor_error(got: torch.Tensor, want: torch.Tensor) -> float:
    is_float = want.is_floating_point() or want.is_complex()
    is_reference = is_float and want.dtype in (torch.float64, torch.complex128)
    if got.shape != want.shape or (got.dtype != want.dtype and not is_reference):
        return float("inf")
    if got.dtype == want.dtype and torch.equal(got, want):
        return 0.0
    if not is_float:
        different = int((got != want).sum())
        return 0.0 if different <= want.numel() / 1000 else float("inf")
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.detach().to(wide), want.detach().to(wide)
    finite = want.isfinite()
    if not same_values(got[~finite], want[~finite]):
        return float("inf")
    difference = float((got[finite] - want[finite]).abs().norm())
    if difference == 0.0:
        return 0.0
    tiny = torch.finfo(torch.float64).tiny
    error = difference / max(float(want[finite].abs().norm()), tiny)
    return error if error == error else float("inf")


def same_values(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Returns whether both hold the same numbers, and NaN at the same indices."""
    if want.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    is_nan = want.isnan()
    return torch.equal(got.isnan(), is_nan) and torch.equal(got[~is_nan], want[~is_nan])
