# SPDX-License-Identifier: BSD-3-Clause
"""Plans and runs a model that is trained."""
