# SPDX-License-Identifier: BSD-3-Clause
"""Invented records of benchmarks/bench_models.py."""

from __future__ import annotations

from typing import Any

OWN_US = 1000.0


def record(network: str = "alpha", threads: int = 1, **ratios: float | str) -> dict[str, Any]:
    """A record in which each engine takes `ratio` times torchalgo's time, or failed with a text."""
    engines: dict[str, Any] = {}
    wall: dict[str, list[float]] = {}
    factors: dict[str, float | str] = {
        "torchalgo": 1.0, "torchalgo_again": 1.0, "aten_only": 1.3, "local_optimum": 1.0,
        "best_single_layout": 1.1, "eager": 2.0, "channels_last": 1.5,
        "optimize_for_inference": 1.8, "inductor": 1.6, "onnxruntime": 1.4, "openvino": 1.2,
    }  # fmt: skip
    for name, factor in {**factors, **ratios}.items():
        if isinstance(factor, str):
            engines[name] = {"failure": factor}
            continue
        # Rounds differ by what hits all engines alike, and by what does not.
        noise = [1 + 0.002 * ((i + len(name)) % 5 - 2) for i in range(10)]
        wall[name] = [OWN_US * (1 + 0.1 * i) * factor * e for i, e in enumerate(noise)]
        engines[name] = {"version": "1.2"}
    engines["torchalgo"] = {"predicted_us": 900.0, "status": "optimal", "runs": "plan"}
    return {
        "schema": 1, "benchmark": "models", "network": network, "threads": threads,
        "rel_error": 2e-7, "engines": engines, "wall_us": wall,
        "cpu_us": {name: [2 * t for t in times] for name, times in wall.items()},
        "inner": 2, "load_before": 0.2, "load_after": 0.4, "date": "2026-01-02",
        "machine": {
            "cpu": "Some CPU", "isa": "avx512", "cores": 2, "memory_gib": 8.0, "torch": "2.11.0",
            "torchalgo": "0.1.0",
        },
        "git": {"commit": "abc1234", "dirty": False},
    }  # fmt: skip
