# SPDX-License-Identifier: BSD-3-Clause
"""What the user holds in the end: the optimized module, its files and its report."""
