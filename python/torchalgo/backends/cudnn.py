# SPDX-License-Identifier: BSD-3-Clause
"""Settings of the process for convolutions without a closer choice, like torch.backends.cudnn.

    torchalgo.backends.cudnn.conv_fwd_algo = 1
    torchalgo.backends.cudnn.conv_bwd_data_algo = "cudnn9.conv_bwd_data"

The flags are conv_fwd_algo, conv_bwd_data_algo and conv_bwd_filter_algo. They apply to torchalgo's
own convolutions, and inside torchalgo.enable() also to torch's. docs/choosing.md lists the values
that can be assigned. None, the initial value, makes no choice. Arguments of a convolution and
torchalgo.algorithms() come before the flags.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from torchalgo import _C
from torchalgo._ir.choices import Choice, Direction, choice_text, near, read_choice

# In the order of _C.flag_choices().
FLAGS: dict[str, Direction] = {
    "conv_fwd_algo": "fwd",
    "conv_bwd_data_algo": "bwd_data",
    "conv_bwd_filter_algo": "bwd_filter",
}


def version() -> int | None:
    """Returns cuDNN's version as one number, such as 91900 for 9.19.0; None without cuDNN.

    Example: if (torchalgo.backends.cudnn.version() or 0) >= 90000: ...
    """
    text = _C.cudnn_version()
    if text is None:
        return None
    major, minor, patch = map(int, text.split("."))
    return 10000 * major + 100 * minor + patch


def is_available() -> bool:
    """Returns whether torch has loaded a cuDNN that torchalgo can use. This needs no GPU.

    Example: if torchalgo.backends.cudnn.is_available(): ...
    """
    return not _C.cudnn_absence()


@contextmanager
def flags(
    conv_fwd_algo: Choice = None,
    conv_bwd_data_algo: Choice = None,
    conv_bwd_filter_algo: Choice = None,
) -> Iterator[None]:
    """Sets all three flags inside a `with` block, and restores the old values afterwards.

    Args:
        conv_fwd_algo: the choice for forward problems; None makes no choice. docs/choosing.md lists
            the possible values.
        conv_bwd_data_algo: the same for gradients of inputs.
        conv_bwd_filter_algo: the same for gradients of weights.
    Raises: torchalgo.Error if a value is no choice for its direction.

    Example:
        with torchalgo.backends.cudnn.flags(conv_fwd_algo=1):
            y = torchalgo.conv2d(x, weight)
    """
    choices = (conv_fwd_algo, conv_bwd_data_algo, conv_bwd_filter_algo)
    texts = [
        choice_text(choice, direction, name)
        for choice, (name, direction) in zip(choices, FLAGS.items(), strict=True)
    ]
    old = _C.set_flag_choices(*texts)
    try:
        yield
    finally:
        _C.set_flag_choices(*old)


def flag_property(name: str) -> property:
    """Returns a property of a module that reads and sets a flag.

    Its value is one of cuDNN's numbers, a choice's text, or None. Setting it raises torchalgo.Error
    if the value is no choice for the flag's direction.
    """
    index, direction = list(FLAGS).index(name), FLAGS[name]

    def get(module: object) -> int | str | None:
        return read_choice(_C.flag_choices()[index], direction)

    def set_(module: object, choice: Choice) -> None:
        texts = list(_C.flag_choices())
        texts[index] = choice_text(choice, direction, name)
        _C.set_flag_choices(*texts)

    return property(get, set_, doc=f"The algorithm of {direction} problems.")


class _CudnnModule(types.ModuleType):
    """This module, with its flags as attributes."""

    conv_fwd_algo = flag_property("conv_fwd_algo")
    conv_bwd_data_algo = flag_property("conv_bwd_data_algo")
    conv_bwd_filter_algo = flag_property("conv_bwd_filter_algo")

    def __setattr__(self, name: str, value: object) -> None:
        is_new = name not in FLAGS and not name.startswith("_") and not hasattr(self, name)
        if is_new and (name.endswith("_algo") or near(name, list(FLAGS))):
            hint = near(name, list(FLAGS))
            raise AttributeError(
                f"{self.__name__} has no {name!r}{hint}; it has {', '.join(FLAGS)}"
            )
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _CudnnModule
