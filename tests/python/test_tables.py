# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark tables, from small invented records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import model_page
import readme_part
from harness import RESULTS, ROOT
from make_tables import PICTURE, main
from model_page import END, START
from pages import read_records
from support.model_records import record

README = f"# Title\n\n{START}\nold table\n{END}\n\nThe rest.\n"


class Files:
    """Where a test's records, page and README lie."""

    def __init__(self, folder: Path) -> None:
        self.records, self.page = folder / "records.jsonl", folder / "page.md"
        self.readme = folder / "README.md"
        self.readme.write_text(README)

    def make(self, *records: dict[str, Any], check: bool = False) -> int:
        self.records.write_text("".join(json.dumps(r) + "\n" for r in records))
        options = ["--page", str(self.page), "--readme", str(self.readme)]
        return main(["models", str(self.records), *options, *(["--check"] if check else [])])

    def said(self) -> str:
        """README's text on one line."""
        return " ".join(self.readme.read_text().split())

    def rows(self, network: str) -> list[list[str]]:
        """The cells of the page's rows of `network`, table by table, without the summary."""
        lines = self.page.read_text().partition("## How the times were taken")[2].splitlines()
        return [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in lines
            if line.startswith(f"| {network} |")
        ]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_win_is_a_ratio_with_an_interval_and_the_best_are_bold(files: Files) -> None:
    assert files.make(record()) == 0
    times, peers, gain, cpu = files.rows("alpha")
    assert times[1].startswith("**1.4") and times[3].startswith("**2.1")
    assert not any("**" in cell for cell in times[2:3] + times[4:])
    assert peers[2].startswith("1.50 [1.") and "**" not in peers[2]
    assert peers[4].startswith("1.2")  # OpenVINO, the better of the two
    assert peers[1] == peers[4]  # the best of all
    assert peers[6] == "2.0e-07"
    assert cpu[1] == peers[2]
    assert gain[4].startswith("1.30 [")


def test_the_faster_of_onnx_runtimes_two_ways_counts(files: Files) -> None:
    files.make(record(), record("beta", onnxruntime_spinning=1.1))
    alpha, beta = (files.rows(name) for name in ("alpha", "beta"))
    assert alpha[0][6].startswith("2.0") and beta[0][6].startswith("1.5")  # 1.4 and 1.1
    assert beta[1][1].startswith("1.10 [")  # the best of all is the spinning one
    text = files.page.read_text()
    assert "ONNX Runtime: timed with spinning off only" in text
    assert "ONNX Runtime: spinning on, the faster of on and off" in text
    files.make(record("beta", onnxruntime_spinning=1.1))
    assert (
        "ONNX Runtime (its idle threads spinning or asleep, the faster)" in files.page.read_text()
    )


def test_a_loss_is_shown_as_a_loss(files: Files) -> None:
    files.make(record(openvino=0.8, channels_last=0.9))
    peers = files.rows("alpha")[1]
    assert peers[2].startswith("0.90 [") and peers[2].endswith("**slower**")
    assert peers[4].startswith("0.80 [") and peers[4].endswith("**slower**")
    assert peers[1] == peers[4] and "**slower**" not in peers[3]
    text = files.page.read_text()
    assert "- OpenVINO on 1 of 1: alpha (0.80)" in text
    assert "- channels_last on 1 of 1: alpha (0.90)" in text
    assert "The lowest ratio to the fastest of them is 0.80, for alpha." in files.said()


def test_no_gain_is_said_as_no_difference(files: Files) -> None:
    files.make(record(local_optimum=1.0))
    assert files.rows("alpha")[2][3].endswith("no difference")


def test_few_rounds_prove_nothing(files: Files) -> None:
    short = record()
    short["wall_us"] = {name: times[:5] for name, times in short["wall_us"].items()}
    files.make(short)
    assert files.rows("alpha")[1][2].endswith("too few rounds")


def test_a_control_that_differs_and_a_large_error_are_marked(files: Files) -> None:
    files.make(record(torchalgo_again=1.2) | {"rel_error": float("nan")})
    peers = files.rows("alpha")[1]
    assert peers[5].endswith("**differs**")
    assert peers[6].endswith("**above 1e-05**")


def test_a_later_record_replaces_an_earlier_one_of_the_same_threads(files: Files) -> None:
    files.make(record(eager=3.0, channels_last=2.5), record(threads=2), record(channels_last=1.7))
    one, two = (files.rows("alpha")[i] for i in (1, 5))
    assert one[2].startswith("1.70 [")
    assert two[2].startswith("1.50 [")
    assert len(files.rows("alpha")) == 4 + 3  # CPU time is of one thread only


def test_a_failure_is_a_dash_with_a_footnote(files: Files) -> None:
    files.make(record(inductor="CppError: no <omp.h>"), record("beta", openvino="no | such op"))
    alpha, beta = files.rows("alpha"), files.rows("beta")
    assert alpha[0][5] == "-<sup>1</sup>" and beta[0][7] == "-<sup>3</sup>"
    assert alpha[1][3] == "-"
    text = files.page.read_text()
    assert "<sup>1</sup> Inductor: CppError: no &lt;omp.h&gt;" in text
    assert "<sup>3</sup> OpenVINO: no | such op" in text
    means = files.rows("geometric mean")[0]
    assert means[2] == "**1.50**" and means[3].endswith("(of 1)")


def test_a_baseline_that_runs_instead_of_the_plan_has_a_footnote(files: Files) -> None:
    one = record()
    one["engines"]["torchalgo"]["runs"] = "baseline"
    files.make(one)
    assert files.rows("alpha")[0][1].endswith("<sup>1</sup>")
    assert "<sup>1</sup> plain PyTorch was faster" in files.page.read_text()


def test_machine_and_versions_are_named_and_differences_shown(files: Files) -> None:
    other = record("beta")
    other["machine"]["torch"], other["git"]["dirty"] = "2.15.0", True
    files.make(record(), other)
    text = files.page.read_text()
    assert "Some CPU (avx512), 2 cores" in text and "OpenVINO 1.2" in text
    assert "commit abc1234; 2026-01-02 | alpha (1 thread)" in text
    assert "commit abc1234 with changes; 2026-01-02 | beta (1 thread)" in text


def test_only_the_part_between_readmes_markers_changes(files: Files) -> None:
    files.make(record(), record(threads=2), record("beta", threads=2))
    text = files.readme.read_text()
    before, rest = text.split(START)
    body, after = rest.split(END)
    assert before == "# Title\n\n" and after == "\n\nThe rest.\n"
    assert "old table" not in body and "](docs/images/models.svg)" in body
    assert "**1.20 times as fast as the fastest other engine**, and 1.50 times" in files.said()
    assert "2 networks with one image and 2 threads (Some CPU, AVX-512)" in files.said()


def test_the_first_table_of_the_page_has_the_networks_of_readme(files: Files) -> None:
    files.make(record(), record(threads=2), record("beta", threads=2))
    text = files.page.read_text().partition("## How the times were taken")[0]
    assert "(OpenVINO) | 1.4" in text and "| alpha |" in text
    assert "| geometric mean |  |  | **1.20** | **1.50** |" in text
    assert "ONNX Runtime (spinning off)" in text
    assert "comes from torchalgo's kernels: a factor of 1.30 in" in text


def test_the_picture_has_a_bar_for_each_engine_that_ran(files: Files) -> None:
    files.make(record(), record("beta", eager=3.0))
    picture = (files.page.parent / "images" / "models.svg").read_text()
    names = re.findall(r"<text [^>]*>(.*?): <tspan class=.bold.>([\d.]+)</tspan>", picture)
    assert [(name.partition(",")[0].partition(":")[0], mean) for name, mean in names] == [
        ("Fastest other engine", "1.20"), ("PyTorch", "1.50"), ("Local choice", "1.00"),
        ("Single layout", "1.10"), ("Plan of torchalgo", "1.00"),
    ]  # fmt: skip
    widths = {
        k: float(w) for k, w in re.findall(r'class="(\w+)" x="12" y="\d+" width="(.*?)"', picture)
    }
    assert widths["choice"] == pytest.approx(1.1 * widths["plan"], rel=1e-2)
    assert picture.count("<circle") == 4 * 2
    files.make(record(best_single_layout="none"))
    assert "Single layout" not in (files.page.parent / "images" / "models.svg").read_text()


def test_a_second_run_changes_nothing_and_check_writes_nothing(files: Files) -> None:
    assert files.make(record(), check=True) == 1
    assert not files.page.exists() and files.readme.read_text() == README
    assert files.make(record()) == 0
    written = files.page.read_text(), files.readme.read_text()
    assert files.make(record(), check=True) == 0
    assert files.make(record()) == 0
    assert (files.page.read_text(), files.readme.read_text()) == written
    assert files.make(record(eager=1.2), check=True) == 1


@pytest.mark.parametrize("text", ["no markers", f"{START} only", f"{END} {START}", README + README])
def test_missing_or_misplaced_markers_are_an_error_that_names_them(
    files: Files, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    files.readme.write_text(text)
    assert files.make(record()) == 2
    error = capsys.readouterr().err
    assert "README.md" in error and END in error
    assert not files.page.exists() and files.readme.read_text() == text


def test_unusable_records_are_an_error_that_says_where(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", str(files.records)]) == 2
    assert "records.jsonl" in capsys.readouterr().err
    assert files.make() == 2
    assert "no records" in capsys.readouterr().err
    assert files.make(record(), record() | {"schema": 9}) == 2
    assert "records.jsonl:2: schema 9" in capsys.readouterr().err
    files.records.write_text('{"schema": 1')
    assert main(["models", str(files.records)]) == 2
    assert "records.jsonl:1: no JSON" in capsys.readouterr().err


def test_readme_and_its_picture_are_those_of_the_records() -> None:
    records = [
        model_page.with_faster_runtime(record)
        for record in read_records([RESULTS / "models.jsonl"], "models")
    ]
    readme = (ROOT / "README.md").read_text()
    body = readme_part.make_readme(records, f"docs/{PICTURE}")
    again = "run python benchmarks/make_tables.py models"
    assert model_page.replace_table(readme, body) == readme, again
    assert (ROOT / "docs" / PICTURE).read_text() == readme_part.make_picture(records), again
