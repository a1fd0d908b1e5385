# SPDX-License-Identifier: BSD-3-Clause
"""Reads networks from the files of Caffe; docs/caffe.md describes what is read."""
