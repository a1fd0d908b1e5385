# SPDX-License-Identifier: BSD-3-Clause
"""Satellite: writes the forward pass of a plan as a folder of C++ that needs no library."""
