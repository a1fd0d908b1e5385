# SPDX-License-Identifier: BSD-3-Clause
"""Reads a model: makes TorchScript of it, and finds out for which inputs that is the model."""
