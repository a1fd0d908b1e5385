# SPDX-License-Identifier: BSD-3-Clause
"""Settings of the process by library, like torch.backends."""

from torchalgo.backends import cudnn

__all__ = ["cudnn"]
