# SPDX-License-Identifier: BSD-3-Clause
"""Distributes the measurements and checks of one tuning to ranks with devices of their own.

Rank 0 runs the loop of tuning.py unchanged. It distributes the candidates that the plan needs
next, and measures a part itself. The other ranks do their parts until rank 0 ends the tuning.
Messages between ranks are JSON.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchalgo import _C
from torchalgo._distributed.heartbeat import Ranks
from torchalgo._ir.costs import Cost, Key, Samples
from torchalgo._measure.process_bench import spelled
from torchalgo._measure.sampling import Asked, Bench, Sampler

# The number of families of candidates that each measuring rank gets at once. The time budget is
# checked in between.
LOT_PER_RANK = 8


@dataclass(frozen=True)
class Hardware:
    """The hardware on which a rank measures: the cores or the GPU of a host.

    Two ranks disturb each other if they share some of it.
    """

    host: str
    units: tuple[str, ...]

    @staticmethod
    def here(where: torch.device) -> Hardware:
        """Returns the hardware of this process, whose model is on `where`."""
        return Hardware(_host(), _units(where))

    def overlaps(self, other: Hardware) -> bool:
        return self.host == other.host and not set(self.units).isdisjoint(other.units)


def _host() -> str:
    """Returns an id of this machine, which all containers on it share.

    Containers have host names of their own, but they share the cores of one machine.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _units(where: torch.device) -> tuple[str, ...]:
    if where.type == "cuda":
        properties = torch.cuda.get_device_properties(where)
        return (str(getattr(properties, "uuid", where)),)
    if hasattr(os, "sched_getaffinity"):
        return tuple(f"core {core}" for core in sorted(os.sched_getaffinity(0)))
    return ("all cores",)


def choose_measuring_ranks(hardware: Sequence[Hardware]) -> list[int]:
    """Returns the ranks that measure. Of ranks that share hardware, only the first measures."""
    chosen: list[int] = []
    for rank, own in enumerate(hardware):
        if not any(own.overlaps(hardware[other]) for other in chosen):
            chosen.append(rank)
    return chosen


def divide_work(work: Sequence[float], count: int) -> list[list[int]]:
    """Divides pieces of work into `count` shares. Returns the indices of each share, ascending.

    The longest piece goes first, each to the share with the least work. The largest share is at
    most 4/3 of the best possible one.

    Source: Graham 1969, SIAM J. Appl. Math. 17(2), pp. 416-429, doi:10.1137/0117039.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    sums = [0.0] * count
    for index in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        least = sums.index(min(sums))
        shares[least].append(index)
        sums[least] += work[index]
    return [sorted(share) for share in shares]


# ---- rank 0 --------------------------------------------------------------------------------------


class MeasuringRanks:
    """The measuring ranks, to which rank 0 distributes work. Only rank 0 has this object."""

    def __init__(self, ranks: Ranks, numbers: Sequence[int], bench: Bench) -> None:
        """Sends nothing yet.

        Args:
            numbers: those of the measuring ranks; the first one is rank 0.
            bench: the functions with which rank 0 itself measures.
        """
        self._ranks, self._numbers, self._own = ranks, list(numbers), bench
        self._step = 0

    @property
    def lot(self) -> int:
        return LOT_PER_RANK * len(self._numbers)

    def bench(self) -> Bench:
        """Returns a bench for a Tuning, which measures and checks on all measuring ranks."""
        own = self._own
        return DistributedBench(**vars(own), measuring=self)

    def run(
        self, common: Mapping[str, Any], items: Sequence[Any], work: Sequence[float]
    ) -> list[Any]:
        """Distributes `items` to the measuring ranks and returns the answer to each item.

        Args:
            common: the fields that all items share.
            work: the expected work of each item.

        Raises: torchalgo.Error if a rank fails.
        """
        self._step += 1
        shares = divide_work(work, len(self._numbers))
        tasks = {
            str(rank): {**common, "items": [items[i] for i in share]}
            for rank, share in zip(self._numbers, shares, strict=True)
        }
        self._ranks.post(_task(self._step), tasks)
        answers: list[Any] = [None] * len(items)
        own = do_share(self._own, tasks["0"], self._ranks.check)
        others = [_result(self._step, rank) for rank in self._numbers[1:]]
        for share, results in zip(shares, [own, *self._ranks.receive(others)], strict=True):
            for index, result in zip(share, results, strict=True):
                answers[index] = result
        return answers

    def end(self, last: Any) -> None:
        """Tells the other ranks that there is no more work, and sends them `last`."""
        self._step += 1
        self._ranks.post(_task(self._step), {"last": last})


@dataclass(frozen=True)
class DistributedBench(Bench):
    """A bench whose samplers distribute the work to all measuring ranks."""

    measuring: MeasuringRanks | None = None

    def sampler(
        self, primitives: Mapping[Key, _C.Primitive], cold_bytes: int, seed: int
    ) -> Sampler:
        assert self.measuring is not None
        return DistributedSampler(self, self.measuring, primitives, cold_bytes, seed)


class DistributedSampler(Sampler):
    """A sampler that distributes families of candidates to the measuring ranks.

    One rank measures all candidates of a family, in interleaved rounds.
    """

    def __init__(
        self,
        bench: Bench,
        measuring: MeasuringRanks,
        primitives: Mapping[Key, _C.Primitive],
        cold_bytes: int,
        seed: int,
    ) -> None:
        super().__init__(bench, primitives, cold_bytes, seed)
        self._measuring = measuring
        self.lot = measuring.lot

    def take_all(
        self, visits: Sequence[Sequence[Key]], budget_s: float, again: bool = False
    ) -> dict[Key, Cost]:
        common = {
            "do": "take", "budget_s": budget_s, "again": again, "cold_bytes": self._cold_bytes,
            "seed": self._seed,
        }  # fmt: skip
        items = [[(*key, self._primitives[key].workspace_bytes) for key in keys] for keys in visits]
        work = [sum(_work(key.problem) for key in keys) for keys in visits]
        costs: dict[Key, Cost] = {}
        for taken, failures, samples, disturbed in self._measuring.run(common, items, work):
            costs.update((Key(*key), _cost(cost)) for key, cost in taken)
            self.failures.update((Key(*key), reason) for key, reason in failures)
            self.samples += samples
            self.disturbed += disturbed
        return costs

    def check_all(self, asked: Iterable[Asked]) -> Iterator[list[tuple[float, str]]]:
        groups = list(asked)
        items = [(problem, [spelled(p) for p in own], bound) for problem, own, bound in groups]
        work = [len(own) * _work(problem) for problem, own, _ in groups]
        answers = self._measuring.run({"do": "check"}, items, work)
        return ([(error, failure) for error, failure in results] for results in answers)


def _work(problem: str) -> float:
    """Returns the expected work of a visit. It is capped, since a visit's time is limited."""
    return min(1e9, 1e7 + _C.flop_count(problem))


# ---- the other ranks -----------------------------------------------------------------------------


def work_for_rank_0(ranks: Ranks, bench: Bench) -> Any:
    """Does the work that rank 0 sends to this rank. Returns rank 0's last message.

    Raises: torchalgo.Error if a rank fails.
    """
    step = 0
    bench.start()
    try:
        while True:
            step += 1
            [task] = ranks.receive([_task(step)], patience=2)
            if "last" in task:
                return task["last"]
            share = task.get(str(ranks.rank))
            if share is not None:
                ranks.post(_result(step, ranks.rank), do_share(bench, share, ranks.check))
    finally:
        bench.release()


def do_share(bench: Bench, share: Mapping[str, Any], check: Callable[[], None]) -> list[Any]:
    """Does one rank's part of a task and returns the answers.

    `check` is called before each item. It raises if another rank has failed.
    """
    do = _take if share["do"] == "take" else _check
    answers = []
    for item in share["items"]:
        check()
        answers.append(do(bench, share, item))
    return answers


def _take(bench: Bench, share: Mapping[str, Any], family: Sequence[Any]) -> Any:
    primitives = {
        Key(problem, name, src, dst): _C.Primitive(name, src, dst, workspace)
        for problem, name, src, dst, workspace in family
    }
    sampler = Sampler(bench, primitives, share["cold_bytes"], share["seed"])
    taken = sampler.take(list(primitives), share["budget_s"], share["again"])
    costs = [(key, _encoded(cost)) for key, cost in taken.items()]
    return costs, list(sampler.failures.items()), sampler.samples, sampler.disturbed


def _check(bench: Bench, _share: Mapping[str, Any], group: Sequence[Any]) -> Any:
    problem, primitives, bound = group
    return bench.check(problem, [_C.Primitive(*fields) for fields in primitives], bound)


# ---- spelling ------------------------------------------------------------------------------------


def _task(step: int) -> str:
    return f"task {step} of rank 0"


def _result(step: int, rank: int) -> str:
    return f"result {step} of rank {rank}"


def _encoded(cost: Cost) -> list[Any]:
    s = cost.samples
    samples = [s.n, s.median_ticks, s.p10_ticks, s.p90_ticks]
    return [cost.ticks, cost.noise_ticks, samples, cost.workspace_bytes, cost.is_disturbed]


def _cost(fields: Sequence[Any]) -> Cost:
    ticks, noise_ticks, samples, workspace_bytes, is_disturbed = fields
    return Cost(ticks, noise_ticks, Samples(*samples), workspace_bytes, is_disturbed)
