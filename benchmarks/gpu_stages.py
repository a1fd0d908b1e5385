# SPDX-License-Identifier: BSD-3-Clause
"""The stages of gpu_check.py, in their order, and those that run a plan in other ways."""

from __future__ import annotations

import threading

import torch
from torch import nn

import torchalgo
from gpu_baselines import baselines, without_guard
from gpu_cudnn import deviceless, hidden, notes, plans
from gpu_gaps import energy, fused, profile, refused, training
from gpu_graphs import in_graph
from gpu_here import cpu, deviceprop, env
from gpu_mission import mission
from gpu_stage import Context, Outcome, Stage
from gpu_tables import tables
from gpu_time import control, host, kernels, transforms
from torchalgo._base.compare_outputs import output_error


def small_net(seed: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, groups=64),
    )  # fmt: skip
    x = torch.rand(4, 3, 64, 64).to("cuda", torch.float16)
    return net.eval().to("cuda", torch.float16), x


def planned_small_net(context: Context) -> tuple[nn.Module, torchalgo.Optimized, torch.Tensor]:
    net, x = small_net(context.seed)
    tuned = torchalgo.optimize(
        net, (x,), budget_s=3.0 if context.quick else 10.0,
        settings=torchalgo.Settings(progress=False),
    )  # fmt: skip
    return net, without_guard(tuned, net, x), x


def capture(context: Context) -> Outcome:
    """A plan in a CUDA graph, on other streams and in several threads gives the same bits."""
    outcome = Outcome()
    net, fast, x = planned_small_net(context)
    with torch.no_grad():
        expected = fast(x).clone()
        error = output_error(expected, net(x))
        outcome.expect(error < 1.6e-2, f"the plan differs from the model by {error:.1e}")
        kept: list[torch.Tensor] = []
        replay = in_graph(lambda: kept.append(fast.scripted(x)))
        kept[-1].zero_()
        replay()
        torch.cuda.synchronize()
        outcome.expect(torch.equal(kept[-1], expected), "a replayed graph gives other bits")
        graphed = fast.captured()
        error = output_error(expected, graphed(x))
        outcome.expect(error < 1.6e-2, f"captured() differs from the plan by {error:.1e}")
        outcome.expect(graphed.captured_runs == 1, "captured() has captured nothing")
        outcome.data["captured"] = graphed.runs
    wrong: list[str] = []

    def work(index: int) -> None:
        stream = torch.cuda.Stream()
        for turn in range(20):
            with torch.cuda.stream(stream), torch.no_grad():
                result = fast(x)
            stream.synchronize()
            if not torch.equal(result, expected):
                wrong.append(f"thread {index}, turn {turn}")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.failures += [f"other bits in {where}" for where in wrong[:5]]
    outcome.summary = "graph replay and 8 threads on 8 streams agree" if not wrong else "threads"
    return outcome


# Parts 1 to 4 are a call each: their budgets add up to less than 9 minutes, and what is worth most
# comes first. Part 5 has passed on an H100.
STAGES = (
    Stage("env", "versions and clocks", 0, 20, env, needs_gpu=False),
    Stage(
        "tables",
        "costs of all candidates of networks, and plans in graphs",
        1,
        515,
        tables,
        resumes=True,
        quiet_s=120,
    ),
    Stage("host", "the time of the host to start a convolution, by engine", 2, 40, host),
    Stage(
        "baselines",
        "networks beside folded PyTorch and Inductor, all in graphs",
        2,
        475,
        baselines,
        resumes=True,
        quiet_s=240,
    ),
    Stage(
        "fused",
        "fused and run-time compiled engines agree with f64",
        3,
        100,
        fused,
        resumes=True,
        quiet_s=60,
    ),
    Stage("kernels", "own kernels agree with f64; their times beside ATen's", 3, 40, kernels),
    Stage("energy", "energy of legacy algorithms and networks", 3, 120, energy, resumes=True),
    Stage("training", "a training step agrees with f64", 3, 120, training, resumes=True),
    Stage("refused", "a plan whose engines are refused here", 3, 50, refused, resumes=True),
    Stage("profile", "torchalgo.profile, printed", 3, 90, profile, resumes=True, quiet_s=120),
    Stage(
        "cpu",
        "networks on the CPU beside PyTorch and ONNX Runtime",
        4,
        300,
        cpu,
        needs_gpu=False,
        resumes=True,
    ),
    Stage("deviceprop", "the live device in JSON, beside its description", 5, 20, deviceprop),
    Stage("mission", "legacy numbers and names run where asked, through each door", 5, 90, mission),
    Stage("capture", "CUDA graphs, streams and threads", 5, 40, capture),
    Stage("transforms", "own layout changes: exact, and how fast", 5, 40, transforms),
    Stage("control", "A/A timing", 5, 20, control),
    Stage("deviceless", "cuDNN offers the same described as by handle", 5, 40, deviceless),
    Stage("plans", "sampled plans run and agree with f64", 5, 120, plans),
    Stage("notes", "deterministic ones give the same bits", 5, 30, notes),
    Stage("hidden", "hidden copies as proved", 5, 40, hidden),
)
