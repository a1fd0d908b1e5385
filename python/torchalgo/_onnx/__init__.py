# SPDX-License-Identifier: BSD-3-Clause
"""Reads models from ONNX files; docs/onnx.md describes what is read."""
