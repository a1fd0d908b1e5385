# SPDX-License-Identifier: BSD-3-Clause
"""Measures cases in child processes and keeps their records: what all benchmarks share.

Each case runs in a process of its own. So a case that crashes or hangs ends alone, and no case
finds the caches or the threads of the one before. A case that fails is followed by a line that
starts with `repro:`. It is the exact command that runs this case again and prints its result:

    python benchmarks/harness.py bench_models.run_one '["resnet18", {"threads": 1}]'

The command calls the function `run_one` of benchmarks/bench_models.py with these arguments. The
result is printed as JSON; nothing is written. What the case takes depends on the function.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import importlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from drafts import RESULTS as RESULTS
from drafts import ROOT as ROOT
from drafts import DraftAction
from drafts import git_state as git_state
from drafts import place_of as place_of

PARENT = "TORCHALGO_BENCH_PARENT"  # set in a child: the process with which it ends
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

Record = dict[str, Any]

# ---- records -------------------------------------------------------------------------------------


def machine_state() -> Record:
    """Returns the processor and what else it has to do now."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def versions_of(*libraries: str) -> dict[str, str | None]:
    """Returns the versions of installed libraries; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for library in libraries:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return found


def stamp() -> Record:
    """Returns what each record says of the machine, the versions and the commit."""
    package = (ROOT / "python" / "torchalgo" / "_version.py").read_text()
    return {
        **git_state(),
        **machine_state(),
        "date": datetime.date.today().isoformat(),
        "torch": versions_of("torch")["torch"],
        "torchalgo": package.rpartition("=")[2].strip().strip('"'),
    }


def stamped(line: Mapping[str, Any]) -> Record:
    """Returns the record with the parts of `stamp` that it lacks, also in its "git", "machine" and
    "versions"."""
    inner = [line.get(part, {}) for part in ("git", "machine", "versions")]
    known = {*line, *(key for part in inner for key in part)}
    return {**line, **{key: value for key, value in stamp().items() if key not in known}}


def record(
    path: Path,
    line: Mapping[str, Any],
    show: Callable[[Record], None] = lambda line: print(json.dumps(line), flush=True),
) -> Record:
    """Appends a record, stamped, to a file of JSON lines, shows it and returns it.

    The record is on disk when this returns. A torn last line of a killed run is closed first.
    Raises: SystemExit if the tree has changes; see drafts.py.
    """
    whole, path = stamped(line), place_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(whole).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    show(whole)
    return whole


def bf16_of(line: Record) -> str:
    """Returns the instructions for bf16 of the machine of a line, "none" without any.

    Older lines say only whether there is AMX. The first ones do not say this; theirs had.
    """
    machine = line["machine"]
    return machine.get("bf16_isa", "amx" if machine.get("amx", True) else "") or "none"


def read_lines(path: Path) -> list[Record]:
    """Returns the records of a file, none if there is no file. Leaves out a line that is torn."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def done_before(path: Path, key: str, same: Mapping[str, Any]) -> dict[str, Record]:
    """Returns the last record of each case in `path` that this commit wrote with these settings.

    Args:
        key: the field with the name of the case.
        same: the settings, by field.
    """
    wanted = {**same, "commit": git_state()["commit"]}
    found = {}
    for line in read_lines(place_of(path)):
        fields = {**line.get("git", {}), **line}
        if key in line and all(fields.get(name) == value for name, value in wanted.items()):
            found[str(line[key])] = line
    return found


# ---- one child -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The values that a child gave: one, or several if its function is a generator."""

    values: list[Any]
    failure: str = ""  # why it ended early; empty if it did not


def function_name(function: Callable[..., Any]) -> str:
    """Returns "module.function", with the file's name for a module that runs as a script."""
    module = function.__module__
    if module == "__main__":
        module = Path(str(sys.modules["__main__"].__file__)).stem
    return f"{module}.{function.__qualname__}"


def repro_line(
    function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None
) -> str:
    """Returns the line that tells how to run one case again."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    words = ["benchmarks/harness.py", function_name(function), json.dumps(arguments)]
    return " ".join(["repro:", *settings, "python", *map(shlex.quote, words)])


def script_line(script: str, *words: object) -> str:
    """Returns the line that tells how to run a script again for one case."""
    return f"repro: python benchmarks/{script} {shlex.join(map(str, words))}"


def child_of(
    function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Returns the command of a child that prints what a function gives, and its environment."""
    words = [function_name(function), json.dumps(arguments)]
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    return command, {**os.environ, **(env or {}), PARENT: str(os.getpid())}


def run_child(
    function: Callable[..., Any],
    *arguments: Any,
    limit_s: float,
    env: Mapping[str, str] | None = None,
) -> Answer:
    """Runs `function(*arguments)` in a process of its own and returns what it gave.

    Arguments and values are JSON. What the child prints goes to this process's stderr. After
    `limit_s` seconds the child is killed, with all processes that it started.
    """
    command, environment = child_of(function, *arguments, env=env)
    process = subprocess.Popen(
        command, env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=limit_s)
        failure = f"ended with {ending_of(process.returncode)}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        kill_group(process)
        out, _ = process.communicate()
        failure = f"did not end within {limit_s:.3g} s"
    finally:
        kill_group(process)
    values: list[Any] = []
    for line in out.splitlines():
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            failure = failure or f"gave {line[:80]!r}, expected JSON"
    return Answer(values, failure or ("" if values else "gave no result"))


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Ends a process that leads a session, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ending_of(code: int) -> str:
    """Spells an exit status: the signal's name, or the number."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


# ---- all cases -----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The records of all cases, earlier ones included, and why the other cases failed."""

    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status of a script."""
        return 1 if self.failures or not self.records else 0


def measure_each(
    function: Callable[..., Any],
    cases: Mapping[str, Sequence[Any]],
    *,
    out: Path,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    done: Mapping[str, Record] | None = None,
    total_s: float = float("inf"),
    **options: Any,
) -> Outcome:
    """Runs `function` for each case in a child, and appends each record to `out` at once.

    Args:
        cases: the function's arguments by the name of the case.
        limit_s: of each case.
        done: records of cases that are not run again (done_before).
        total_s: no case starts later; those that are left out are failures.
        options: of `record`.
    """
    outcome, started = Outcome(), time.monotonic()
    place_of(out)  # a tree with changes is refused before anything is measured
    for name, arguments in cases.items():
        if done and name in done:
            print(f"{name}: is in {out}", file=sys.stderr, flush=True)
            outcome.records.append(done[name])
            continue
        if time.monotonic() - started > total_s:
            outcome.failures[name] = f"not started within {total_s:.0f} s"
            continue
        answer = run_child(function, *arguments, limit_s=limit_s, env=env)
        if answer.failure:
            outcome.failures[name] = answer.failure
            tell_failure(name, answer.failure, repro_line(function, *arguments, env=env))
            continue
        outcome.records.append(record(out, answer.values[-1], **options))
    return outcome


def tell_failure(name: str, failure: str, repro: str) -> None:
    """Prints why a case failed and how to run it again."""
    print(f"{name}: {failure}\n{repro}", file=sys.stderr, flush=True)


def record_networks(
    names: Sequence[str],
    run_one: Callable[[str, Record], Record],
    head_of: Callable[[str, Record], Record],
    options: Record,
    path: Path,
    show: Callable[[Record], None],
    *,
    env: Mapping[str, str],
    limit_s: float,
    limit_minutes: float,
) -> int:
    """Runs `run_one(name, options)` in a process for each network, and appends its record.

    A network that fails gets a record of `head_of(name, options)` with the reason. After
    `limit_minutes` no further network is begun.

    Returns: the exit status, 1 if a network failed.
    """
    started, failures = time.monotonic(), 0
    for i, name in enumerate(names):
        if time.monotonic() - started > 60 * limit_minutes:
            print(f"{len(names) - i} networks are left; the same command goes on", flush=True)
            break
        answer = run_child(run_one, name, options, limit_s=limit_s, env=env)
        line = {**head_of(name, options), "failure": answer.failure}
        if answer.failure:
            failures += 1
            tell_failure(name, answer.failure, repro_line(run_one, name, options, env=env))
        else:
            line = answer.values[-1]
        record(path, line, show=show)
    return 1 if failures else 0


# ---- the command line ----------------------------------------------------------------------------


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of a docstring and adds defaults to the options' help."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_plain = action.default is None or isinstance(action.default, bool)
        return action.help if is_plain else super()._get_help_string(action)


def make_parser(
    doc: str | None,
    out: Path | None = None,
    *,
    can_resume: bool = False,
    has_records: bool = False,
) -> argparse.ArgumentParser:
    """Returns a parser whose --help is a script's docstring, with the options that are asked for:
    --out, --resume, and --draft for scripts with `out` or `has_records`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=_HelpFormatter)
    if out is not None or has_records:
        parser.add_argument("--draft", action=DraftAction)
    if out is not None:
        parser.add_argument("--out", type=Path, default=out, help="records are appended here")
    if can_resume:
        parser.add_argument(
            "--resume", action="store_true",
            help="skip what this commit has measured with these settings",
        )  # fmt: skip
    return parser


def count(text: str) -> int:
    """The type of an option: a whole number of at least 1."""
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")


def seconds(text: str) -> float:
    """The type of an option: a number of seconds that is not negative."""
    with contextlib.suppress(ValueError):
        if float(text) >= 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, got {text!r}")


def run_script(main: Callable[[], int]) -> NoReturn:
    """Runs a script's `main` and exits with its status, or with 130 on Ctrl-C or SIGTERM.

    Records are on disk as soon as they are known, so Ctrl-C loses only what runs now.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: all records so far are kept", file=sys.stderr, flush=True)
        sys.exit(130)


def settings_of(args: argparse.Namespace, *names: str) -> Record:
    """Returns some of a script's options as JSON, for a child."""
    return {name: getattr(args, name) for name in names}


def thread_env(threads: int) -> dict[str, str]:
    """Returns the environment of a child in which OpenMP and MKL have so many threads."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


# ---- inside a child ------------------------------------------------------------------------------


def end_with_parent(parent: int) -> None:
    """Kills this process when its parent ends, also if the parent is killed. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("function", help="module.function, as in a repro: line")
    parser.add_argument("arguments", help="a JSON list")
    args = parser.parse_args()
    module, _, name = args.function.rpartition(".")
    try:
        arguments = json.loads(args.arguments)
        function = getattr(importlib.import_module(module), name)
    except (ValueError, ImportError, AttributeError) as problem:
        parser.error(f"{problem}; expected module.function and a JSON list, as in a repro: line")
    if PARENT in os.environ:
        end_with_parent(int(os.environ.pop(PARENT)))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    result = function(*arguments)
    for value in result if isinstance(result, Iterator) else [result]:
        print(json.dumps(value), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    run_script(main)
