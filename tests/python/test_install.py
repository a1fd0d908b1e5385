# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the files in the sdist, of the package's metadata, and of builds for another torch."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchalgo
from torchalgo_cli import doctor, install

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python"
PACKAGES = Path(torchalgo.__file__).parents[1]  # not the sources if a wheel is tested
# Tracked files that are not in the sdist. Only git and the server that runs the tests use them.
NOT_IN_SDIST = {".ci/run", ".gitignore"}


def git_files() -> set[str]:
    """The files that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("this is no clone of the repository")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which setuptools writes the package's metadata."""
    return egg_info(tmp_path_factory.mktemp("metadata"))


def egg_info(folder: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder],
        cwd=ROOT, env={**os.environ, **environment}, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "torchalgo_conv.egg-info"


def test_the_sdist_holds_every_file_of_the_repository_and_no_other(metadata: Path) -> None:
    listed = set((metadata / "SOURCES.txt").read_text().splitlines())
    held = {name for name in listed if ".egg-info/" not in name}
    tracked = git_files()
    assert tracked - held == NOT_IN_SDIST & tracked
    assert held <= tracked


def test_each_folder_of_python_files_is_a_package_of_the_wheel(metadata: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = set(re.findall(r'"([\w.]+)"', text.partition("packages = [")[2].partition("]")[0]))
    folders = {path.parent.relative_to(SOURCES) for path in SOURCES.rglob("__init__.py")}
    assert listed == {".".join(folder.parts) for folder in folders}
    patterns = re.findall(r"^torchalgo = \[(.*)\]$", text, re.MULTILINE)[0].split(", ")
    data = {p for glob in patterns for p in (SOURCES / "torchalgo").glob(glob.strip('"'))}
    other = {SOURCES / n.removeprefix("python/") for n in git_files() if n.startswith("python/")}
    assert {path for path in other if path.suffix != ".py"} == data


def fields(metadata: Path) -> email.message.Message:
    return email.message_from_string((metadata / "PKG-INFO").read_text())


def test_metadata_of_sources_need_any_torch_from_2_11_on(metadata: Path) -> None:
    found = fields(metadata)
    needed = [need for need in found.get_all("Requires-Dist", []) if "extra" not in need]
    assert needed[0] == "torch>=2.11" == f"torch>={'.'.join(map(str, install.OLDEST_TORCH))}"
    assert {re.match(r"\w+", need)[0] for need in needed} == {  # type: ignore[index]
        "torch", "jinja2", "platformdirs",
    }  # fmt: skip
    assert found["Name"] == install.DISTRIBUTION != "torchalgo"
    assert found["Version"] == torchalgo.__version__ == install.torchalgo_version()
    assert found["License-Expression"] == "BSD-3-Clause"
    assert found["Requires-Python"] == ">=3.10"
    classifiers = found.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert "3.11" in {text.rpartition(" ")[2] for text in classifiers}  # the one that is tested
    assert found["Author"] in (ROOT / "LICENSE").read_text()
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"version: {found['Version']}\n" in cited and f"name: {found['Author']}\n" in cited


def test_without_torch_an_installation_ends_at_once_with_one_sentence(tmp_path: Path) -> None:
    """pip makes the metadata before it downloads what they name, such as torch."""
    code = (
        "import importlib.metadata as m, runpy, sys\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        f"sys.argv = ['setup.py', '-q', 'dist_info', '--output-dir', {str(tmp_path)!r}]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and not any(tmp_path.iterdir())
    assert done.stderr.splitlines()[-1].startswith("torchalgo is built against the torch you will")


def others_package(text: str) -> list[str]:
    """The words of a text with which pip would look for torchalgo, or for its extras, on PyPI."""
    found = re.findall(r"\btorchalgo(?:-conv)?\[.*?\]", text)
    for words in re.findall(r"\bpip3? (?:install|download|wheel)\b([^`|\n]*)", text):
        if "--no-index" not in words:
            found += re.findall(r"--find-links|(?<![\w./:-])torchalgo(?:-conv)?(?![\w./-])", words)
    return found


def test_no_text_tells_pip_to_install_the_package_of_others() -> None:
    """The name `torchalgo` on PyPI belongs to another project: docs/versions.md."""
    for bad in (
        'pip install "torchalgo[gpu]"',
        "run `pip install torchalgo`",
        "pip install -U torchalgo==0.1.0",
        "pip install --find-links FOLDER torchalgo-conv",
    ):
        assert others_package(bad), bad
    for good in (
        "pip install torchalgo_conv-0.1.0+torch2.11-cp311-cp311-manylinux_2_34_x86_64.whl",
        "pip install --no-index --find-links FOLDER torchalgo-conv",
        'pip install ".[onnx]"',
    ):
        assert not others_package(good), good
    warned = {"docs/versions.md", "docs/faq.md"}  # both say what `pip install torchalgo` does
    texts = [n for n in git_files() if n.startswith(("python/", "csrc/", "docs/", "examples/"))]
    texts += [n for n in git_files() if "/" not in n]
    for name in texts:
        text = (ROOT / name).read_text("utf-8", errors="replace")
        found = others_package(text)
        assert not found or (name in warned and {*found} == {"torchalgo"}), f"{name}: {found}"


def test_make_clean_removes_what_old_names_left(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    packages = ".venv/lib/python3.11/site-packages"
    kept = ["python/torchalgo/_run/load.py", f"{packages}/torchalgo_conv-0.1.0.dist-info/METADATA"]
    gone = [
        "python/torchalgo/old/__pycache__/a.pyc", "python/torchalgo/libtorchalgo.so", "build/a",
        "python/torchalgo/include/a.h", f"{packages}/torchalgo-0.1.0.dist-info/METADATA",
        f"{packages}/__editable__.torchalgo-0.1.0.pth",
    ]  # fmt: skip
    for name in kept + gone:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    command = ["make", "-s", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), "clean"]
    subprocess.run(command, check=True, capture_output=True)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {*kept} and not (tmp_path / "python/torchalgo/old").exists()


def test_metadata_of_a_wheel_name_its_torch(tmp_path: Path) -> None:
    found = fields(egg_info(tmp_path, TORCHALGO_WHEEL="1"))
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"torch=={minor}.*" in found.get_all("Requires-Dist", [])
    assert found["Version"] == f"{torchalgo.__version__}+torch{minor}"
    assert install.wheel_name(torch.__version__).startswith(
        f"torchalgo_conv-{found['Version']}-cp3"
    )


# ---- another torch -------------------------------------------------------------------------------

STUB = "__version__ = '{0}'\nclass ops:\n    load_library = staticmethod(lambda path: None)\n"


def stub_torch(folder: Path, version: str) -> Path:
    """Writes a package torch with a version and nothing else. Returns the folder for sys.path."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(STUB.format(version))
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


def python(*words: str, path: tuple[Path, ...] = ()) -> tuple[int, str, str]:
    """Runs Python with folders in front of sys.path. Returns its status, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd="/", check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, PACKAGES)))},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def imported(*path: Path) -> str:
    """The last line of a failed import."""
    status, _, err = python("-c", "import torchalgo", path=path)
    assert status == 1
    assert "undefined symbol" not in err
    lines = err.splitlines()
    assert len([line for line in lines if line.startswith("  File")]) <= 4
    return lines[-1].removeprefix("torchalgo_cli.install.InstallError: ")


CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1"
COMMAND = "import sys; from torchalgo_cli import main; sys.exit(main(sys.argv[1:]))"


def command(*words: str, path: tuple[Path, ...] = ()) -> tuple[int, str, str]:
    return python("-c", COMMAND, *words, path=path)


@pytest.mark.parametrize("version", ["2.99.0+cu130", "3.0.0a0+git1234567"])
def test_another_torch_is_one_sentence_that_names_the_wheel(tmp_path: Path, version: str) -> None:
    text = imported(stub_torch(tmp_path, version))
    built = install.built_for_torch()
    assert text.startswith(
        f"TA9002 torchalgo was built for torch {built} and this is torch {version}"
    )
    if not install.no_wheel():
        assert f"`pip install {install.wheel_name(version)}`" in text
    assert "pip install --no-build-isolation" in text
    assert f"'torch=={'.'.join(built.split('.')[:2])}.*'" in text
    # A command prints the same, uncut, in one line.
    status, out, err = command("explain", CONV, path=(tmp_path,))
    assert (status, out, err.splitlines()[-1]) == (1, "", f"torchalgo: {text}")
    assert "Traceback" not in err


def test_a_torch_that_is_too_old_is_one_sentence(tmp_path: Path) -> None:
    text = imported(stub_torch(tmp_path, "2.9.1"))
    built = ".".join(install.built_for_torch().split(".")[:2])
    assert text == (
        f"TA9001 torchalgo {install.torchalgo_version()} needs torch >= 2.11, and this is torch"
        f" 2.9.1: pip install 'torch=={built}.*'"
    )
    status, out, _ = command("doctor", path=(tmp_path,))
    assert status == 1 and "none: torchalgo needs torch >= 2.11, found torch 2.9.1" in out


def test_no_torch_is_one_sentence(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import torchalgo"
    (tmp_path / "torch").mkdir()  # a folder without __init__ is no torch
    status, _, err = python("-c", code)
    assert status == 1
    assert "InstallError: TA9001 torchalgo" in err and "pip install 'torch==2." in err
    code = COMMAND.replace("sys;", "sys; sys.modules['torch'] = None;")
    status, out, err = python("-c", code, "doctor")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("torchalgo: TA9001 ")
    assert re.search(r"torch +none\n", out)
    assert "fits here" in out


def test_an_error_inside_of_torch_is_not_taken_for_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import a_module_that_is_missing")
    status, _, err = python("-c", "import torchalgo", path=(tmp_path,))
    assert status == 1
    assert err.splitlines()[-1].endswith("No module named 'a_module_that_is_missing'")
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so: no such file')")
    status, out, err = command("doctor", path=(tmp_path,))
    assert (status, "Traceback" in err) == (1, False)
    assert "libcudart.so: no such file" in err and "libcudart.so: no such file" in out


def copied(folder: Path, *left_out: str) -> Path:
    """Copies the packages, with links to the compiled files that are not left out."""
    for name in ("torchalgo", "torchalgo_cli"):
        shutil.copytree(
            PACKAGES / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    for library in (PACKAGES / "torchalgo").glob("*.so"):
        if not any(library.match(pattern) for pattern in left_out):
            (folder / "torchalgo" / library.name).symlink_to(library)
    for pattern in left_out:
        for path in (folder / "torchalgo").glob(pattern):
            path.unlink()
    return folder


@pytest.mark.parametrize("missing", ["libtorchalgo.so", "_build_info.py"])
def test_sources_without_a_build_are_one_sentence(tmp_path: Path, missing: str) -> None:
    text = imported(copied(tmp_path, missing))
    assert text.startswith("TA9003 torchalgo is not built: libtorchalgo.so or _build_info.py")
    assert "pip install --no-build-isolation ." in text


@pytest.mark.parametrize("torch_loads", [True, False])
def test_a_build_for_another_python_is_one_sentence(tmp_path: Path, torch_loads: bool) -> None:
    copied(tmp_path, "_C.*.so")
    if not torch_loads:  # its extension is for another Python, too, and its own error misleads
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no extension')")
    (tmp_path / "torchalgo" / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    text = imported(tmp_path)
    assert text.startswith("TA9003 torchalgo was built for another Python: expected _C.cpython-3")
    assert "found _C.cpython-39-x86_64-linux-gnu.so" in text


def test_a_library_that_does_not_load_is_one_sentence(tmp_path: Path) -> None:
    copied(tmp_path, "libtorchalgo.so")
    (tmp_path / "torchalgo" / "libtorchalgo.so").write_bytes(b"no library")
    text = imported(tmp_path)
    assert text.startswith("TA9004 torchalgo's library does not load with torch 2.")
    assert "file too short" in text or "invalid ELF header" in text


# ---- doctor --------------------------------------------------------------------------------------


def test_doctor_runs_where_the_import_fails_and_names_the_wheel(tmp_path: Path) -> None:
    stub_torch(tmp_path, "2.99.0")
    status, out, err = command("doctor", "--json", path=(tmp_path,))
    found = json.loads(out)
    assert status == 1
    assert err.startswith("torchalgo: TA9002 ") and err.count("\n") == 1
    assert found["import torchalgo"]["error"].startswith("TA9002 ")
    assert found["versions"]["torch"] == "2.99.0"
    assert found["versions"]["built for torch"] == install.built_for_torch()
    fits = found["wheel"]["fits here"]
    if not install.no_wheel():
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        start = f"torchalgo {torchalgo.__version__} for torch 2.99, {tag}, {install.PLATFORM}: "
        assert fits == f"{start}pip install {install.wheel_name('2.99.0')}"
    text = command("doctor", path=(tmp_path,))[1]
    assert all(f"\n{topic}\n" in f"\n{text}" for topic in found)
    assert fits in text


def test_doctor_names_the_wheel_where_the_import_works(capsys: pytest.CaptureFixture[str]) -> None:
    from torchalgo_cli import main

    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["wheel"]
    assert found == doctor.wheel_facts()
    assert install.no_wheel() or install.wheel_name(torch.__version__) in found["fits here"]


@pytest.mark.parametrize(
    ("machine", "glibc", "reason"),
    [
        ("x86_64", "2.34", ""),
        ("x86_64", "2.41", ""),
        ("x86_64", "2.31", "this system has glibc 2.31, and wheels need glibc 2.34"),
        ("x86_64", "", "this system has glibc unknown, and wheels need glibc 2.34"),
        ("aarch64", "2.41", "this machine is linux_aarch64, and wheels are for linux_x86_64"),
    ],
)
def test_a_machine_that_no_wheel_fits_is_told_to_build(
    monkeypatch: pytest.MonkeyPatch, machine: str, glibc: str, reason: str
) -> None:
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    monkeypatch.setattr(install, "_glibc", lambda: glibc)
    monkeypatch.setattr(install.sys, "platform", "linux")
    assert install.no_wheel() == reason
    built = "none" in install.fitting_wheel() and "in its source folder" in install.fitting_wheel()
    assert built == bool(reason)


def test_the_platform_of_wheels_is_written_once() -> None:
    numbers = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", install.PLATFORM)
    assert numbers is not None
    assert tuple(map(int, numbers.groups())) == install._OLDEST_GLIBC
