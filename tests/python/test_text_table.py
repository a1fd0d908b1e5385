# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import pytest

import torchalgo
from torchalgo import dynamo
from torchalgo._ir.plan.text_table import ShownAsText, cut, text_table
from torchalgo._plan.candidates import CandidateList


def test_cells_stand_in_columns_and_lines_end_without_spaces() -> None:
    rows = [("name", "us", "note"), ("a", "1000.5", ""), ("longer", "7.0", "x")]
    assert text_table(rows, right=(1,), indent="  ") == [
        "  name        us  note",
        "  a       1000.5",
        "  longer     7.0  x",
    ]


def test_a_column_without_text_takes_no_place() -> None:
    assert text_table([("a", "", "1"), ("b", "", "2")]) == ["a  1", "b  2"]
    assert text_table([]) == []
    assert text_table([("", "")]) == [""]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (100, "abcdefghijklmnopqrst  xxxxxxxxxxxxxxxxxxxx  end"),
        (44, "abcdefg..mnopqrst  xxxxxxxxxxxxxxxxxxxx  end"),
        (37, "abcde..pqrst  xxxxxxxx..xxxxxxxx  end"),
        (1, "a..st  xxx..xxx  end"),
    ],
)
def test_a_wide_table_is_cut_in_steps_down_to_their_least_widths(columns: int, line: str) -> None:
    rows = [("abcdefghijklmnopqrst", "x" * 20, "end")]
    assert text_table(rows, columns=columns, shrink=({0: 12}, {0: 5, 1: 8})) == [line]


def test_the_first_step_is_spent_before_the_next_column_is_cut() -> None:
    rows = [("abcdefghijklmnopqrst", "x" * 20)]
    (line,) = text_table(rows, columns=34, shrink=({0: 12}, {1: 8}))
    assert line == "abcde..pqrst  " + "x" * 20


def test_the_ends_of_a_text_stay() -> None:
    assert cut("cpu.winograd_f4x4_3x3.t14", 12) == "cpu.w..3.t14"
    assert cut("short", 5) == "short"


def test_no_width_of_a_terminal_changes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    (line,) = text_table([("a" * 60, "b" * 60)])
    assert line == "a" * 60 + "  " + "b" * 60


def test_notebooks_show_the_text_in_letters_of_one_width() -> None:
    class Shown(ShownAsText):
        def __str__(self) -> str:
            return "a  <b>\nc & d"

    shown = Shown()._repr_html_()
    assert shown.startswith('<pre style="white-space: pre;') and shown.endswith("</pre>")
    assert ">a  &lt;b&gt;\nc &amp; d<" in shown


@pytest.mark.parametrize(
    "kind",
    [
        CandidateList, dynamo.Report, torchalgo.CheckedPlan, torchalgo.Front, torchalgo.LintReport,
        torchalgo.Plan, torchalgo.Profile, torchalgo.TrainingPlan,
    ],
)  # fmt: skip
def test_what_print_explains_notebooks_show(kind: type) -> None:
    assert issubclass(kind, ShownAsText) and kind.__str__ is not object.__str__
