# SPDX-License-Identifier: BSD-3-Clause
"""The ops of ONNX as calls of torch's functions. The readers of ONNX and of Caffe share them."""
