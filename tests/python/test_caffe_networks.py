# SPDX-License-Identifier: BSD-3-Clause
"""Networks of Caffe beside another reader of their files: that of OpenCV 4.

TORCHALGO_ALL_NETWORKS=1 gives them their published sizes and prints the rows of docs/caffe.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("google.protobuf")

import torchalgo
from support.caffe_nets import NETWORKS
from torchalgo._base.compare_outputs import output_error

DIVISOR, SIZE = (1, 224) if os.environ.get("TORCHALGO_ALL_NETWORKS") else (8, 64)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_the_results_of_opencv(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    net = NETWORKS[name](DIVISOR, SIZE)
    paths = net.write(tmp_path)
    module = torchalgo.load_caffe(*paths)
    x = torch.randn(1, *net.shapes["data"], generator=torch.Generator().manual_seed(3))
    reader = cv2.dnn.readNetFromCaffe(*map(str, paths))
    reader.setInput(x.numpy())
    found = module(x)
    error = output_error(found, torch.from_numpy(reader.forward()).reshape(found.shape))
    weights = sum(each.numel() for each in module.parameters())
    print(f"| {name} | {len(net.blobs)} | {weights / 1e6:.1f} | {error:.1e} |")
    assert found.max() < 0.9  # the softmax leaves several classes
    assert error < 1e-5
