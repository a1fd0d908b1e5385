# SPDX-License-Identifier: BSD-3-Clause
"""Short runs of the fuzzers of proofs, and the records of the long ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

import campaign
import fuzz_proofs

CASES = {"certificates": 9_000, "solver": 3_000, "plans": 1_800}


@pytest.mark.parametrize("name", sorted(fuzz_proofs.FUZZERS))
def test_a_short_campaign_finds_nothing(name: str) -> None:
    record = campaign.campaign(name, fuzz_proofs.FUZZERS[name], seed=10**9, cases=CASES[name])
    campaign.check_record(record)
    assert record["findings"] == 0
    accepted = sum(n for outcome, n in record["outcomes"].items() if "accepted" in outcome)
    assert accepted > CASES[name] / 20 and record["outcomes"]["refused"] > CASES[name] / 2


def test_the_fuzzer_of_certificates_finds_an_unsound_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that lets costs move from a node to itself is caught."""
    state = fuzz_proofs.check_certificate.State
    sound = state.add

    def unsound(self: Any, order: tuple[int, ...], cells: list[int]) -> None:
        if len(set(order)) == len(order):
            sound(self, order, cells)
        else:
            self.tables[order] = 0, {}, [-1]  # the costs are not subtracted

    monkeypatch.setattr(state, "add", unsound)
    fuzzer = fuzz_proofs.FUZZERS["certificates"]
    assert campaign.campaign("unsound", fuzzer, seed=0, cases=15_000)["findings"] > 0


def test_records_add_up() -> None:
    files = sorted(campaign.RECORDS.glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    for record in records:
        campaign.check_record(record)
    cases = {name: sum(r["cases"] for r in records if r["fuzzer"] == name) for name in CASES}
    assert cases["certificates"] >= 10**6 and min(cases.values()) >= 200_000
    record = campaign.campaign("certificates", fuzz_proofs.certificates, seed=0, cases=1)
    for odd in ({"cases": record["cases"] + 1}, {"findings": 1}, {"seed_to": None}, {"more": 1}):
        with pytest.raises(ValueError, match="record: "):
            campaign.check_record({**record, **odd})
