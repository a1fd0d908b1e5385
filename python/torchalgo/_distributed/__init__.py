# SPDX-License-Identifier: BSD-3-Clause
"""One tuning by several processes."""
