# SPDX-License-Identifier: BSD-3-Clause
"""Drives CMake, and names the torch that a wheel needs. All other metadata is in pyproject.toml."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
NO_TORCH = (
    "torchalgo is built against the torch you will use: install torch >= 2.11 first, "
    "then pip install --no-build-isolation ."
)
# scripts/build_wheels.py sets it: the wheel is for other machines and one minor version of torch.
IS_WHEEL = os.environ.get("TORCHALGO_WHEEL", "0") not in ("", "0")


def version() -> str:
    """Returns the version; that of a wheel ends with the torch that it needs.

    Wheels for several versions of torch then have different names: docs/decisions/0034.
    """
    text = (ROOT / "python" / "torchalgo" / "_version.py").read_text()
    (own,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return f"{own}+torch{torch_minor()}" if IS_WHEEL else own


def torch_minor() -> str:
    """Returns the minor version of the torch of this environment, such as "2.11"."""
    try:
        found = re.match(r"\d+\.\d+", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        sys.exit(NO_TORCH)
    if found is None:
        sys.exit("torchalgo: the version of this torch does not begin with a number")
    return found[0]


class DistInfo(dist_info):
    """Makes the metadata. pip asks for them before it downloads anything that they name."""

    def run(self) -> None:
        torch_minor()
        super().run()


class CMakeBuild(build_ext):
    """Builds libtorchalgo and _C against the torch of this environment."""

    def run(self) -> None:
        # An editable install copies only the declared extension file; libtorchalgo would be lost.
        self.in_tree = bool(self.inplace or getattr(self, "editable_mode", False))
        super().run()

    def build_extension(self, ext: Extension) -> None:
        try:
            import torch  # noqa: F401
        except ImportError:
            sys.exit(NO_TORCH)
        out = Path(self.get_ext_fullpath(ext.name)).resolve().parent.parent
        build = Path(os.environ.get("TORCHALGO_BUILD_DIR", self.build_temp)).resolve()
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DTORCHALGO_RELOCATABLE={'ON' if IS_WHEEL else 'OFF'}",
        ]
        if not (build / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count()))
        subprocess.check_call(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")))
        subprocess.check_call(["cmake", "--build", str(build), "-j", jobs])
        for prefix in [out] + ([ROOT / "python"] if self.in_tree else []):
            subprocess.check_call(["cmake", "--install", str(build), "--prefix", str(prefix)])


setup(
    version=version(),
    ext_modules=[Extension("torchalgo._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "dist_info": DistInfo},
    install_requires=[
        f"torch=={torch_minor()}.*" if IS_WHEEL else "torch>=2.11",
        "jinja2",
        "platformdirs>=4.14",
    ],
)
