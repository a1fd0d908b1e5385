# SPDX-License-Identifier: BSD-3-Clause
"""The networks of the board: drawn by seed from torchvision and timm, and three small known ones.

A network is eligible if it accepts 224x224 images, has at most 30 M parameters and at most 6 G
multiply-adds, and convolutions do at least half of these. `draw` takes one eligible network of each
family, and two of a family with at least 10 networks. No measured time plays a part. DRAWN keeps
the result, so that the board stays the same when timm grows. Importing this module needs neither
torchvision nor timm: the page is made without them.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchalgo._cli.demo import randomize_batch_norms

SEED = 24
TIMM_VERSION, TORCHVISION_VERSION = "1.0.31", "0.26.0"  # DRAWN was drawn from these
SIDE = 224  # of the images, for the rule and for the board
MOST_PARAMETERS, MOST_MULTIPLY_ADDS, LEAST_CONVOLUTIONS = 30e6, 6e9, 0.5
LOOKED_AT = 8  # networks of a family; a family with no eligible one among them has none
LARGE_FAMILY = 10  # networks of a family of which two are drawn
INDUCTOR_NETWORKS = 10  # of the board, by seed: compiling each takes a minute
RARE_NETWORKS = 20  # of the board, by seed: ncnn and zentorch run these
_DRAWN = """
timm/lambda_resnet50ts timm/mobileone_s3 timm/gcresnext50ts timm/convmixer_1024_20_ks9_p14
timm/convnext_zepto_rms timm/convnext_tiny_hnf timm/cpubone_b2_bfrobust timm/cs3sedarknet_xdw
timm/cs3darknet_s timm/cspnext_l timm/densenetblur121d timm/dla60x_c timm/dla60_res2net
timm/dpn68 timm/efficientformer_l1 timm/efficientformerv2_s1 timm/tinynet_d
timm/tf_efficientnetv2_s timm/efficientvim_m2 timm/efficientvit_b0 timm/efficientvit_m3
timm/fasternet_t1 timm/fastvit_mci0 timm/fastvit_sa24 timm/focalnet_tiny_srf timm/ghostnet_100
timm/ghostnet_130 timm/hardcorenas_b timm/hgnetv2_b2 timm/hgnet_tiny timm/hrnet_w18_small_v2
timm/hrnet_w18 timm/iformer_l timm/inception_next_atto timm/lcnetv2_small timm/levit_conv_256d
timm/levit_conv_128s timm/lowformer_b1 timm/coatnet_rmlp_0_rw_224 timm/poolformer_s12
timm/lcnet_075 timm/fbnetv3_b timm/mobilevitv2_075 timm/mobilevit_xs timm/nf_ecaresnet50
timm/nf_regnet_b3 timm/rdnet_tiny timm/regnetv_040 timm/regnetz_040 timm/repghostnet_100
timm/repvit_m2 timm/res2next50 timm/resnest50d timm/resnet14t timm/resnet26d timm/resnetv2_34
timm/resnetv2_50d_gn timm/rexnetr_100 timm/rexnet_150 timm/legacy_seresnet50 timm/shvit_s4
timm/skresnet50d timm/starnet_s050 timm/swiftformer_l3 timm/visformer_tiny
timm/ese_vovnet19b_slim_dw timm/ese_vovnet19b_dw timm/legacy_xception timm/xception41
densenet169 efficientnet_b4 efficientnet_b0 googlenet inception_v3 mnasnet1_3 mobilenet_v2
mobilenet_v3_small regnet_x_800mf regnet_y_400mf resnet18 resnet50 shufflenet_v2_x0_5
squeezenet1_1
"""
DRAWN = tuple(_DRAWN.split())


# ---- drawing -------------------------------------------------------------------------------------


@functools.cache
def families() -> dict[str, list[str]]:
    """Returns the names of all networks by family: the module that registers them.

    A name of torchvision is bare, one of timm begins with "timm/". Where both have a name, timm's
    is left out. So are the tiny networks of timm's own tests.
    """
    import timm
    import torchvision.models as vision

    found: dict[str, list[str]] = {}
    own = sorted(vision.list_models(module=vision))
    for name in own:
        module = vision.get_model_builder(name).__module__.rpartition(".")[2]
        found.setdefault(f"torchvision.{module}", []).append(name)
    for module in sorted(timm.list_modules()):
        names = sorted(set(timm.list_models(module=module)) - set(own))
        found[f"timm.{module}"] = [f"timm/{n}" for n in names if not n.startswith("test_")]
    return found


def order_of(family: str) -> list[str]:
    """Returns a family's networks in the order in which they are looked at."""
    names = list(families()[family])
    random.Random(f"{SEED}:{family}").shuffle(names)
    return names[:LOOKED_AT]


def torchvision_network(name: str, seed: int = 0) -> nn.Module:
    """Builds a network of torchvision in eval mode. Downloads nothing."""
    from networks import random_network

    return random_network(name, seed)


def create(name: str) -> nn.Module:
    """Builds a network of timm or torchvision in eval mode. Downloads nothing."""
    if not name.startswith("timm/"):
        return torchvision_network(name)
    import timm

    network: nn.Module = timm.create_model(name.removeprefix("timm/"), pretrained=False)
    return network.eval()


def multiply_adds(network: nn.Module, x: Tensor) -> tuple[int, int]:
    """Counts the multiply-adds of a run: of all products, and of convolutions only."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network(x)
    counts = counter.get_flop_counts()["Global"]
    convolutions = sum(n for op, n in counts.items() if "convolution" in str(op))
    return sum(counts.values()) // 2, convolutions // 2


def on_meta(name: str) -> nn.Module:
    """Builds a network without memory for its weights."""
    try:
        with torch.device("meta"):
            return create(name)
    except NotImplementedError:  # its constructor reads the values of a tensor
        return create(name).to("meta")


def is_eligible(name: str) -> bool:
    """Applies the rule of this module's docstring. Runs the network on the meta device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = on_meta(name)
        if sum(weight.numel() for weight in network.parameters()) > MOST_PARAMETERS:
            return False
        try:
            every, convolutions = multiply_adds(
                network, torch.zeros(1, 3, SIDE, SIDE, device="meta")
            )
        except Exception:  # each network has its own way to refuse the size
            return False
    return every <= MOST_MULTIPLY_ADDS and convolutions >= LEAST_CONVOLUTIONS * every


def draw_from(family: str) -> list[str]:
    """Returns the drawn networks of one family, at most two."""
    wanted = 2 if len(families()[family]) >= LARGE_FAMILY else 1
    drawn: list[str] = []
    for name in order_of(family):
        if len(drawn) < wanted and is_eligible(name):
            drawn.append(name)
    return drawn


def draw() -> list[str]:
    """Draws the board's networks again, sorted by family. Takes some minutes."""
    return [name for family in sorted(families()) for name in draw_from(family)]


# ---- three small known ones ----------------------------------------------------------------------


class Dqn(nn.Sequential):
    """The deep Q-network for 18 actions on four frames of 84x84 pixels.

    Source: Mnih et al. 2015, Nature 518, pp. 529-533.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 18),
        )  # fmt: skip


class DsCnn(nn.Sequential):
    """The small depthwise-separable network that spots 12 keywords in 49 frames of 10 coefficients.

    Source: Zhang et al. 2017, "Hello Edge", arXiv:1711.07128.
    """

    def __init__(self, channels: int = 64) -> None:
        def normed(conv: nn.Conv2d) -> list[nn.Module]:
            return [conv, nn.BatchNorm2d(channels), nn.ReLU()]

        layers = normed(nn.Conv2d(1, channels, (10, 4), stride=2, padding=(5, 1), bias=False))
        for _ in range(4):
            layers += normed(
                nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
            )
            layers += normed(nn.Conv2d(channels, channels, 1, bias=False))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 12))


SMALL: dict[str, tuple[type[nn.Module], tuple[int, int, int]]] = {
    "dqn": (Dqn, (4, 84, 84)),
    "ds_cnn": (DsCnn, (1, 49, 10)),
}
KNOWN = ("timm/mobilenetv1_100", *SMALL)


def board() -> list[str]:
    """Returns the names of all networks, in the order in which they are measured.

    The order is random, so that the first networks of an unfinished board are a fair sample.
    """
    names = sorted({*DRAWN, *KNOWN})
    random.Random(f"{SEED}:order").shuffle(names)
    return names


def chosen(number: int, what: str) -> list[str]:
    """Returns so many networks of the board, drawn by seed for the purpose `what`."""
    return sorted(random.Random(f"{SEED}:{what}").sample(sorted(board()), number))


def with_inductor() -> list[str]:
    """Returns the networks that Inductor compiles as well."""
    return chosen(INDUCTOR_NETWORKS, "inductor")


def with_rare() -> list[str]:
    """Returns the networks that ncnn and zentorch run as well."""
    return chosen(RARE_NETWORKS, "rare")


# ---- building ------------------------------------------------------------------------------------


def build(name: str, seed: int = 0) -> nn.Module:
    """A network of the board in eval mode. The seed decides all weights and statistics."""
    if name not in SMALL and not name.startswith("timm/"):
        return torchvision_network(name, seed)
    torch.manual_seed(seed)
    network = SMALL[name][0]().eval() if name in SMALL else create(name)
    randomize_batch_norms(network, seed)
    return network


def sizes_of(name: str, size: int = SIDE) -> Sequence[int]:
    """Returns channels, height and width of an input. The two small networks have their own."""
    return SMALL[name][1] if name in SMALL else (3, size, size)


def build_input(name: str, size: int = SIDE, batch: int = 1, seed: int = 1) -> Tensor:
    """A batch of inputs with values from -1 to 1."""
    if name not in SMALL:
        from networks import random_input

        return random_input(name, size, batch, seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, *sizes_of(name), generator=generator) * 2 - 1
