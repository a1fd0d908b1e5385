# SPDX-License-Identifier: BSD-3-Clause
"""Times whole plans and corrects costs by what operations take inside the net."""
