# SPDX-License-Identifier: BSD-3-Clause
"""Sets what happens if a chosen primitive cannot run, and lists where it could not."""

from __future__ import annotations

from typing import Literal

from torchalgo import _C

ConflictPolicy = Literal["error", "fallback", "honour"]


def fallbacks() -> dict[str, tuple[int, str]]:
    """Returns the layers that ran another primitive than planned, in this process.

        for layer, (count, reason) in torchalgo.fallbacks().items():
            print(layer, count, reason)

    Returns: by the layer's name, the number of calls and the reason of the last one.
    """
    return _C.fallbacks()


def reset_fallbacks() -> None:
    """Forgets what `fallbacks` returns.

    Example:
        torchalgo.reset_fallbacks()
    """
    _C.reset_fallbacks()


def set_strict(strict: bool) -> bool:
    """Makes fallbacks errors in this process, or allows them again.

        before = torchalgo.set_strict(True)  # a layer that cannot run as planned raises
        torchalgo.set_strict(before)

    Returns: the value before. It is False at first.
    """
    return _C.set_strict(strict)


def set_conflict_policy(policy: ConflictPolicy) -> ConflictPolicy:
    """Says what happens if a choice conflicts with a flag of PyTorch, such as `deterministic`.

        before = torchalgo.set_conflict_policy("fallback")

    Args:
        policy: "error" raises an error, "fallback" runs a primitive that the flag allows, "honour"
            runs the choice.

    Returns: the value before.
    Raises: torchalgo.Error if `policy` is none of these words.
    """
    before: ConflictPolicy = _C.set_conflict_policy(policy)  # type: ignore[assignment]
    return before
