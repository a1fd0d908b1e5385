# SPDX-License-Identifier: BSD-3-Clause
"""Times whole plans, and corrects costs by the times of operations inside the net."""
