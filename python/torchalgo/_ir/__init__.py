# SPDX-License-Identifier: BSD-3-Clause
"""The plain values of the package and their texts: problems, costs, choices, plans."""
