# SPDX-License-Identifier: BSD-3-Clause
"""The structure of many networks, without weights, for tests of the planner and the solver.

Each network of torchvision and timm below is built with random weights, frozen and imported. Its
graph is kept as text (csrc/ir/graph_text.h) in one zip file, about 3 KB per network.
"""

from __future__ import annotations

import argparse
import difflib
import zipfile
from pathlib import Path

import torch
from torch import nn

from torchalgo import _C
from torchalgo._capture.freeze import freeze_model

GRAPHS = Path(__file__).with_name("graphs") / "inference.zip"
LIMIT_S = 240.0  # of one network

TORCHVISION = """
alexnet convnext_tiny convnext_base densenet121 densenet161 densenet169 densenet201
efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5
efficientnet_b7 efficientnet_v2_s efficientnet_v2_m efficientnet_v2_l googlenet inception_v3
mnasnet0_5 mnasnet1_0 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf
regnet_x_8gf regnet_y_400mf regnet_y_1_6gf regnet_y_16gf resnet18 resnet34 resnet50 resnet101
resnet152 resnext50_32x4d resnext101_64x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 vgg11 vgg13_bn vgg16 vgg19_bn wide_resnet50_2
fcn_resnet50 deeplabv3_resnet101 lraspp_mobilenet_v3_large
"""
TIMM = """
adv_inception_v3 bat_resnext26ts botnet26t_256 coatnet_0_rw_224 cs3darknet_m cs3sedarknet_l
cspdarknet53 cspresnet50 cspresnext50 darknet53 densenetblur121d dla34 dla46_c dla60
dla60_res2net dla60x dla102 dla102x2 dla169 dm_nfnet_f0 dpn68 dpn92 dpn107 dpn131 eca_nfnet_l0
eca_resnet33ts ecaresnet50d edgenext_small efficientnet_es efficientnet_lite0 efficientnetv2_rw_t
ese_vovnet19b_dw ese_vovnet39b ese_vovnet99b fastvit_t8 fbnetc_100 fbnetv3_b gcresnet50t
gernet_m ghostnet_100 ghostnetv2_100 hardcorenas_a hgnet_small hgnetv2_b2 hrnet_w18_small
hrnet_w18 hrnet_w32 hrnet_w48 hrnet_w64 inception_next_tiny inception_resnet_v2 inception_v4
lambda_resnet26t lcnet_100 legacy_senet154 legacy_seresnet50 legacy_xception mixnet_s mixnet_l
mobilenetv3_rw mobilenetv4_conv_medium mobileone_s0 nasnetalarge nf_regnet_b1 nf_resnet50
pnasnet5large poolformer_s12 regnetz_c16 repghostnet_100 repvgg_a2 repvgg_b2 res2net50_14w_8s
res2net50_26w_4s res2net101_26w_4s res2next50 resnest26d resnest50d resnet10t resnet50d
resnetaa50 resnetblur50 resnetrs50 resnetv2_50 resnetv2_50x1_bit rexnet_100 rexnet_200
selecsls42b selecsls60 semnasnet_100 seresnet50 seresnext50_32x4d skresnet50 skresnext50_32x4d
spnasnet_100 starnet_s2 tf_efficientnet_b0 tf_efficientnetv2_b0 tf_mixnet_m tinynet_a tresnet_m
tresnet_l vgg16_bn visformer_small vovnet39a wide_resnet50_2 xception41 xception65 xception71
"""


def all_names() -> list[str]:
    return TORCHVISION.split() + [f"timm/{name}" for name in TIMM.split()]


def graph_name(text: str) -> str:
    """The type of a command line's argument: one of `all_names`."""
    if text not in all_names():
        similar = ", ".join(difflib.get_close_matches(text, all_names())) or "resnet50"
        raise argparse.ArgumentTypeError(
            f"expected a network of network_graphs.py, such as {similar}; got {text!r}"
        )
    return text


def build(name: str) -> tuple[nn.Module, int]:
    """The network in eval mode with random weights, and the side of its images."""
    if not name.startswith("timm/"):
        import torchvision

        options: dict[str, object] = {"weights": None}
        if name in ("googlenet", "inception_v3"):
            options |= {"init_weights": False, "aux_logits": False}
        if name.startswith(("fcn", "deeplab", "lraspp")):
            options |= {"weights_backbone": None}
        side = 299 if name == "inception_v3" else 224
        network: nn.Module = torchvision.models.get_model(name, **options)
        return network.eval(), side
    import timm

    network = timm.create_model(name.removeprefix("timm/"), pretrained=False, exportable=True)
    image: int = network.default_cfg["input_size"][-1]  # type: ignore[assignment, index]
    return network.eval(), image


def trace(name: str) -> str:
    """The graph's text."""
    torch.manual_seed(0)
    network, side = build(name)
    inputs = (torch.rand(1, 3, side, side),)
    text: str = _C.import_graph(freeze_model(network, inputs)._c, inputs).graph.to_text()
    return text


def read_graphs() -> dict[str, str]:
    """Name to text of every network kept."""
    with zipfile.ZipFile(GRAPHS) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def write_graphs(graphs: dict[str, str]) -> None:
    GRAPHS.parent.mkdir(exist_ok=True)
    whole = GRAPHS.with_suffix(".part")  # readers never see half a file
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_LZMA) as archive:
        for name in sorted(graphs):
            # A fixed time, so that the same graphs make the same file.
            archive.writestr(
                zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), graphs[name], zipfile.ZIP_LZMA
            )
    whole.replace(GRAPHS)
