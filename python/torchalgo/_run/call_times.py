# SPDX-License-Identifier: BSD-3-Clause
"""The times of whole calls: of a plan, and of PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchalgo._base.stats import Faster, is_faster, percentile_95
from torchalgo._C import Error
from torchalgo._ir.plan import MOST_WAITING
from torchalgo._ir.plan.text_table import ShownAsText, text_table


@dataclass(frozen=True)
class CallTimes(ShownAsText):
    """Times of whole calls, which took turns in rounds. `print` shows a table.

    `Optimized.compare` and `CapturedCalls.compare` measure them.

        times = fast.compare()
        print(times.ratios["eager"].ratio)
    """

    ns: Mapping[str, Sequence[float]]  # by what ran, torchalgo first; the lists have equal lengths
    failures: Mapping[str, str] = field(default_factory=dict)  # what did not run, and why
    waited: float = 0.0  # the share of the time in which other programs had the processors

    @property
    def ratios(self) -> Mapping[str, Faster]:
        """For each other way: its time divided by that of torchalgo, the median of the rounds.

        Above 1, torchalgo is faster.
        """
        own, *others = self.ns
        return {name: is_faster(self.ns[name], self.ns[own]) for name in others}

    def records(self) -> list[dict[str, Any]]:
        """Returns a dict for each line of the table, the shortest median first.

        `ratio` is that of `ratios`, with its 95 % interval from `low` to `high`.
        """
        ratios = self.ratios
        found = []
        for name, ns in sorted(self.ns.items(), key=lambda item: statistics.median(item[1])):
            record: dict[str, Any] = {
                "name": name,
                "median_ms": statistics.median(ns) / 1e6,
                "min_ms": min(ns) / 1e6,
                "p95_ms": percentile_95(ns) / 1e6,
            }
            if (it := ratios.get(name)) is not None:
                record |= {"ratio": it.ratio, "low": it.low, "high": it.high}
            found.append(record)
        return found

    def __str__(self) -> str:
        own = next(iter(self.ns))
        rows = [("what runs", "ms", "shortest", "95th perc.", f"over {own}", "95 % interval")]
        for it in self.records():
            ratios = ("", "")
            if "ratio" in it:
                ratios = f"{it['ratio']:.2f}x", f"{it['low']:.2f} to {it['high']:.2f}"
            times = (f"{it[key]:.3f}" for key in ("median_ms", "min_ms", "p95_ms"))
            rows.append((it["name"], *times, *ratios))
        lines = text_table(rows, right=(1, 2, 3, 4, 5))
        lines += [f"{name}: {why}" for name, why in self.failures.items()]
        if self.waited > MOST_WAITING:
            lines.append(
                f"other programs had the processors for {self.waited:.0%} of the time, so these"
                " times are too long: end them, or give torch fewer threads"
            )
        return "\n".join(lines)


def check_times(rounds: int, budget_s: float) -> None:
    """Raises torchalgo.Error unless `rounds` is an int and `budget_s` a number, both above 0."""
    if type(rounds) is not int or rounds < 1:
        raise Error(f"TA1001 compare: rounds={rounds!r}, expected a whole number above 0")
    if type(budget_s) not in (int, float) or not budget_s > 0:
        raise Error(
            f"TA1001 compare: budget_s={budget_s!r}, expected a number of seconds above 0, such as"
            " 20"
        )
