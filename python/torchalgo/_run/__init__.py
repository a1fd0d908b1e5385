# SPDX-License-Identifier: BSD-3-Clause
"""The optimized module, its files and its report."""
