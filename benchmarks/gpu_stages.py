# SPDX-License-Identifier: BSD-3-Clause
"""The stages of gpu_check.py, in their order, and those that run a plan in other ways."""

from __future__ import annotations

import subprocess
import sys
import threading

import torch
from torch import nn

import torchalgo
from gpu_cudnn import deviceless, hidden, legacy, notes, plans, smoke
from gpu_here import deviceprop, env, import_
from gpu_mission import mission
from gpu_stage import Context, Outcome, Stage
from gpu_time import (
    compiled_nets,
    control,
    host,
    in_graph,
    layers,
    nets,
    table,
    transforms,
    without_guard,
)
from torchalgo._base.compare_outputs import output_error

# ---- 10-11: capture, threads, a fresh process --------------------------------------------------


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
    return net, without_guard(net, tuned, x), x


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


REPLAY = """
import sys, torch, torchalgo
model, tensors = torchalgo.load(sys.argv[1]), torch.load(sys.argv[2])
with torch.no_grad():
    result = model(tensors["x"].cuda())
fallbacks = torchalgo.fallbacks()
print("fallbacks", fallbacks)
sys.exit(0 if torch.equal(result.cpu(), tensors["expected"]) and not fallbacks else 1)
"""


def replay(context: Context) -> Outcome:
    """A saved module gives the same bits in a fresh process."""
    _, fast, x = planned_small_net(context)
    with torch.no_grad():
        expected = fast(x)
    model, tensors = context.out / "replay.pt", context.out / "replay_tensors.pt"
    fast.save(model)
    torch.save({"x": x.cpu(), "expected": expected.cpu()}, tensors)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(model), str(tensors)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    outcome = Outcome("the same bits in a fresh process", data={"stdout": done.stdout})
    outcome.expect(
        done.returncode == 0, f"a fresh process: {done.stdout[-300:]} {done.stderr[-600:]}"
    )
    return outcome


# In the order that loses least if time ends: what is here and whether it works; what it is worth;
# what cuDNN says. Each part is useful alone, and its budgets add up to less than 9 minutes.
STAGES = (
    Stage("env", "versions and clocks", 1, 20, env, needs_gpu=False),
    Stage("deviceprop", "the live device in JSON, beside its description", 1, 20, deviceprop),
    Stage("import", "the build, its rows, cuDNN without a device", 1, 20, import_, needs_gpu=False),
    Stage("mission", "legacy numbers and names run where asked, through each door", 1, 90, mission),
    Stage("smoke", "each kind of row in each direction and type", 1, 60, smoke),
    Stage("capture", "CUDA graphs, streams and threads", 1, 60, capture),
    Stage("transforms", "own layout changes: exact, and how fast", 1, 40, transforms),
    Stage("control", "A/A timing", 2, 30, control),
    Stage("layers", "per layer beside benchmark=True", 2, 150, layers),
    Stage("nets", "networks beside benchmark + channels_last + CUDA graphs", 2, 200, nets),
    Stage("host", "the time of the host to start a convolution, by engine", 2, 40, host),
    Stage("replay", "a saved module in a fresh process", 2, 60, replay),
    Stage("deviceless", "cuDNN offers the same described as by handle", 3, 60, deviceless),
    Stage("plans", "sampled plans run and agree with f64", 3, 150, plans),
    Stage("notes", "deterministic ones give the same bits", 3, 60, notes),
    Stage("legacy", "the legacy numbers: which run, how fast", 3, 60, legacy),
    Stage("hidden", "hidden copies as proved", 3, 60, hidden),
    Stage(
        "table", "the time of every candidate of a network", 2, 240, table, is_default=False,
    ),
    Stage(
        "compile", "networks beside torch.compile(max-autotune) too", 2, 480, compiled_nets,
        is_default=False,
    ),
)  # fmt: skip
