# SPDX-License-Identifier: BSD-3-Clause
"""What the command `torchalgo` does. Its arguments are read in `torchalgo_cli`."""
