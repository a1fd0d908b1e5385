# SPDX-License-Identifier: BSD-3-Clause
"""The cheapest convolution algorithm and memory layout for every layer of a PyTorch model."""

import importlib as _importlib
from pathlib import Path as _Path

import torch as _torch


def _check_torch(built: str) -> None:
    """Raises ImportError if torchalgo was built for another minor version of torch.

    The error is clearer than that of the dynamic linker.
    """
    here = _torch.__version__
    if built.split("+")[0].split(".")[:2] != here.split("+")[0].split(".")[:2]:
        raise ImportError(
            f"torchalgo was built for torch {built} and this is torch {here}: rebuild it with"
            " `pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
        )


def _load_library() -> None:
    try:
        built = _importlib.import_module("torchalgo._build_info")
    except ImportError:  # not built; the next lines raise an error
        pass
    else:
        _check_torch(built.torch_version)
    library = _Path(__file__).with_name("libtorchalgo.so")
    if not library.exists():
        raise ImportError(
            f"torchalgo is not built: {library.name} is missing beside its Python files; run"
            " `make build`, or `pip install --no-build-isolation .`, in its source folder"
        )
    _torch.ops.load_library(str(library))


_load_library()

from torchalgo import _C  # noqa: E402

_check_torch(_C.torch_version)

from torchalgo._base import error_code as _error_code  # noqa: E402

_C.Error.code = property(_error_code.code_of)  # type: ignore[assignment]  # C++ registers it
_C.Error.__doc__ = _error_code.ERROR_DOC

from torchalgo import backends, energy, nn, pbqp  # noqa: E402
from torchalgo._api.convert import convert, set_algorithms  # noqa: E402
from torchalgo._api.enable import algorithms, disable, enable, record_runs  # noqa: E402
from torchalgo._api.fallbacks import (  # noqa: E402
    fallbacks,
    reset_fallbacks,
    set_conflict_policy,
    set_strict,
)
from torchalgo._api.optimize import optimize  # noqa: E402
from torchalgo._api.profile import Profile, profile  # noqa: E402
from torchalgo._C import Error  # noqa: E402
from torchalgo._capture.settings import Settings  # noqa: E402
from torchalgo._ir.plan import Plan  # noqa: E402
from torchalgo._plan.candidates import candidates  # noqa: E402
from torchalgo._plan.pareto import Front, ParetoPoint, pareto  # noqa: E402
from torchalgo._run.load import load, load_plan, load_plans  # noqa: E402
from torchalgo._run.optimized import Optimized  # noqa: E402
from torchalgo.functional import (  # noqa: E402
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from torchalgo.verify.check_plan import CheckedPlan, check_plan  # noqa: E402

__version__ = _C.version

__all__ = [
    "CheckedPlan",
    "Error",
    "Front",
    "Optimized",
    "ParetoPoint",
    "Plan",
    "Profile",
    "Settings",
    "__version__",
    "algorithms",
    "backends",
    "candidates",
    "check_plan",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convert",
    "disable",
    "enable",
    "energy",
    "fallbacks",
    "load",
    "load_plan",
    "load_plans",
    "nn",
    "optimize",
    "pareto",
    "pbqp",
    "profile",
    "record_runs",
    "reset_fallbacks",
    "set_algorithms",
    "set_conflict_policy",
    "set_strict",
]
