# SPDX-License-Identifier: BSD-3-Clause
"""The operations of bench_layers.py's records: their times, their bounds and what they lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness import Record
from torchalgo import _C
from torchalgo._base.stats import Faster, cost_of_samples, is_faster
from torchalgo._ir.problems import weight_count

Place = Literal["cold_us", "warm_us"]  # the samples with cold or with warm weights

OWN = ("cpu.", "view.")  # providers of ours
PLACES: tuple[Place, Place] = ("cold_us", "warm_us")
CONVOLUTIONS = ("stem", "depthwise", "grouped", "1x1", "kxk", "chain")


@dataclass(frozen=True)
class Line:
    """An operation with its times in us; None where an engine has none.

    Engines are compared with cold weights if these are most of the operation's bytes, else with
    warm ones: bench_layers.py tells why.
    """

    problem: str
    layers: list[str]
    place: Place  # the samples by which engines are compared
    own: str  # the fastest algorithm of ours; where there is none, ATen's
    own_us: dict[Place, float]
    algorithms: list[tuple[str, float]]  # all of ours, the fastest first
    aten_us: float | None
    openvino_us: dict[Place, float | None]
    ratio: Faster | None  # OpenVINO's time over ours, paired by round
    roofline_us: float
    limit: str

    @property
    def us(self) -> float:
        return self.own_us[self.place]

    @property
    def peer_us(self) -> float | None:
        """OpenVINO's."""
        return self.openvino_us[self.place]

    @property
    def count(self) -> int:
        return len(self.layers)

    @property
    def behind_us(self) -> float:
        """Returns the time that all its layers lose to the better of ATen and OpenVINO."""
        return self.count * max(0.0, self.us - min(self._others, default=self.us))

    @property
    def lost_us(self) -> float:
        """Returns the time that all its layers lose to the best of the others and the roofline."""
        return self.count * max(0.0, self.us - min([self.roofline_us, *self._others]))

    @property
    def family(self) -> str:
        return family_of(self.problem)

    @property
    def _others(self) -> list[float]:
        return [us for us in (self.aten_us, self.peer_us) if us is not None]


def roofline(
    problem: str, primitives: Sequence[Any], peaks: Any, cold_bytes: int
) -> dict[str, Any]:
    """The least time of a direct algorithm, in us, and what limits it."""
    works = [_C.least_work(problem, p) for p in primitives]
    flops, size = (max(work[i] for work in works) for i in (0, 1))
    weights = 4 * weight_count(problem)
    limits = {
        "flops": flops / peaks.flops_per_ns,
        "bytes": size / peaks.bandwidth(size),
        "weights": weights / peaks.bandwidth(max(weights, cold_bytes)) if weights else 0.0,
    }
    limit = max(limits, key=lambda name: limits[name])
    return {
        "flops": flops, "bytes": size, "weight_bytes": weights, "us": limits[limit] / 1000,
        "limit": limit,
    }  # fmt: skip


# ---- rows ----------------------------------------------------------------------------------------


def family_of(problem: str) -> str:
    """Returns the kind of work: one of CONVOLUTIONS, or the operation's word."""
    word, _, rest = problem.partition("_")
    if word != "fwd":
        return word
    numbers = rest.partition("+")[0].split("_")
    c = int(numbers[1].partition("c")[2].partition("h")[0])
    groups = int(numbers[-1].removeprefix("g"))
    if c <= 4:
        return "stem"
    if groups > 1:
        return "depthwise" if groups == c else "grouped"
    return "1x1" if "r1s1" in numbers[2] else "kxk"


def time_of(engine: Record | None, place: Place) -> float | None:
    """Returns the cost of an engine's samples: 0 for a view, None if it did not run."""
    if engine is None or "failure" in engine:
        return None
    if engine["primitive"].startswith("view."):
        return 0.0
    return cost_of_samples(engine[place])[0] if engine[place] else None


def line_of(row: Record) -> Line | None:
    """One row of a record; None if nothing of ours or ATen's ran."""
    engines: dict[str, Record] = row["engines"]
    roofline = row["roofline"]
    place: Place = "cold_us" if 2 * roofline["weight_bytes"] > roofline["bytes"] else "warm_us"
    times = {n: us for n, e in engines.items() if (us := time_of(e, place)) is not None}
    ours = sorted((us, name) for name, us in times.items() if name.startswith(OWN))
    aten = sorted((us, name) for name, us in times.items() if name.startswith("aten."))
    if not ours and not aten:
        return None
    us, own = (ours or aten)[0]
    openvino = engines.get("openvino")
    own_us = {each: time_of(engines[own], each) for each in PLACES}
    return Line(
        problem=row["problem"],
        layers=row["layers"],
        place=place,
        own=own,
        own_us={each: us if time is None else time for each, time in own_us.items()},
        algorithms=[(name, time) for time, name in ours],
        aten_us=aten[0][0] if aten else None,
        openvino_us={each: time_of(openvino, each) for each in PLACES},
        ratio=paired(openvino, engines[own], place),
        roofline_us=roofline["us"],
        limit=roofline["limit"],
    )


def paired(peer: Record | None, own: Record, place: Place) -> Faster | None:
    """The peer's times over ours; None where one of them did not run, or takes nothing."""
    if peer is None or "failure" in peer:
        return None
    times, others = peer[place], own[place]
    is_pair = len(times) == len(others) > 0 and all(us > 0 for us in [*times, *others])
    return is_faster(times, others) if is_pair else None


def lines_of(record: Record) -> list[Line]:
    """Returns all rows; the one that loses most comes first."""
    lines = [line for row in record["rows"] if (line := line_of(row)) is not None]
    return sorted(lines, key=lambda line: (-line.lost_us, -line.count * line.us))
