# SPDX-License-Identifier: BSD-3-Clause
"""The public functions of `torchalgo` that combine several other packages."""
