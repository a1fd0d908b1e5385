# SPDX-License-Identifier: BSD-3-Clause
"""Drives CMake; all metadata is in pyproject.toml."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


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
            sys.exit(
                "torchalgo is built against the torch you will use: install torch >= 2.11 first, "
                "then pip install --no-build-isolation ."
            )
        out = Path(self.get_ext_fullpath(ext.name)).resolve().parent.parent
        build = Path(os.environ.get("TORCHALGO_BUILD_DIR", self.build_temp)).resolve()
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        if not (build / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count()))
        subprocess.check_call(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")))
        subprocess.check_call(["cmake", "--build", str(build), "-j", jobs])
        for prefix in [out] + ([ROOT / "python"] if self.in_tree else []):
            subprocess.check_call(["cmake", "--install", str(build), "--prefix", str(prefix)])


setup(ext_modules=[Extension("torchalgo._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
