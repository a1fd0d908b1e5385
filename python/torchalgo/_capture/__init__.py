# SPDX-License-Identifier: BSD-3-Clause
"""Captures a model as TorchScript, and proves for which inputs the capture is right."""
