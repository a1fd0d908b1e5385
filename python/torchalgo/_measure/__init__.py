# SPDX-License-Identifier: BSD-3-Clause
"""Times and checks candidates, in a separate process."""
