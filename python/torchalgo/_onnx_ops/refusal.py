# SPDX-License-Identifier: BSD-3-Clause
"""The reasons for which a file is refused. Its reader makes a torchalgo.Error of each."""

from __future__ import annotations


class RefusalError(Exception):
    """A reason why a file is refused. The caller adds the file and the node."""


class NotSupportedError(RefusalError):
    """The file is valid, but load_onnx does not read this part of it."""


class DamagedError(RefusalError):
    """The file breaks a rule of ONNX."""


class DataError(RefusalError):
    """A weight's data are missing, too short, or outside of the model's folder."""


class TooLargeError(RefusalError):
    """A part of the file asks for more memory than allowed."""


class DoesNotFitError(RefusalError):
    """The inputs of a node do not fit its op."""
