# SPDX-License-Identifier: BSD-3-Clause
"""Tools that do not depend on convolutions: files, locks, timings, progress."""
