# SPDX-License-Identifier: BSD-3-Clause
"""Distributes the measurements and checks of one tuning to ranks with devices of their own.

Rank 0 runs the loop of tuning.py unchanged. It distributes the candidates that the plan needs
next, and measures a part itself. The other ranks do their parts until rank 0 ends the tuning.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from torchalgo import _C
from torchalgo._distributed.ranks import LostError, Ranks, SharedError, interrupts_wait
from torchalgo._ir.costs import Cost, Key
from torchalgo._measure.process_bench import spelled
from torchalgo._measure.sampling import Asked, Bench, Sampler

T = TypeVar("T")

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
    return tuple(f"core {core}" for core in sorted(os.sched_getaffinity(0)))


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


def lead(ranks: Ranks, make_plan: Callable[[], T], text_of: Callable[[T], str]) -> T:
    """Returns the result of `make_plan`, and ends `follow` on the other ranks.

    They get `text_of` the result, or the error of `make_plan`.
    """
    try:
        result = make_plan()
    except (SharedError, LostError):
        raise
    except BaseException as problem:
        failure = ranks.failure(problem)
        ranks.broadcast({"failure": failure})
        if isinstance(problem, Exception):
            raise SharedError(failure) from problem
        raise
    ranks.broadcast({"plan": text_of(result)})
    return result


@dataclass(frozen=True, kw_only=True)
class DistributedBench(Bench):
    """A bench of rank 0, whose samplers distribute the work to the measuring ranks."""

    own: Bench  # the bench with which rank 0 itself measures
    ranks: Ranks
    measuring: Sequence[int]

    @staticmethod
    def of(own: Bench, ranks: Ranks, measuring: Sequence[int]) -> DistributedBench:
        return DistributedBench(**vars(own), own=own, ranks=ranks, measuring=measuring)

    def sampler(self, primitives: Mapping[Key, _C.Primitive], cold_bytes: int) -> Sampler:
        return DistributedSampler(self, primitives, cold_bytes)

    def run(
        self, common: Mapping[str, Any], items: Sequence[Any], work: Sequence[float]
    ) -> list[Any]:
        """Distributes `items` to the measuring ranks and returns the answer to each item.

        Args:
            common: the fields that all items share.
            work: the expected work of each item.

        Raises: torchalgo.Error, the same on all ranks, if one of them fails.
        """
        shares = divide_work(work, len(self.measuring))
        of_rank = dict(zip(self.measuring, shares, strict=True))
        shared = {rank: [items[i] for i in share] for rank, share in of_rank.items()}
        task = {**common, "shares": shared}
        with interrupts_wait():
            self.ranks.broadcast(task)
            results = do_share(self.ranks, self.own, task)
        answers: dict[int, Any] = {}
        for rank, share in of_rank.items():
            answers.update(zip(share, results[rank], strict=True))
        return [answers[i] for i in range(len(items))]


class DistributedSampler(Sampler):
    """A sampler that distributes families of candidates to the measuring ranks.

    One rank measures all candidates of a family, in interleaved rounds.
    """

    def __init__(
        self, bench: DistributedBench, primitives: Mapping[Key, _C.Primitive], cold_bytes: int
    ) -> None:
        super().__init__(bench, primitives, cold_bytes)
        self._run = bench.run
        self.lot = LOT_PER_RANK * len(bench.measuring)

    def take_all(
        self, visits: Sequence[Sequence[Key]], budget_s: float, again: bool = False
    ) -> dict[Key, Cost]:
        common = {"budget_s": budget_s, "again": again, "cold_bytes": self._cold_bytes}
        items = [[(key, *spelled(self._primitives[key])) for key in keys] for keys in visits]
        work = [sum(_work(key.problem) for key in keys) for keys in visits]
        costs: dict[Key, Cost] = {}
        for taken, failures, samples, disturbed in self._run(common, items, work):
            costs.update(taken)
            self.failures.update(failures)
            self.samples += samples
            self.disturbed += disturbed
        return costs

    def check_all(self, asked: Iterable[Asked]) -> Iterator[list[tuple[float, str]]]:
        items = [(problem, [spelled(p) for p in own], bound) for problem, own, bound in asked]
        work = [len(own) * _work(problem) for problem, own, _ in items]
        return iter(self._run({}, items, work))


def _work(problem: str) -> float:
    """Returns the expected work of a visit. It is capped, since a visit's time is limited."""
    return min(1e9, 1e7 + _C.flop_count(problem))


# ---- all ranks -----------------------------------------------------------------------------------


def follow(ranks: Ranks, bench: Bench) -> str:
    """Does the work that rank 0 sends to this rank. Returns the text of rank 0's plan.

    Raises: torchalgo.Error, the same on all ranks, if one of them fails.
    """
    bench.start()
    try:
        while True:
            task = ranks.broadcast()
            if "failure" in task:
                raise SharedError(task["failure"])
            if "plan" in task:
                return str(task["plan"])
            do_share(ranks, bench, task)
    finally:
        bench.release()


def do_share(ranks: Ranks, bench: Bench, task: Mapping[str, Any]) -> list[list[Any]]:
    """Does this rank's part of a task. Returns the answers of each rank, on all ranks."""
    do = _take if "budget_s" in task else _check
    with ranks.step():
        answers = [do(bench, task, item) for item in task["shares"].get(ranks.rank, [])]
    return ranks.gather(answers)


def _take(bench: Bench, task: Mapping[str, Any], family: Sequence[Any]) -> Any:
    primitives = {key: _C.Primitive(*fields) for key, *fields in family}
    sampler = Sampler(bench, primitives, task["cold_bytes"])
    taken = sampler.take(list(primitives), task["budget_s"], task["again"])
    return taken, sampler.failures, sampler.samples, sampler.disturbed


def _check(bench: Bench, _: Mapping[str, Any], group: Sequence[Any]) -> Any:
    problem, primitives, bound = group
    return bench.check(problem, [_C.Primitive(*fields) for fields in primitives], bound)
