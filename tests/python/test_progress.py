# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import io
import multiprocessing
import re
import threading
import time
from collections.abc import Callable

import pytest
import torch

import torchalgo
from support.nets import Net
from torchalgo._base.progress import Event, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def run(progress: Progress) -> None:
    progress.say("12 candidates")
    progress.start(3)
    for problem in ("a", "b", "c"):
        progress.advance(problem)
    progress.finish("planned")


def test_a_terminal_gets_one_bar_with_the_count_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchalgo._base.progress.BAR_EVERY_S", 0.0)
    stream = Terminal()
    run(Progress(True, stream))
    text = stream.getvalue()
    assert text.startswith("torchalgo: 12 candidates\n")
    assert "75 %  c" in text
    assert "100 %  planned" in text
    assert text.count("\n") == 2
    assert text.endswith("\n")


def test_a_file_gets_plain_lines_the_first_at_once_and_the_last() -> None:
    stream = io.StringIO()
    run(Progress(True, stream))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("torchalgo: tuning 33 %")
    assert lines[-1].startswith("torchalgo: tuning 100 %")
    assert "\r" not in stream.getvalue()


class Notebook(io.StringIO):
    """A stream like that of ipykernel, which shows text after "\\r" in its place."""

    __module__ = "ipykernel.iostream"

    def cell(self) -> list[str]:
        """The lines that the notebook shows in the end."""
        lines = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for part in line.split("\r"):
                shown = part + shown[len(part) :]
            lines.append(shown.rstrip())
        return lines


def test_a_notebook_gets_one_line_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchalgo._base.progress.NOTEBOOK_EVERY_S", 0.0)
    stream = Notebook()
    progress = Progress(True, stream)
    progress.say("12 candidates")
    progress.start(4)
    progress.advance("a long name of a problem " * 9)
    assert "\rtorchalgo: [######" in stream.getvalue()
    progress.advance("b")
    progress.say("a message")
    progress.advance("c")
    progress.finish("planned")
    first, message, bar, *rest = stream.cell()
    assert (first, message) == ("torchalgo: 12 candidates", "torchalgo: a message")
    assert bar.startswith(f"torchalgo: [{'#' * 24}] 100 %") and bar.endswith("planned")
    assert rest == [""] and max(map(len, stream.cell())) <= 100
    progress.close()
    assert stream.cell()[3:] == [""]


def test_a_bar_is_drawn_at_most_ten_times_a_second_but_its_end_always() -> None:
    stream = Terminal()
    run(Progress(True, stream))
    assert "75 %" not in stream.getvalue()
    assert "100 %  planned" in stream.getvalue()


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
        ("c", 3, 4),
        ("planned", 4, 4),
    ]


def test_the_total_is_a_guess_and_something_is_left_until_the_end() -> None:
    events = list[Event]()
    progress = Progress(events.append)
    progress.start(10)
    for step in range(40):
        progress.advance(str(step))
    assert all(event.done < event.total for event in events)
    assert min(event.share for event in events[9:]) > 0.9
    progress.finish("planned")
    assert events[-1].share == 1.0


def test_the_time_left_comes_from_the_pace_and_never_passes_the_deadline() -> None:
    now, events = [0.0], list[Event]()
    progress = Progress(events.append, now_s=lambda: now[0])
    progress.start(100)
    progress.doing("a")
    now[0] = 5.0
    progress.advance("a", 2)  # the worker's start: too little to tell
    now[0] = 10.0
    progress.advance("b", 18)
    progress.set_most(12.0)
    progress.doing("c")
    # 18 steps in the last 5 s, 80 are left: the worker's start does not count.
    assert [e.eta_s for e in events] == [None, None, pytest.approx(5 * 80 / 18), 12.0]
    assert [e.elapsed_s for e in events] == [0.0, 5.0, 10.0, 10.0]


def test_the_best_so_far_is_in_every_event_and_on_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchalgo._base.progress.BAR_EVERY_S", 0.0)
    stream, events = Terminal(), list[Event]()
    for progress in (Progress(events.append), Progress(True, stream)):
        progress.start(10)
        progress.advance("a", 5)
        progress.set_best(31_200.0)
        progress.doing("b")
        progress.close()
    assert [e.best_us for e in events] == [None, 31_200.0]
    assert "50 %, best 31.20 ms  b" in stream.getvalue()


def test_a_bar_starts_neither_a_thread_nor_a_process() -> None:
    before = {*threading.enumerate()}, [*multiprocessing.active_children()]
    run(Progress(True, Terminal()))
    assert ({*threading.enumerate()}, [*multiprocessing.active_children()]) == before


def test_a_message_goes_above_the_bar_and_the_bar_is_drawn_again() -> None:
    stream = Terminal()
    progress = Progress(True, stream)
    progress.start(10)
    progress.advance("a", 5)
    progress.say("learned from 3 costs")
    text = stream.getvalue()
    assert "\rtorchalgo: learned from 3 costs" in text
    assert text.rstrip().endswith("50 %  a")


def test_a_bar_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    progress = Progress(True, stream)
    progress.start(10)
    progress.advance("x" * 100, 5)
    assert max(map(len, stream.getvalue().splitlines())) == 60
    assert " 50 %" in stream.getvalue()


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    run(Progress(True, stream))
    assert "tuning 100 %: planned\n" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_line_of_a_bar_ends_when_the_call_raises() -> None:
    stream = Terminal()
    progress = Progress(True, stream)
    with pytest.raises(KeyboardInterrupt), progress.watched(lambda: "measure"):
        progress.start(10)
        progress.advance("a", 5)
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("\n")


def test_output_that_fails_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    for stream in (Gone(), Terminal()):
        progress = Progress(True, stream)
        run(progress)
        stream.close()
        run(progress)


def watchers() -> list[threading.Thread]:
    """Lists the threads that watch for silence; tests before may have left others."""
    return [t for t in threading.enumerate() if t.name == "torchalgo progress"]


def test_a_step_that_says_nothing_is_named_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchalgo._base.progress.SILENCE_S", 0.02)
    stream = io.StringIO()
    progress = Progress(True, stream)
    with progress.watched(lambda: "guard"):
        wait_for(lambda: stream.getvalue().count("\n") >= 2)
        inner = Progress(progress)
        inner.start(10)
        inner.advance("a", 5)
        wait_for(lambda: "tuning 50 %: timing the plan beside PyTorch" in stream.getvalue())
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"torchalgo: timing the plan beside PyTorch, \d+ s so far", lines[0])
    assert not watchers()


@pytest.mark.parametrize("target", [False, print])
def test_silence_and_a_function_of_the_caller_are_not_watched(
    target: bool | Callable[[Event], None],
) -> None:
    with Progress(target).watched(lambda: "guard"):
        assert not watchers()
    with Progress(True).watched(lambda: "guard"):
        assert len(watchers()) == 1


def test_a_closed_stderr_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchalgo._base.progress.SILENCE_S", 0.001)
    stream, asked = io.StringIO(), list[int]()

    def step() -> str:
        asked.append(1)
        return "guard"

    with Progress(True, stream).watched(step):
        stream.close()
        wait_for(lambda: len(asked) > 2)


def test_optimize_names_its_steps_while_they_run(
    net: Net, x: torch.Tensor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchalgo._base.progress.SILENCE_S", 0.002)
    monkeypatch.setattr("torchalgo._base.progress.LINE_EVERY_S", 0.0)
    torchalgo.optimize(net, x, settings=torchalgo.Settings(cost_db=False), budget_s=1)
    told = capsys.readouterr().err
    assert "torchalgo: reading the model" in told
    assert "tracing and freezing the model, 0 s so far" in told


def wait_for(is_so: Callable[[], bool], most_s: float = 30.0) -> None:
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_one_logger_tells_what_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    """TORCH_LOGS="+torchalgo" sets the level of this logger."""
    x = torch.rand(1, 3, 32, 32)
    with caplog.at_level("DEBUG", logger="torchalgo"):
        torchalgo.optimize(
            Net().eval(), x, settings=torchalgo.Settings(cost_db=False, progress=False), budget_s=5
        )
    told = [record.getMessage() for record in caplog.records if record.name == "torchalgo"]
    assert not any(record.name.startswith("torchalgo.") for record in caplog.records)
    assert any(re.fullmatch(r"fwd_\S+: \S+ \w+->\w+ takes [\d.]+ us", text) for text in told)
    assert any(text.endswith(" operations") and "candidates for" in text for text in told)
