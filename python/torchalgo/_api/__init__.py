# SPDX-License-Identifier: BSD-3-Clause
"""The functions of the package `torchalgo` that are more than one call of another package."""
