# SPDX-License-Identifier: BSD-3-Clause
"""Rows of the cost database: checksums, the rule of merging, environments."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import pytest
import torch

from support.db_samples import ROW
from torchalgo import _C
from torchalgo._db import Environment, Row
from torchalgo._db.row import MAX_TICKS, columns_of, entry_of, from_line, join, to_line


def test_a_row_comes_back_from_its_values_and_from_its_line() -> None:
    assert entry_of(Row, ROW.values, ROW.checksum) == ROW
    assert from_line(to_line(ROW)) == ROW


def test_a_change_of_any_column_is_a_miss() -> None:
    for i, name in enumerate(columns_of(Row)):
        for other in (123, "123", None, 1.5, b"x", True, -1):
            values = [*ROW.values]
            if values[i] == other:
                continue
            values[i] = other
            assert entry_of(Row, values, ROW.checksum) is None, name


@pytest.mark.parametrize(
    "change",
    [
        {"ticks": 0}, {"ticks": -1}, {"ticks": MAX_TICKS + 1}, {"ticks": float("nan")},
        {"ticks": 7.0}, {"ticks": True}, {"noise_ticks": -1}, {"samples": -3},
        {"rel_error": float("nan")}, {"rel_error": float("inf")}, {"rel_error": -1.0},
        {"rel_error": 1}, {"workspace_bytes": -1}, {"workspace_bytes": 1 << 63},
        {"primitive": "cpu.\x1b[31m"}, {"provenance": "x" * 5000}, {"problem": "a\nb"},
    ],
)  # fmt: skip
def test_a_row_that_no_measurement_makes_is_a_miss_though_its_checksum_is_right(
    change: dict[str, object],
) -> None:
    row = dataclasses.replace(ROW, **change)  # type: ignore[arg-type]
    assert not row.is_sane
    try:
        checksum = row.checksum
    except ValueError:  # NaN has no checksum
        checksum = ""
    assert entry_of(Row, row.values, checksum) is None


def test_a_line_that_is_cut_edited_or_foreign_is_a_miss() -> None:
    line = to_line(ROW)
    fields = json.loads(line)
    lines = [
        *(line[:n] for n in range(0, len(line), 7)),
        line.replace('"ticks": 7', '"ticks": 1'),
        json.dumps(fields | {"schema": 2}),
        json.dumps(fields | {"more": 1}),
        json.dumps({k: v for k, v in fields.items() if k != "ticks"}),
        "[" * 100_000, "[]", "null", '{"schema": 1}', "\x00", "NaN",
    ]  # fmt: skip
    assert [from_line(text) for text in lines] == [None] * len(lines)


def test_join_is_commutative_associative_and_idempotent() -> None:
    rng = random.Random(3)
    for _ in range(300):
        a, b, c = (
            dataclasses.replace(
                ROW,
                ticks=rng.randrange(1, 4),
                samples=rng.randrange(3),
                measured_at=rng.randrange(3),
            )
            for _ in range(3)
        )
        assert join(a, b) == join(b, a)
        assert join(a, join(b, c)) == join(join(a, b), c)
        assert join(a, a) == a
        assert join(a, b).samples == max(a.samples, b.samples)


# ---- environments --------------------------------------------------------------------------------


def _other(environment: Environment, **facts: str) -> Environment:
    return dataclasses.replace(environment, facts={**environment.facts, **facts})


def test_another_torch_leaves_own_kernels_and_changes_atens() -> None:
    here = Environment.of()
    for changed in (
        _other(here, torch="9.9"), _other(here, onednn="v9"), _other(here, flags="none"),
    ):  # fmt: skip
        for own in ("cpu.direct", "cpu.winograd_f4x4_3x3.t14", "layout.tiled"):
            assert changed.text_of(own) == here.text_of(own)
        for aten in ("aten.conv", "aten.prepacked", "layout.aten", "unheard.of"):
            assert changed.text_of(aten) != here.text_of(aten)


def test_threads_instructions_and_cpu_change_every_row() -> None:
    here = Environment.of()
    for name in ("threads", "isa", "cpu", "cpu_id", "weights"):
        changed = _other(here, **{name: "other"})
        for primitive in here.versions:
            assert changed.text_of(primitive) != here.text_of(primitive), (name, primitive)


def test_the_number_of_threads_and_onednns_switch_are_part_of_it() -> None:
    before, threads = Environment.of(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert Environment.of().text_of("cpu.direct") != before.text_of("cpu.direct")
    finally:
        torch.set_num_threads(threads)
    torch._C._set_mkldnn_enabled(False)  # mkldnn.flags sets what only other builds have
    try:
        assert Environment.of().text_of("aten.conv") != before.text_of("aten.conv")
        assert Environment.of().text_of("cpu.direct") == before.text_of("cpu.direct")
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert Environment.of() == before


def test_rows_of_a_gpu_depend_on_what_their_library_sees() -> None:
    facts = dict.fromkeys(
        ("gpu", "isa", "driver", "cuda", "cudnn", "torch", "flags", "weights"), "1"
    )
    here = Environment(facts, dict(_C.algorithms()))
    sees = {
        "layout.cuda_tiled": {"gpu", "isa", "driver", "weights"},
        "cudnn9.conv.e22{KNOB=1}": {"gpu", "isa", "driver", "weights", "cuda", "cudnn"},
        "cudnn_legacy.fwd.1": {"gpu", "isa", "driver", "weights", "cuda", "cudnn"},
        "aten.conv": set(facts),
    }
    for (primitive, seen), fact in itertools.product(sees.items(), facts):
        is_changed = _other(here, **{fact: "2"}).text_of(primitive) != here.text_of(primitive)
        assert is_changed == (fact in seen), (primitive, fact)


def test_the_version_is_that_of_the_algorithm_with_the_longest_name() -> None:
    here = Environment({}, {"cpu.conv": 1, "cpu.conv.fast": 2})
    assert here.version_of("cpu.conv.fast.t1") == 2
    assert here.version_of("cpu.conv{A=1}") == 1
    assert here.version_of("cpu.convolution") is None
