# SPDX-License-Identifier: BSD-3-Clause
"""Process-wide settings by library, as torch.backends has them."""

from torchalgo.backends import cudnn

__all__ = ["cudnn"]
