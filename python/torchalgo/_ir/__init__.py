# SPDX-License-Identifier: BSD-3-Clause
"""The nouns: problems, costs, choices, plans. Plain values and their texts."""
