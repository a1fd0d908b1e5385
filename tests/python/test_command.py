# SPDX-License-Identifier: BSD-3-Clause
"""The command before torch is imported, its suggestions, and its exit codes."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from torchalgo import __version__
from torchalgo._capture import settings
from torchalgo._cli import doctor
from torchalgo._cli.tuning_flags import tuning_arguments
from torchalgo._db.commands import VERBS
from torchalgo._emit.folder import ISAS
from torchalgo._ir import plan
from torchalgo._plan import pareto
from torchalgo_cli import arguments, main, parser, setting_flags, waiting

HELP = """
import sys
from torchalgo_cli import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, (words, end.code)
print("torch" in sys.modules, "torchalgo" in sys.modules, file=sys.stderr)
"""
SHAPE = ("--input", "1x3x40x40", "-o", "o.pt")
COMMANDS = dict(parser.build_parser()._actions[-1].choices or {})


def command(*words: str, prefix: str = "") -> list[str]:
    """The command in a process of its own; `prefix` is Python code that runs before."""
    code = f"{prefix}\nimport sys\nfrom torchalgo_cli import main\nsys.exit(main({list(words)!r}))"
    return [sys.executable, "-c", code]


def test_no_help_and_no_wrong_usage_imports_torch() -> None:
    verbs = [["db", verb, "--help"] for verb in VERBS]
    commands = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), *verbs]
    code = HELP.format(commands=[*commands, ["explain", "no_such_file.pt"]][:-1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False False\n"
    assert f"torchalgo {__version__}\n" in done.stdout
    missing = subprocess.run(
        command("explain", "no.pt", prefix="import sys; sys.modules['torch'] = None"),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "there is no file no.pt" in missing.stderr


def test_the_parser_knows_the_words_that_torchalgo_knows() -> None:
    assert parser.OBJECTIVES == plan.OBJECTIVES
    assert tuple(ISAS) == parser.ISAS
    assert get_args(pareto.Quantity) == parser.QUANTITIES
    assert set(COMMANDS["db"]._actions[-1].choices) == set(VERBS)


def test_each_command_has_a_module_that_runs_it() -> None:
    for name in {*COMMANDS} - {"db"}:
        assert callable(importlib.import_module(f"torchalgo._cli.{name}").run)
    assert not {*COMMANDS} & {*arguments.GONE}


def test_doctor_shows_each_variable_that_changes_what_torchalgo_does() -> None:
    root = Path(doctor.__file__).parents[3]
    sources = [*(root / "python").rglob("*.py"), *(root / "csrc").rglob("*.cpp")]
    read = {
        name
        for source in sources
        for name in re.findall(
            r"(?:env\w*|ISOLATE)[^\n]*\"(TORCHALGO_[A-Z_]+)\"", source.read_text()
        )
    }
    assert {"TORCHALGO_CACHE_DIR", "TORCHALGO_TRACE_IMPORT"} <= read <= set(doctor.VARIABLES)


def usage(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """stderr of a command whose usage is wrong: one line of at most 300 characters."""
    with pytest.raises(SystemExit) as end:
        main(words)
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.count("\n") == 1 and len(err) <= 300
    return err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("optimise", "m.pt"), "there is no command 'optimise'; did you mean 'optimize'?"),
        (("m.pt",), "there is no command 'm.pt'; expected one of optimize, "),
        (("optimize", "m.pt", "--ouput", "x"), "did you mean '--output'"),
        (("optimize", "m.pt", *SHAPE, "--overide", "a=b"), "did you mean '--override'?"),
        (("optimize", "m.pt", *SHAPE, "--objective", "latncy"), "did you mean 'latency'?"),
        (("optimize", "m.pt", *SHAPE, "--mode", "predct"), "did you mean 'predict'?"),
        (("optimize", "m.pt", *SHAPE, "--budget", "0"), "'0' is no number of seconds"),
        (("db", "infos"), "there is no verb 'infos'; did you mean 'info'?"),
        (("db", "info", "--jsn"), "did you mean '--json'? (see torchalgo db info --help)"),
        (("lint", "m.pt"), "there is no command 'lint' any more: use check MODEL --input"),
        (("check", "m.pt", "d.pt", "--max-error", "nan"), "'nan' is no number above 0"),
        (("bench", "m.pt", "--input", "1x3,4"), "'1x3,4' is no shape such as 1x3x224x224"),
        (("tune", "m.pt", "--weight-limit", "2kk"), "'2kk' is no size such as 20MB"),
    ],
)
def test_wrong_usage_suggests_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], suggestion: str
) -> None:
    assert suggestion in usage(capsys, *words)


def test_a_budget_may_be_without_end_and_a_plan_may_run_untimed() -> None:
    words = ["optimize", "m.pt", *SHAPE, "--budget", "inf", "--run-untimed"]
    given = tuning_arguments(parser.build_parser().parse_args(words))
    assert given["budget_s"] == float("inf") and given["settings"].run_untimed is True


@pytest.mark.parametrize("command", ["optimize", "explain", "tune"])
def test_each_setting_has_a_flag_and_its_own_default(command: str) -> None:
    flags = {
        "mode": (["--mode", "predict"], "predict"),
        "strict": (["--strict"], True),
        "run_untimed": (["--run-untimed"], True),
        "cost_db": (["--no-cost-db"], False),
        "fresh": (["--fresh"], True),
        "workspace_limit_bytes": (["--workspace-limit", "2MB"], 2_000_000),
        "runtime_compiled": (["--runtime-compiled"], True),
        "all_knobs": (["--all-knobs"], True),
        "weight_limit_bytes": (["--weight-limit", "20MB"], 20_000_000),
        "memory_limit_bytes": (["--memory-limit", "3kB"], 3_000),
        "max_componentwise_error": (["--max-componentwise-error", "1e-6"], 1e-6),
        "own_kernels": (["--own-kernels"], True),
        "progress": (["--quiet"], False),
    }
    names = [field.name for field in dataclasses.fields(settings.Settings)]
    assert set(flags) == set(names) and [f.name for f in setting_flags.fields()] == names
    read = parser.build_parser().parse_args
    needed = [command, "m.pt", "--input", "1x3x8x8"]
    given = tuning_arguments(read(needed))
    assert given["settings"] == settings.Settings() and "max_error" not in given
    for name, (words, value) in flags.items():
        found = tuning_arguments(read([*needed, *words]))["settings"]
        assert found == dataclasses.replace(settings.Settings(), **{name: value})
    assert tuning_arguments(read([*needed, "--cost-db", "c"]))["settings"].cost_db == Path("c")
    assert tuning_arguments(read([*needed, "--max-error", "1e-3"]))["max_error"] == 1e-3


def test_a_new_field_has_a_flag_with_its_first_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = setting_flags.SOURCE.read_text()
    source = source.replace(
        "        strict: fail",
        "        top: take 5 % of\n            all. No more.\n        strict: fail",
    )
    changed = tmp_path / "settings.py"
    changed.write_text(
        source.replace("    strict: bool", "    top: bool = False\n    strict: bool")
    )
    monkeypatch.setattr(setting_flags, "SOURCE", changed)
    setting_flags.fields.cache_clear()
    try:
        command = parser.build_parser()._actions[-1].choices["optimize"]  # type: ignore[index]
        text = " ".join(command.format_help().split())
        assert "--top take 5 % of all --strict fail if" in text
        given = command.parse_args(["m.pt", *SHAPE, "--top"])
        assert setting_flags.settings_of(given) == {"top": True, "progress": True}
        changed.write_text(
            source.replace("    strict: bool", "    top: list[int]\n    strict: bool")
        )
        setting_flags.fields.cache_clear()
        with pytest.raises(AssertionError, match=r"list\[int\] of Settings\.top"):
            parser.build_parser()
    finally:
        setting_flags.fields.cache_clear()


def test_no_command_prints_the_help_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "optimize" in capsys.readouterr().err


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files that are no models, and modules whose factories fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "empty.pt").touch()
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "net.py").write_text("")
    torch.save(torch.nn.Conv2d(3, 3, 1).state_dict(), tmp_path / "weights.pt")
    whole = (tmp_path / "weights.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    torch.jit.save(torch.jit.script(torch.nn.Conv2d(3, 16, 3)), tmp_path / "script.pt")
    damaged = bytearray((tmp_path / "script.pt").read_bytes())
    with zipfile.ZipFile(tmp_path / "script.pt") as archive:
        weights = max(archive.infolist(), key=lambda item: item.file_size)
    damaged[weights.header_offset + weights.file_size] ^= 255  # inside the weights
    (tmp_path / "damaged.pt").write_bytes(damaged)
    (tmp_path / "bad_syntax.py").write_text("def f(:\n")
    (tmp_path / "bad_exit.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "bad_factory.py").write_text(
        "import sys, torch\n"
        "def fails(): raise KeyError('lost\\nkey')\n"
        "def exits(): sys.exit(5)\n"
        "def number(): return 3\n"
        "make_model = torch.nn.Identity\n"
    )
    yield tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimize", "empty.pt", *SHAPE), "the file is empty"),
        (("optimize", "folder.pt", *SHAPE), "it is a folder"),
        (("optimize", "wieghts.pt", *SHAPE), "did you mean 'weights.pt'?"),
        (("optimize", "net.py", *SHAPE), "Python source: give the import path"),
        (("optimize", "./net.py:f", *SHAPE), "such as net:make_model"),
        (("optimize", "weights.pt", *SHAPE), "it holds weights without code"),
        (("optimize", "cut.pt", *SHAPE), "no TorchScript file"),
        (("optimize", "damaged.pt", *SHAPE), "damaged.pt is damaged at "),
        (("explain", "scirpt.pt"), "did you mean 'script.pt'"),
        (("optimize", "bad_syntax:f", *SHAPE), "cannot import bad_syntax:f: SyntaxError"),
        (("optimize", "bad_exit:f", *SHAPE), "cannot import bad_exit:f: SystemExit"),
        (("optimize", "bad_factory:fails", *SHAPE), "fails() failed: KeyError"),
        (("optimize", "bad_factory:exits", *SHAPE), "exits() failed: SystemExit"),
        (("optimize", "bad_factory:number", *SHAPE), "returned int, expected torch.nn.Module"),
        (("optimize", "bad_factory:make_modle", *SHAPE), "did you mean 'make_model'"),
        (("optimize", ":make_model", *SHAPE), "expected package.module:factory"),
        (("optimize", "bad_factory:", *SHAPE), "expected package.module:factory"),
        (
            ("optimize", "bad_factory:make_model", "--input", f"1x{1 << 30}x{1 << 30}", *SHAPE[2:]),
            "cannot make inputs of 1x1073741824x1073741824",
        ),
        (("optimize", "net:f", *SHAPE[:2], "-o", "folder.pt"), "it is a folder: name a file"),
        (("optimize", "net:f", *SHAPE, "--plan", "lost.json"), "there is no file lost.json"),
        (("optimize", "net:f", *SHAPE, "--cost-db", "."), ". is a folder: name a file in it"),
        (("explain", "folder.pt"), "it is a folder"),
        (("explain", "empty.pt"), "the file is empty"),
        (("explain", "weights.pt"), "it was not saved by torchalgo"),
        (("explain", "cut.pt"), "cut.pt"),
        (("bench", "text.json", *SHAPE[:2]), "no TorchScript file"),
        (("bench", "fwd_f32"), "fwd_f32"),
        (("check", "text.json"), "no plan of torchalgo"),
        (("check", "bad_factory:make_model", "folder.pt"), "it is a folder"),
        (("check", "bad_factory:make_model", "cut.pt"), "cannot read cut.pt"),
        (("check", "bad_factory:make_model", "script.pt"), "holds a TorchScript module"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], in_folder: Path, words: tuple[str, ...], message: str
) -> None:
    assert main(words) == (2 if words[0] == "check" else 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"torchalgo: TA\d{4} ", err) and err.count("\n") == 1 and len(err) <= 400, err
    assert message in err


def test_a_closed_stdout_ends_the_command_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    for words in (["--help"], ["explain", "fwd_f32_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1"]):
        done = subprocess.run(
            command(*words), stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
            env=buffered,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    os.close(writing)


def test_a_full_disk_is_one_line_and_ends_with_1() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("doctor"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr


@pytest.mark.parametrize("closed", ["0", "012"])
def test_closed_streams_do_not_end_a_command(tmp_path: Path, closed: str) -> None:
    costs = ("--cost-db", str(tmp_path / "costs.sqlite3"))
    words = ("db", "import", "-")  # it reads no row
    if closed == "012":
        shape = ("--input", "1x3x8x8", "--budget", "1")
        words = ("optimize", "support.nets:net_factory", *shape, "-o", str(tmp_path / "o.pt"))
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    redirects = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirects}', "-", *command(*words, *costs, prefix=here)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "o.pt").exists() == (closed == "012")


def test_a_slow_import_and_a_slow_model_are_told_at_once_and_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SILENCE_S", 0.02)
    ended = time.monotonic() + 30
    with waiting.told("loading a model"):
        first, told = capsys.readouterr().err, ""
        while "so far" not in told:
            assert time.monotonic() < ended
            told += capsys.readouterr().err
    assert first == "torchalgo: loading a model\n"
    assert told.startswith("torchalgo: loading a model, 0 s so far\n")
    with waiting.told("loading a model", is_silent=True):
        assert capsys.readouterr().err.count("loading") <= 1  # what came before the end
    assert capsys.readouterr().err == ""


def test_a_warning_of_torchalgo_is_a_line_without_code() -> None:
    prefix = """
import warnings, torchalgo_cli
def warns(argv):
    warnings.warn("torchalgo: the machine is busy", RuntimeWarning)
    warnings.warn("another one")
    return 0
torchalgo_cli._run_command = warns
"""
    done = subprocess.run(command("db", prefix=prefix), capture_output=True, text=True, check=True)
    first, rest = done.stderr.split("\n", 1)
    assert first == "torchalgo: the machine is busy" and "UserWarning: another one" in rest


def test_importing_needs_no_package_but_torch() -> None:
    """The others are imported when they are used: for a report, a bar, the user's database."""
    code = (
        "import sys, torch\n"
        "for name in ('jinja2', 'platformdirs'): sys.modules[name] = None\n"
        "import torchalgo, torchalgo._cli.optimize, torchalgo._cli.doctor\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
