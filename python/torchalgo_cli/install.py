# SPDX-License-Identifier: BSD-3-Clause
"""The torch that torchalgo was built for, the torch that is here, and the wheel that fits.

C++ torch has no stable binary interface, so a build of torchalgo fits one minor version of torch.
This module imports neither torch nor torchalgo, since the one that is here may not load.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

DISTRIBUTION = "torchalgo-conv"  # the import and the command are `torchalgo`: docs/versions.md
OLDEST_TORCH = (2, 11)
# The platform of the wheels. scripts/build_wheels.py fails if auditwheel finds another one.
PLATFORM = "manylinux_2_34_x86_64"
_OLDEST_GLIBC = (2, 34)
_FROM_SOURCE = "`pip install --no-build-isolation --force-reinstall --no-deps .`"
PACKAGE = Path(__file__).parents[1] / "torchalgo"


class InstallError(ImportError):
    """The error that a package is missing or does not fit. It says what to install."""


def torchalgo_version() -> str:
    """Returns the version of torchalgo's sources, without the name of a torch."""
    return _text_in(PACKAGE / "_version.py", "__version__") or "unknown"


def built_for_torch() -> str:
    """Returns the version of torch for which torchalgo was built; "" if it is not built."""
    return _text_in(PACKAGE / "_build_info.py", "torch_version")


def torch_here() -> str:
    """Returns the version of the torch that `import torch` finds; "" if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return ""
    if spec.origin and (version := _text_in(Path(spec.origin).with_name("version.py"))):
        return version
    from importlib import metadata  # late: it takes half of the start of a command

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "unknown"


def _text_in(file: Path, name: str = "__version__") -> str:
    """Returns the text that a Python file gives to `name`, without running it; "" if none."""
    try:
        found = re.search(rf"^{name}\b[^=\n]*= *['\"](.+)['\"]", file.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def minor(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version, such as (2, 11); (0, 0) if it has no such."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def python_tag() -> str:
    """Returns the tag of this Python in the names of wheels, such as "cp311"."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def wheel_name(torch_version: str) -> str:
    """Returns the file name of the wheel for this Python and that version of torch."""
    return (
        f"{DISTRIBUTION.replace('-', '_')}-{torchalgo_version()}+torch{_dotted(torch_version)}"
        f"-{python_tag()}-{python_tag()}-{PLATFORM}.whl"
    )


def _dotted(version: str) -> str:
    return ".".join(map(str, minor(version)))


def no_wheel() -> str:
    """Returns the reason why no wheel can be installed on this machine; "" if one can."""
    if sys.implementation.name != "cpython":
        return f"this Python is {sys.implementation.name}, and wheels are for CPython"
    machine = f"{sys.platform}_{platform.machine()}"
    if machine != "linux_x86_64":
        return f"this machine is {machine}, and wheels are for linux_x86_64"
    glibc = _glibc()
    if minor(glibc) < _OLDEST_GLIBC:
        needed = ".".join(map(str, _OLDEST_GLIBC))
        return f"this system has glibc {glibc or 'unknown'}, and wheels need glibc {needed}"
    return ""


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (ValueError, OSError):  # another C library
        return ""


def fitting_wheel() -> str:
    """Returns a text that names the wheel for this Python, platform and torch."""
    torch = torch_here() or built_for_torch() or _oldest()
    if minor(torch) < OLDEST_TORCH:
        return f"none: torchalgo needs torch >= {_oldest()}, found torch {torch}"
    if reason := no_wheel():
        return f"none: {reason}; build torchalgo with {_FROM_SOURCE} in its source folder"
    return (
        f"torchalgo {torchalgo_version()} for torch {_dotted(torch)}, {python_tag()}, {PLATFORM}:"
        f" pip install {wheel_name(torch)}"
    )


def installed_wheel() -> str:
    """Returns the version and the tag of the installed wheel; it may have been built here."""
    from importlib import metadata

    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "none: Python finds torchalgo's sources only"
    tag = re.search(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    return f"{found.version}, {tag[1] if tag else 'without a tag'}"


def _oldest() -> str:
    return ".".join(map(str, OLDEST_TORCH))


def no_torch_error() -> InstallError:
    """Returns the error that there is no torch."""
    wanted = _dotted(built_for_torch() or _oldest())
    return InstallError(
        f"TA9001 torchalgo {torchalgo_version()} needs torch {wanted}, and there is no torch here:"
        f" pip install 'torch=={wanted}.*'"
    )


def check_build() -> None:
    """Raises InstallError if torchalgo's own libraries are missing."""
    library = PACKAGE / "libtorchalgo.so"
    if not library.exists() or not built_for_torch():
        raise InstallError(
            f"TA9003 torchalgo is not built: {library.name} or _build_info.py is missing beside"
            " its Python files; run `make build`, or `pip install --no-build-isolation .`, in its"
            " source folder"
        )
    if not any((PACKAGE / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        built = ", ".join(sorted(path.name for path in PACKAGE.glob("_C.*.so"))) or "nothing"
        raise InstallError(
            f"TA9003 torchalgo was built for another Python: expected"
            f" _C{EXTENSION_SUFFIXES[0]}, found {built}; {_remedy(torch_here())}"
        )


def check_torch(built: str, here: str) -> None:
    """Raises InstallError unless torchalgo was built for this minor version of torch."""
    if minor(built) == minor(here):
        return
    if minor(here) < OLDEST_TORCH:
        raise InstallError(
            f"TA9001 torchalgo {torchalgo_version()} needs torch >= {_oldest()}, and this is torch"
            f" {here}: pip install 'torch=={_dotted(built)}.*'"
        )
    raise InstallError(
        f"TA9002 torchalgo was built for torch {built} and this is torch {here}: {_remedy(here)},"
        f" or install that torch with `pip install 'torch=={_dotted(built)}.*'`"
    )


def _remedy(torch: str) -> str:
    """Returns how to get a build for this Python and for `torch`."""
    build = f"build torchalgo again with {_FROM_SOURCE} in its source folder"
    return build if no_wheel() else f"`pip install {wheel_name(torch)}`, or {build}"


def load_error(problem: OSError) -> InstallError:
    """Returns the error for a library that the dynamic linker refused."""
    text = str(problem.__cause__ or problem).removeprefix(f"{PACKAGE / 'libtorchalgo.so'}: ")
    reason = (text.splitlines() or ["no reason is given"])[0]
    return InstallError(
        f"TA9004 torchalgo's library does not load with torch {torch_here()}, although it was built"
        f" for torch {built_for_torch()} ({reason[:160]}): build torchalgo again with"
        f" {_FROM_SOURCE} in its source folder"
    )
