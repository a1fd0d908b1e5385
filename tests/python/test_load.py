# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

import torchalgo
from support.nets import Net, arguments, fp64_error
from torchalgo._ir.plan import save_plans


def test_a_saved_module_runs_the_same_plan(
    fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "net.pt"
    fast.save(path)
    again = torchalgo.load(path)
    assert again.plan == fast.plan
    assert again.runs == "plan"
    assert torch.equal(again(x), fast(x))
    assert torchalgo.load_plan(path) == fast.plan
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt"]
    again.save(tmp_path / "again.pt")
    assert torch.equal(torchalgo.load(tmp_path / "again.pt")(x), fast(x))


@pytest.mark.parametrize("name", ["net.pt", "net.pt2"])
def test_file_objects_hold_what_files_hold(
    fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path, name: str
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.write(b"front")
        fast.save(file)
    with (tmp_path / name).open("rb") as file:
        file.seek(5)  # as torch.load, it reads from here
        again = torchalgo.load(file)
    assert again.plan == fast.plan and torch.equal(again(x), fast(x))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[5:])
    assert torch.equal(torchalgo.load(tmp_path / name)(x), fast(x))
    with zipfile.ZipFile(tmp_path / name) as archive:
        is_exported = any(part.endswith("/archive_format") for part in archive.namelist())
    assert is_exported == (name == "net.pt2")


def test_file_objects_in_memory(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    whole, portable = io.BytesIO(), io.BytesIO()
    fast.save(whole)
    fast.save(portable, portable=True)
    for file in (whole, portable):
        file.seek(0)
    assert torch.equal(torchalgo.load(whole)(x), fast(x))
    torch.testing.assert_close(torch.jit.load(portable)(x), fast(x), rtol=1e-3, atol=1e-4)


def test_wrong_file_objects_are_told(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    saved = io.BytesIO()
    fast.save(saved)
    damaged, closed = bytearray(saved.getvalue()), io.BytesIO()
    damaged[len(damaged) // 2] ^= 255
    closed.close()
    foreign = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), foreign)
    for file, text in (
        (io.BytesIO(bytes(damaged)), "TA2005 load: the file object is "),
        (io.BytesIO(saved.getvalue()[:-900]), "TA2005 load: the file object is "),
        (saved, "TA2005 load: the file object is no TorchScript file"),  # at its end
        (io.StringIO("text"), 'TA1001 load: the file object gives str, expected bytes: .*"rb"'),
        (closed, "TA2004 load: cannot read the file object: "),
        (io.BytesIO(foreign.getvalue()), "TA2006 load: the file object holds no plan.json"),
    ):
        with pytest.raises(torchalgo.Error, match=text):
            torchalgo.load(file)  # type: ignore[arg-type]
    for target, text in (
        (io.StringIO(), 'TA1001 save: the file object takes no bytes: .*"wb"'),
        (closed, "TA2001 save: cannot write the file object: "),
    ):
        with pytest.raises(torchalgo.Error, match=text):
            fast.save(target)  # type: ignore[arg-type]
    with (
        (tmp_path / "net.onnx").open("wb") as other,
        pytest.raises(torchalgo.Error, match=r"TA2003 save: .*net.onnx' names a file of another"),
    ):
        fast.save(other)
    with (
        (tmp_path / "net.pt2").open("wb") as exported,
        pytest.raises(torchalgo.Error, match="TA1001 save: portable"),
    ):
        fast.save(exported, portable=True)


def test_torch_jit_load_opens_a_saved_module(
    fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path
) -> None:
    fast.save(tmp_path / "net.pt")
    assert torch.equal(torch.jit.load(str(tmp_path / "net.pt"))(x), fast(x))


@torch.no_grad()
def test_torchalgo_hides_the_deprecations_of_torch_jit(tmp_path: Path) -> None:
    """Calls that make, copy, save and open modules show no warning of torch.jit."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    x, shapes = torch.rand(1, 3, 12, 12), [(1, 3, 12, 12), (2, 3, 12, 12)]
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("error", r"`torch\.jit\.", category)
        fast = torchalgo.optimize(model, (x,), shapes=shapes, **arguments(run_untimed=True))
        for name, portable in [("net.pt", False), ("net.pt2", False), ("portable.pt", True)]:
            fast.save(tmp_path / name, portable=portable)
        again = torchalgo.load(tmp_path / "net.pt")
        again.save(tmp_path / "again.pt2")
        program = torch.export.export(model, (x,))
        exported = torchalgo.optimize(program, plan=next(iter(fast.plans.values())))
        copies = [fast, again, exported, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))]
        modules = [torch.export.load(tmp_path / f"{n}.pt2").module() for n in ("net", "again")]
        for module in [*copies, *modules]:
            assert torch.equal(module(x), fast(x))


def test_a_loaded_module_takes_other_shapes(
    net: Net, fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.save(tmp_path / "net.pt")
    assert fp64_error(net, torchalgo.load(tmp_path / "net.pt"), torch.rand(2, 3, 20, 28)) <= 1e-5


def test_a_file_holds_each_weight_once(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    fast.save(tmp_path / "net.pt")
    fast.save(tmp_path / "portable.pt", portable=True)
    weights = sum(p.numel() * 4 for p in torch.jit.load(tmp_path / "portable.pt").parameters())
    plan_bytes = len(fast.plan.to_json())
    saved, portable = ((tmp_path / f"{n}.pt").stat().st_size for n in ("net", "portable"))
    assert weights == 0
    # 9 small layers: the code of the graph weighs more than 2 % here, the weights must not double.
    assert saved <= 1.02 * portable + plan_bytes + 30_000


def test_a_portable_file_runs_without_torchalgo(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path
) -> None:
    fast.save(tmp_path / "net.pt", portable=True)
    torch.save((x, net(x).detach()), tmp_path / "data.pt")
    code = (
        "import sys, torch\n"
        f"x, want = torch.load({str(tmp_path / 'data.pt')!r})\n"
        f"got = torch.jit.load({str(tmp_path / 'net.pt')!r})(x)\n"
        "assert 'torchalgo' not in sys.modules\n"
        "assert torch.allclose(got, want, atol=1e-5)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    again = torchalgo.load(tmp_path / "net.pt")
    assert again.runs == "baseline"
    assert fp64_error(net, again, x) <= 1e-5
    with pytest.raises(torchalgo.Error, match="portable=True needs the original model"):
        again.save(tmp_path / "other.pt", portable=True)


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.999])
def test_a_truncated_file_is_an_error(
    fast: torchalgo.Optimized, tmp_path: Path, keep: float
) -> None:
    fast.save(tmp_path / "net.pt")
    data = (tmp_path / "net.pt").read_bytes()
    cut = tmp_path / "cut.pt"
    cut.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(torchalgo.Error, match=r"cut.pt is no TorchScript file, or it is truncated"):
        torchalgo.load(cut)
    with pytest.raises(torchalgo.Error, match=r"cut.pt"):
        torchalgo.load_plan(cut)


def test_a_foreign_file_is_an_error(net: Net, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(net), tmp_path / "foreign.pt")
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(torchalgo.Error, match="was not saved by torchalgo"):
        torchalgo.load(tmp_path / "foreign.pt")
    with pytest.raises(torchalgo.Error, match="was not saved by torchalgo"):
        torchalgo.load_plan(tmp_path / "foreign.pt")
    for name in ("weights.pt", "text.pt"):
        with pytest.raises(torchalgo.Error, match=name):
            torchalgo.load(tmp_path / name)
    with pytest.raises(torchalgo.Error, match="there is no file"):
        torchalgo.load(tmp_path / "none.pt")


def test_a_folder_that_does_not_exist_is_an_error(
    fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    with pytest.raises(torchalgo.Error, match="save: cannot write"):
        fast.save(tmp_path / "none" / "net.pt")


def test_load_warns_once_of_a_plan_that_was_measured_with_other_threads(
    fast: torchalgo.Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast.save(tmp_path / "net.pt")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    with pytest.warns(UserWarning, match=r"net.pt: .* = 1, and here it is 5") as seen:
        torchalgo.load(tmp_path / "net.pt")
    assert len(seen) == 1 and seen[0].filename == __file__


def test_of_plans_for_the_same_shapes_the_nearest_by_threads_is_taken(
    net: Net,
    fast: torchalgo.Optimized,
    x: torch.Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured_with(threads: str) -> torchalgo.Plan:
        environment = {**fast.plan.environment, "threads": threads}
        return dataclasses.replace(fast.plan, environment=environment)

    plans = [measured_with(threads) for threads in ("many", "1", "4", "16")]
    save_plans(plans, tmp_path / "plans.json")
    quiet = torchalgo.Settings(progress=False)
    for threads, wanted in ((1, "1"), (3, "4"), (6, "4"), (9, "16"), (64, "16")):
        with monkeypatch.context() as changed:
            changed.setattr(torch, "get_num_threads", lambda count=threads: count)
            (loaded,) = torchalgo.load_plans(tmp_path / "plans.json").values()
        assert loaded.environment["threads"] == wanted
    made = torchalgo.optimize(net, x, plan=plans, settings=quiet)
    assert made.plan.environment["threads"] == "1"
