# SPDX-License-Identifier: BSD-3-Clause
"""Tools that know nothing of convolutions: files, locks, timings, progress."""
