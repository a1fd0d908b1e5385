# SPDX-License-Identifier: BSD-3-Clause
"""Each torchalgo.Error has a code of docs/errors.md. scripts/check_errors.py finds others."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch

import torchalgo
from support.nets import run_plan
from torchalgo import _C
from torchalgo._base.error_code import with_inner_code, without_code

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import check_errors


def test_the_sources_and_the_page_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_errors.main() == 0, capsys.readouterr().out


def test_an_error_of_python_has_a_code() -> None:
    with pytest.raises(torchalgo.Error, match=r"^TA1101 optimize: model is int, expected") as found:
        torchalgo.optimize(1)  # type: ignore[arg-type]
    assert found.value.code == "TA1101"


def test_an_error_of_cpp_has_a_code() -> None:
    with pytest.raises(torchalgo.Error) as found:
        _C.parse_problem("nonsense")
    assert found.value.code == "TA4001"


def test_an_error_of_an_op_has_a_code_through_python_and_torchscript() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)).eval()
    fast = run_plan(model, torch.rand(1, 3, 8, 8))
    with pytest.raises(torchalgo.Error) as found:
        fast(torch.rand(1, 3, 8, 8, dtype=torch.float64))
    assert found.value.code == "TA1204"
    with pytest.raises(RuntimeError, match="TA4304 torchalgo: layer"):
        fast.scripted(torch.rand(1, 3, 8, 8, dtype=torch.float64))


def test_a_wrapper_keeps_the_code_of_the_cause() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return {"a": object(), "b": x}

    with pytest.raises(torchalgo.Error, match=r"^TA1207 optimize: the model's result") as found:
        torchalgo.optimize(Odd().eval(), torch.rand(2, 3))
    assert found.value.code == "TA1207"
    assert str(found.value).count("TA1") == 1


def test_an_error_without_a_code_has_an_empty_one() -> None:
    assert torchalgo.Error("no code").code == torchalgo.Error().code == ""
    assert torchalgo.Error("TA11011 too long").code == ""


def test_a_copy_of_an_error_has_its_code() -> None:
    error = torchalgo.Error("TA1101 optimize: text")
    assert copy.copy(error).code == pickle.loads(pickle.dumps(error)).code == "TA1101"


@pytest.mark.parametrize(
    ("text", "wrapped", "without"),
    [
        ("TA1110 a: TA1101 b", "TA1101 a: b", "a: b"),
        ("TA1110 a: TA1101 b: TA4001 c", "TA4001 a: b: c", "a: b: c"),
        ("TA1110 a: b", "TA1110 a: b", "a: b"),
        ("a: TA1101 b", "TA1101 a: b", "a: b"),
        ("xTA1101 a TA43031 b TA1101", "xTA1101 a TA43031 b TA1101", "xTA1101 a TA43031 b TA1101"),
    ],
)
def test_an_inner_code_goes_to_the_front(text: str, wrapped: str, without: str) -> None:
    assert with_inner_code(text) == wrapped
    assert without_code(text) == without


PYTHON = """
TEXT = "TA1101 of a constant {}"
def f(problem, e):
    raise Error("TA1101 plain")
    raise Error(f"TA1101 of {problem}" " in two parts")
    raise _C.Error(with_inner_code(f"TA1101 {problem}"))
    raise Error(TEXT.format(1))
    raise FileError("TA1101 " + problem)
    raise ValueError("of another kind")
    raise Error("plain")
    raise Error(f"{problem} TA1101 is not in front")
    raise Error(str(e))
    raise Error()
"""

CXX = r"""
TORCHALGO_CHECK(text.find_first_of("\t,") == f(a, {1, 2}) && c != ',', "TA1101 {}", a);
throw Error(fmt::format("TA1101 {}", a));
throw StatusError(answer(a, "b"), fmt::format("TA1101 {}", a));
NoPlan error("TA1101 x" + y);
#define CHECK throw Error(text)
TORCHALGO_CHECK(text == "TA1101 ", "plain");
throw ::torchalgo::Error(problem.what());
throw NoPlan(fmt::format("{}: no code", "TA1101 a"));
"""


def test_the_script_finds_errors_without_a_code() -> None:
    found = sorted(check_errors.python_sites(PYTHON))
    assert [text.startswith("TA1101 ") for _, text in found] == [True] * 5 + [False] * 4
    found = sorted(check_errors.cxx_sites(CXX))
    assert [(line, text.startswith("TA1101 ")) for line, text in found] == [
        (2, True), (3, True), (4, True), (5, True), (7, False), (8, False), (9, False),
    ]  # fmt: skip


def test_the_script_finds_codes_that_the_page_lacks_or_repeats() -> None:
    used: set[str] = set()
    sites = iter([(1, "TA1101 a"), (2, "TA9999 b"), (3, "c")])
    found = check_errors.violations(sites, "x.py", {"TA1101"}, used)
    assert used == {"TA1101"}
    assert [line.partition(":")[2][0] for line in found] == ["2", "3"]
    row = "| TA1101 | meaning | what to do |\n"
    assert check_errors.registered(row + "| TA1102 | a | b |\n") == (["TA1101", "TA1102"], [])
    assert check_errors.registered(row + row) == (["TA1101", "TA1101"], ["TA1101"])
    assert check_errors.registered("| TA1101 | meaning |  |\n") == ([], [])
