# SPDX-License-Identifier: BSD-3-Clause
"""Mutated lines of an exported database: dropped, or an entry with values that an entry can have.

Half of the changed lines get the checksum of what they say, so that each value is judged by itself.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

import isolated
from campaign import FindingError, main
from mutate import VALUES, mutated, mutated_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import database_faults
from torchalgo._db.row import Refusal, Row, checksum_of, columns_of, from_line, to_line
from torchalgo._ir.failures import KINDS

ROWS = [database_faults.make_row(database_faults.problem_of(1, i), 3) for i in range(4)]
REFUSALS = [Refusal(*ROWS[0].values[:6], kind, "a reason", 1e-5, "here", 7) for kind in KINDS]
ENTRIES = [*ROWS, *REFUSALS]
LINES = [to_line(entry) for entry in ENTRIES]
NUMBERS = (0, -1, 1, True, 2**53, 2**62, 2**63 - 1, 2**63, 1e308, -0.0, "1", None, [1])


def with_sound_checksum(rng: random.Random) -> str:
    entry = rng.choice(ENTRIES)
    fields, columns = json.loads(to_line(entry)), columns_of(type(entry))
    for name in rng.sample(columns, rng.choice((1, 1, 2, 4))):
        fields[name] = rng.choice(NUMBERS if rng.random() < 0.6 else VALUES)
    fields["checksum"] = checksum_of([fields[name] for name in columns])
    return json.dumps(fields)


def what_is_impossible(entry: Row | Refusal) -> str:
    """Names a value that no measurement and no check can give."""
    if isinstance(entry, Refusal):
        bound = entry.failure.bound
        return "a bound" if bound is not None and not math.isfinite(bound) else ""
    if not (0 < entry.cost.ticks < 2**63 and 0 <= entry.cost.noise_ticks < 2**63):
        return "a cost"
    if entry.samples < 0:
        return "a number of samples"
    return "an error" if entry.rel_error is not None and not entry.rel_error >= 0 else ""


def with_changes(rng: random.Random) -> str:
    line = rng.choice(LINES)
    if rng.random() < 0.5:
        return mutated(rng, line, LINES)
    return mutated_bytes(rng, line.encode()).decode(errors="surrogateescape")


def rows(seed: int) -> list[str]:
    rng = random.Random(seed)
    is_sound = rng.random() < 0.5
    line = with_sound_checksum(rng) if is_sound else with_changes(rng)
    entry = from_line(line)
    if entry is None:
        return ["dropped"]
    if from_line(to_line(entry)) != entry:
        raise FindingError(f"another entry when read again: {line[:300]!r}")
    if not is_sound and entry not in ENTRIES:
        raise FindingError(f"a changed line is read: {line[:300]!r}")
    if wrong := what_is_impossible(entry):
        raise FindingError(f"{wrong} that cannot be: {line[:300]!r}")
    return ["read"]


FUZZERS = {"rows": rows}

if __name__ == "__main__":
    main(__doc__, FUZZERS, isolated.results)
