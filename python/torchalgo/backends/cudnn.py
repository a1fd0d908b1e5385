# SPDX-License-Identifier: BSD-3-Clause
"""cuDNN's settings: which algorithm convolutions run that nothing closer to them decides.

`torchalgo.backends.cudnn.conv_fwd_algo = 1`, and `conv_bwd_data_algo`, `conv_bwd_filter_algo`: for
torchalgo's own convolutions always, for torch's inside torchalgo.enable(). What may be assigned
torchalgo.choices.choice_text tells; None, as at the start, asks for nothing. They are process-wide.
An argument of the convolution and torchalgo.algorithms() go before them.
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
    """cuDNN's version as one number, 91900 is 9.19.0; None without cuDNN."""
    text = _C.cudnn_version()
    if text is None:
        return None
    major, minor, patch = map(int, text.split("."))
    return 10000 * major + 100 * minor + patch


def is_available() -> bool:
    """Whether torch has mapped a cuDNN that torchalgo can ask; no GPU is needed for that."""
    return not _C.cudnn_absence()


def get_flag(name: str) -> int | str | None:
    """What a flag is set to: cuDNN's number, a name, None."""
    index = list(FLAGS).index(name)
    return read_choice(_C.flag_choices()[index], FLAGS[name])


def set_flag(name: str, choice: Choice) -> None:
    """Sets one flag. Raises: torchalgo.Error if `choice` is none."""
    texts = list(_C.flag_choices())
    texts[list(FLAGS).index(name)] = choice_text(choice, FLAGS[name], name)
    _C.set_flag_choices(*texts)


@contextmanager
def flags(
    conv_fwd_algo: Choice = None,
    conv_bwd_data_algo: Choice = None,
    conv_bwd_filter_algo: Choice = None,
) -> Iterator[None]:
    """All three flags as given, inside the block; afterwards what they were."""
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
    """A property of a module that reads and sets a flag."""

    def get(module: object) -> int | str | None:
        return get_flag(name)

    def set_(module: object, choice: Choice) -> None:
        set_flag(name, choice)

    return property(get, set_, doc=f"The algorithm of {FLAGS[name]} problems.")


class _CudnnModule(types.ModuleType):
    """This module with its flags as attributes."""

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
