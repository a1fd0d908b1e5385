# SPDX-License-Identifier: BSD-3-Clause
"""A step that ends early, for want of memory or by a signal, leaves the model usable."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PRELUDE = """
    import copy, resource, signal, sys, threading, time
    import torch
    import torchalgo
    from support.training_models import Chain, images

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    torch.manual_seed(0)
    torch.set_num_threads(1)  # other tests run beside this process
    shape = (4, 64, 128, 128)
    model = Chain(64)
    eager = copy.deepcopy(model)
    settings = torchalgo.Settings(cost_db=False, progress=False, run_untimed=True)
    planned = torchalgo.optimize_training(
        model, (images(*shape),), budget_s=3.0, settings=settings
    )

    def step(model, x):
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def check_next_step(x):
        for run in (planned, eager):
            step(run, x)
        for own, other in zip(planned.parameters(), eager.parameters(), strict=True):
            assert (own.grad - other.grad).norm() <= 1e-3 * other.grad.norm() + 1e-6
        assert planned.planned_runs >= 2

    before = copy.deepcopy(dict(planned.named_parameters()))

    def check_parameters():
        for name, value in planned.named_parameters():
            assert torch.equal(value, before[name]), name
"""


def run(body: str) -> None:
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(body)
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "done" in done.stdout


def test_want_of_memory_in_a_step_is_an_error_and_the_next_step_works() -> None:
    run(
        """
        x = images(*shape)
        step(planned, x)
        big = images(32, *shape[1:])
        own = torchalgo.optimize_training(
            copy.deepcopy(model), (big,), plan=None, budget_s=0.5, settings=settings
        )
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        failures = 0
        for more in (16, 200, 300, 400):  # MB: in the forward pass, and in the backward pass
            resource.setrlimit(resource.RLIMIT_AS, (used + more * 2**20, hard))
            try:
                step(own, big)
            except (RuntimeError, MemoryError) as problem:
                failures += 1
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        assert failures >= 1
        check_parameters()
        step(own, big)
        assert all(torch.isfinite(p.grad).all() for p in own.parameters())
        check_next_step(x)
        print("done")
        """
    )


def test_ctrl_c_in_a_step_leaves_the_parameters_and_the_next_step_works() -> None:
    run(
        """
        x = images(*shape)
        interrupted = 0
        for wait in (0.001, 0.003, 0.01, 0.02, 0.04):
            timer = threading.Timer(wait, signal.raise_signal, (signal.SIGINT,))
            try:
                timer.start()
                for _ in range(50):
                    step(planned, x)
            except KeyboardInterrupt:
                interrupted += 1
            while timer.is_alive():
                time.sleep(0.001)
        assert interrupted >= 4  # Python drops one that comes while it deletes an object
        check_parameters()
        check_next_step(x)
        print("done")
        """
    )
