# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the alarms of `torchalgo.lint` are true, on networks of torchvision and timm.

Each network is linted in a process of its own. Then the fix of each finding is applied once more,
by replacing the operations that it names. An alarm is true if the call with the fix is 2 % faster
in paired rounds, or if at least nine tenths of the bytes that the alarm names vanish. The bytes are
counted apart from lint: they are those of the results of all operations, or of all weights.

    python benchmarks/check_lint.py                    # 14 networks of torchvision, 40 of timm
    python benchmarks/check_lint.py --nets nf_resnet50 swin_tiny_patch4_window7_224

Takes 15 minutes for all. Appends a record for each network to benchmarks/results/lint.jsonl, and
prints the share of true alarms. The exit status is 1 if it is below nine tenths.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import harness
import torchalgo
from networks import CLASSIFIERS, random_input, random_network
from torchalgo._lint.facts import tensors_in

OUT = harness.RESULTS / "lint.jsonl"
LEAST_GAIN = 0.02
LEAST_VANISHED = 0.9  # of the bytes that an alarm names
GOAL = 0.9  # of all alarms
TIMM = (
    "bat_resnext26ts", "botnet26t_256", "coat_tiny", "coatnet_nano_rw_224", "convit_tiny",
    "convmixer_768_32", "convnext_atto", "crossvit_tiny_240", "cs3darknet_s", "darknet17",
    "deit_tiny_patch16_224", "regnetz_b16", "dla34", "dpn68", "edgenext_xx_small",
    "efficientformer_l1", "efficientvit_b0", "fastvit_t8", "gernet_s", "ghostnet_100",
    "halonet26t", "hrnet_w18_small", "inception_next_atto", "lambda_resnet26t", "levit_128s",
    "mambaout_femto", "maxvit_nano_rw_256", "mixer_s32_224", "mixnet_s", "mobileone_s0",
    "mobilevit_xxs", "nf_resnet50", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "repvgg_a0",
    "res2net50_26w_4s", "resnetv2_50", "skresnet18", "swin_tiny_patch4_window7_224",
)  # fmt: skip


class BytesMade(TorchDispatchMode):
    """Sums the bytes of the results of all operations that are no views."""

    total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return func(*args) if isinstance(args[0], torch.Tensor) else args[0]
        result = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            self.total += sum(t.numel() * t.element_size() for t in tensors_in(result))
        return result


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Returns a network with random weights in eval mode, and an image of its own size."""
    if name in CLASSIFIERS:
        return random_network(name), random_input(name)
    import timm

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False).eval()
    return model, torch.rand(1, *model.default_cfg["input_size"])  # type: ignore[index, misc]


def bytes_made(call: Any) -> int:
    """Returns the bytes that a call makes."""
    made = BytesMade()
    with made:
        call()
    return made.total


def vanished(finding: torchalgo.Finding) -> int:
    """Returns the bytes that vanish with the fix of a finding, and did not while it was found."""
    return bytes_made(finding.trial.given) - bytes_made(finding.trial.fixed)


def check(finding: torchalgo.Finding) -> dict[str, Any]:
    """Applies the fix of a finding, and returns what it gains."""
    bytes_gone = vanished(finding)
    trial = finding.trial.again()
    is_faster = trial.share >= LEAST_GAIN and trial.times.verdict == "faster"
    is_gone = 0 < LEAST_VANISHED * finding.bytes <= bytes_gone
    return {
        **finding.to_dict(),
        "layers": len(finding.layers) or 1,
        "source": finding.source.rpartition("site-packages/")[2],
        "checked_share": round(trial.share, 4),
        "vanished_bytes": bytes_gone,
        "is_true": is_faster or is_gone,
    }


def run_one(name: str, threads: int) -> dict[str, Any]:
    """Lints one network and checks each finding."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    model, x = network(name)
    report = torchalgo.lint(model, x)
    with torch.no_grad():
        alarms = list(map(check, report))
    return {
        "schema": 1,
        "network": name,
        "threads": threads,
        "call_us": round(report.call_us, 1),
        "alarms": alarms,
        "true": sum(alarm["is_true"] for alarm in alarms),
        "notes": [re.sub(r"/\S*/site-packages/", "", note) for note in report.notes],
    }


def show(line: harness.Record) -> None:
    kinds = [f"{a['kind']}{'' if a['is_true'] else ' (FALSE)'}" for a in line["alarms"]]
    print(f"{line['network']}: {', '.join(kinds) or 'no alarm'}", flush=True)


def main() -> int:
    parser = harness.make_parser(__doc__, OUT, can_resume=True)
    parser.add_argument("--nets", nargs="+", metavar="NAME", help="networks; default: all")
    parser.add_argument("--threads", type=harness.count, default=1, help="threads of torch")
    args = parser.parse_args()
    done = (
        harness.done_before(args.out, "network", {"threads": args.threads}) if args.resume else {}
    )
    has_timm = importlib.util.find_spec("timm") is not None
    names = args.nets or [*CLASSIFIERS, *(TIMM if has_timm else ())]
    if not has_timm:
        print("timm is not installed: networks of torchvision only", file=sys.stderr)
    outcome = harness.measure_each(
        run_one,
        {name: (name, args.threads) for name in names},
        out=args.out,
        limit_s=300.0,
        env=harness.thread_env(args.threads),
        done=done,
        show=show,
    )
    alarms = sum(len(line["alarms"]) for line in outcome.records)
    true = sum(line["true"] for line in outcome.records)
    nets = sum(bool(line["alarms"]) for line in outcome.records)
    print(
        f"{len(outcome.records)} networks, {nets} with alarms; {true} of {alarms} alarms are true"
    )
    for name, failure in outcome.failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    return max(outcome.status, int(alarms > 0 and true < GOAL * alarms))


if __name__ == "__main__":
    harness.run_script(main)
