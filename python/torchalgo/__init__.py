# SPDX-License-Identifier: BSD-3-Clause
"""The cheapest convolution algorithm and memory layout for every layer of a PyTorch model."""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from torchalgo_cli import install as _install

_install.check_build()  # before torch, whose own error for another Python misleads

try:
    import torch as _torch
except ModuleNotFoundError as _problem:
    if _problem.name != "torch":
        raise
    raise _install.no_torch_error() from None


def _load_library() -> None:
    """Raises ImportError if torchalgo was built for another torch.

    The error is clearer than that of the dynamic linker.
    """
    _install.check_torch(_install.built_for_torch(), _torch.__version__)
    try:
        _torch.ops.load_library(str(_install.PACKAGE / "libtorchalgo.so"))
    except OSError as problem:
        raise _install.load_error(problem) from None


_load_library()

from torchalgo import _C  # noqa: E402

_install.check_torch(_C.torch_version, _torch.__version__)

from torchalgo._base import error_code as _error_code  # noqa: E402

_C.Error.code = property(_error_code.code_of)  # type: ignore[assignment]  # C++ registers it
_C.Error.__doc__ = _error_code.ERROR_DOC

from torchalgo._base import cudnn_errata as _cudnn_errata  # noqa: E402

_cudnn_errata.set_errata()

from torchalgo import backends, dynamo, nn, pbqp  # noqa: E402
from torchalgo._api.convert import convert, set_algorithms  # noqa: E402
from torchalgo._api.fallbacks import (  # noqa: E402
    fallbacks,
    reset_fallbacks,
    set_conflict_policy,
    set_strict,
)
from torchalgo._C import Error  # noqa: E402
from torchalgo.functional import (  # noqa: E402
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)

__version__ = _C.version

if _TYPE_CHECKING:
    from torchalgo import tune
    from torchalgo._api.emit import EmittedNetwork, emit
    from torchalgo._api.enable import algorithms, disable, enable, record_runs
    from torchalgo._api.optimize import optimize
    from torchalgo._api.optimize_training import optimize_training
    from torchalgo._api.profile import Profile, profile
    from torchalgo._capture.file_models import load_caffe, load_onnx
    from torchalgo._capture.settings import Settings
    from torchalgo._ir.plan import Plan
    from torchalgo._lint.lint import lint
    from torchalgo._lint.report import Finding, LintReport
    from torchalgo._plan.candidates import candidates
    from torchalgo._plan.pareto import Front, ParetoPoint, pareto
    from torchalgo._plan.schedule import Schedule
    from torchalgo._run.call_times import CallTimes
    from torchalgo._run.captured import CapturedCalls
    from torchalgo._run.load import load, load_plan, load_plans
    from torchalgo._run.optimized import Optimized
    from torchalgo._train.module import TrainingModule
    from torchalgo._train.plan import TrainingPlan
    from torchalgo.verify.check_plan import CheckedPlan, check_plan
else:
    _LATER = {  # the names that are imported when they are first used, by module
        "_api.emit": ("EmittedNetwork", "emit"),
        "_api.enable": ("algorithms", "disable", "enable", "record_runs"),
        "_api.optimize": ("optimize",),
        "_api.optimize_training": ("optimize_training",),
        "_api.profile": ("Profile", "profile"),
        "_capture.file_models": ("load_caffe", "load_onnx"),
        "_capture.settings": ("Settings",),
        "_ir.plan": ("Plan",),
        "_lint.lint": ("lint",),
        "_lint.report": ("Finding", "LintReport"),
        "_plan.candidates": ("candidates",),
        "_plan.pareto": ("Front", "ParetoPoint", "pareto"),
        "_plan.schedule": ("Schedule",),
        "_run.call_times": ("CallTimes",),
        "_run.captured": ("CapturedCalls",),
        "_run.load": ("load", "load_plan", "load_plans"),
        "_run.optimized": ("Optimized",),
        "_train.module": ("TrainingModule",),
        "_train.plan": ("TrainingPlan",),
        "verify.check_plan": ("CheckedPlan", "check_plan"),
    }

    def __getattr__(name: str) -> object:
        """Imports a public name that is first used now. So `import torchalgo` takes little time."""
        for module, names in _LATER.items():
            if name in names:
                value = getattr(_import_module(f"torchalgo.{module}"), name)
                return globals().setdefault(name, value)
        if name == "tune":
            return _import_module("torchalgo.tune")
        text = f"module 'torchalgo' has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=_sys.modules[__name__])

    def __dir__() -> list[str]:
        """Lists the public names too that are imported when they are first used."""
        return sorted({*globals(), *__all__})


__all__ = [
    "CallTimes",
    "CapturedCalls",
    "CheckedPlan",
    "EmittedNetwork",
    "Error",
    "Finding",
    "Front",
    "LintReport",
    "Optimized",
    "ParetoPoint",
    "Plan",
    "Profile",
    "Schedule",
    "Settings",
    "TrainingModule",
    "TrainingPlan",
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
    "dynamo",
    "emit",
    "enable",
    "fallbacks",
    "lint",
    "load",
    "load_caffe",
    "load_onnx",
    "load_plan",
    "load_plans",
    "nn",
    "optimize",
    "optimize_training",
    "pareto",
    "pbqp",
    "profile",
    "record_runs",
    "reset_fallbacks",
    "set_algorithms",
    "set_conflict_policy",
    "set_strict",
    "tune",
]
