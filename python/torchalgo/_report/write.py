# SPDX-License-Identifier: BSD-3-Clause
"""Writes reports to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchalgo import Error
from torchalgo._base.write_file import write_file
from torchalgo._ir.plan import plans_to_json
from torchalgo._report.page import html_page
from torchalgo._report.subject import Subject
from torchalgo._report.texts import text_report

SUFFIXES = (".html", ".txt", ".json")


def write_report(subjects: Sequence[Subject], path: Path, title: str = "") -> None:
    """Writes a report to `path`, in the format of its suffix: .html, .txt or .json.

    Args:
        title: the name of the model or of its file, for the page's title. Empty: not known.

    Raises: torchalgo.Error for any other suffix, or if the file cannot be written.
    """
    suffix, plans = path.suffix.lower(), [subject.plan for subject in subjects]
    if suffix not in SUFFIXES:
        raise Error(
            f"TA2010 report: {path} ends in {path.suffix!r}, expected one of {', '.join(SUFFIXES)}"
        )
    if suffix == ".html":
        text = html_page(subjects, title)
    else:
        text = text_report(plans) if suffix == ".txt" else plans_to_json(plans)
    write_file(path, text, "report")
