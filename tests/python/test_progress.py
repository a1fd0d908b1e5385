# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import io

from torchalgo.progress import Event, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(progress: Progress) -> None:
    progress.say("12 candidates")
    progress.start(3)
    for problem in ("a", "b", "c"):
        progress.advance(problem)
    progress.close()


def test_a_terminal_gets_one_bar_with_the_count_and_the_time_left() -> None:
    stream = Terminal()
    run(Progress(True, stream))
    text = stream.getvalue()
    assert text.startswith("torchalgo: 12 candidates\n")
    assert "100 %, 0 s left  c" in text
    assert text.count("\n") == 2
    assert text.endswith("\n")


def test_a_file_gets_plain_lines_the_first_at_once() -> None:
    stream = io.StringIO()
    progress = Progress(True, stream)
    run(progress)
    progress.advance("more")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("torchalgo: tuning 33 %")
    assert lines[-1].startswith("torchalgo: tuning 100 %")
    assert "\r" not in stream.getvalue()


def test_silence_is_silent() -> None:
    stream = Terminal()
    run(Progress(False, stream))
    assert stream.getvalue() == ""


def test_a_function_gets_every_event_and_nothing_is_written() -> None:
    stream, events = Terminal(), list[Event]()
    run(Progress(events.append, stream))
    assert stream.getvalue() == ""
    assert [(e.text, e.done, e.total) for e in events] == [
        ("12 candidates", 0, 0),
        ("a", 1, 3),
        ("b", 2, 3),
        ("c", 3, 3),
    ]


def test_more_steps_than_announced_do_not_pass_the_end() -> None:
    events = list[Event]()
    progress = Progress(events.append)
    progress.start(1)
    progress.advance("a")
    progress.advance("b")
    assert [(e.done, e.total) for e in events] == [(1, 1), (1, 1)]
