# SPDX-License-Identifier: BSD-3-Clause
"""A plan as a folder of C++: it builds, needs no library, and computes the bits of the module."""

from __future__ import annotations

import platform
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.random_plans import priced_plan, rewrite
from torchalgo import _C
from torchalgo._api.emit import _example, write_plan
from torchalgo._capture.freeze import freeze_model
from torchalgo._emit.arena import ALIGNMENT, Block, place
from torchalgo._emit.folder import ISAS, Program, device_of, identifier, write_folder
from torchalgo._emit.sources import bf16_kernels, sources_for
from torchalgo._emit.tables import in_comment
from torchalgo._plan.held import program_of
from torchalgo_cli import main

OWN = torchalgo.Settings(own_kernels=True, cost_db=False, progress=False)


class Small(nn.Module):
    """Convolutions, poolings, a concatenation, a sum, a view and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.left, self.right = nn.Conv2d(32, 16, 1), nn.Conv2d(32, 16, 3, padding=1)
        self.wise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.cat([torch.relu(self.left(x)), self.right(x)], 1)
        x = x + nn.functional.hardswish(self.wise(x))
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def optimized(model: nn.Module, *inputs: torch.Tensor, **options: object) -> torchalgo.Optimized:
    return torchalgo.optimize(model.eval(), inputs, budget_s=20, settings=OWN, **options)


@pytest.fixture(scope="module")
def fast() -> torchalgo.Optimized:
    torch.manual_seed(0)
    return optimized(Small(), torch.randn(1, 3, 32, 32))


@pytest.fixture(scope="module")
def built(fast: torchalgo.Optimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the network was built."""
    folder = tmp_path_factory.mktemp("emitted") / "small"
    torchalgo.emit(fast, folder, threads=2)
    build(folder)
    return folder


def build(folder: Path, *options: str) -> None:
    for command in (
        ["cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", *options],
        ["cmake", "--build", folder / "build"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout + done.stderr


def run_test(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "build" / f"{folder.name}_test"
    return subprocess.run([program, folder, *arguments], capture_output=True, text=True)


def test_results_have_the_bits_of_the_module(built: Path) -> None:
    for threads in ("1", "2"):
        done = run_test(built, threads)
        assert done.returncode == 0, done.stderr
        assert "the bits of the stored result" in done.stdout


def run_with(
    program: Path, folder: Path, **changed: bytes | None
) -> subprocess.CompletedProcess[str]:
    """Runs a program on copies of its files. `changed` replaces some; None leaves one out."""
    files = {
        name: (program.parents[1] / f"{name}.bin").read_bytes() for name in ("test", "weights")
    }
    for name, content in {**files, **changed}.items():
        if content is not None:
            (folder / f"{name}.bin").write_bytes(content)
    return subprocess.run([program, folder], capture_output=True, text=True)


def test_another_stored_result_is_a_failure(built: Path, tmp_path: Path) -> None:
    data = bytearray((built / "test.bin").read_bytes())
    data[-2] ^= 0x40  # the exponent of the last result
    done = run_with(built / "build" / "small_test", tmp_path, test=data)
    assert done.returncode == 1
    assert "another result" in done.stdout


@pytest.mark.parametrize("change", ["cut", "longer", "changed", "missing"])
def test_wrong_weights_are_refused(built: Path, tmp_path: Path, change: str) -> None:
    data = bytearray((built / "weights.bin").read_bytes())
    if change == "changed":
        data[len(data) // 2] ^= 1
    changed = {"cut": data[:-1], "longer": data + b"\0", "missing": None}.get(change, data)
    done = run_with(built / "build" / "small_test", tmp_path, weights=changed)
    assert done.returncode == 1
    assert f"status {1 if change == 'missing' else 2}" in done.stderr


COUNTING = """
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>
#include "small.h"

static std::size_t allocations = 0;
void* operator new(std::size_t size) { ++allocations; return std::malloc(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int, char** arguments) {
  small_network* network = nullptr;
  if (small_open(&network, arguments[1], nullptr) != SMALL_OK) return 1;
  static float input[3 * 32 * 32], results[2][10];
  for (float& x : input) x = 0.5f;
  const float* in[] = {input};
  const auto call = [&](int i) {
    void* arena = std::aligned_alloc(64, SMALL_ARENA_BYTES);
    float* out[] = {results[i]};
    const std::size_t before = allocations;
    int status = 0;
    for (int n = 0; n < 20; ++n) status += small_run(network, in, out, arena, nullptr);
    if (i == 0) std::printf("%zu allocations\\n", allocations - before);
    std::free(arena);
    return status;
  };
  int status = call(0);
  std::thread other([&] { status += call(1); });
  status += call(0);
  other.join();
  float* out[] = {results[0]};
  const bool refuses = small_run(network, in, out, (char*)64 + 1, nullptr) == SMALL_BAD_ARGUMENT &&
                       small_run(nullptr, in, out, (void*)64, nullptr) == SMALL_BAD_ARGUMENT;
  for (int i = 0; i < 10; ++i) status += results[0][i] != results[1][i];
  small_close(network);
  return status + !refuses;
}
"""


def planned_in_bf16() -> tuple[_C.Graph, _C.Plan, torch.jit.ScriptModule]:
    """A plan whose layers store bf16 wherever a kernel does, also on a machine without products."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    imported = _C.import_graph(freeze_model(Small().eval(), (x,))._c, (x,))
    here = _C.cpu_device()
    device = _C.Device(
        kind="cpu", name=here.name, isa=here.isa, threads=2, bf16_isa=here.bf16_isa or "avx512bf16"
    )

    def price(key: _C.CostKey) -> int:
        if not _C.has_own_kernel(key.primitive):
            return 1 << 40
        return 1 if "bf16" in key.dst and not key.problem.startswith("transform_") else 1 << 20

    plan = priced_plan(imported.graph, price, device)
    own = {node.primitive.name for node in plan.nodes if "bf16" in node.primitive.dst}
    assert own >= {"cpu.bf16_conv", "cpu.depthwise", "cpu.pool"}
    return imported.graph, plan, rewrite(imported, plan)


def test_layers_in_bf16_have_the_bits_of_the_module(tmp_path: Path) -> None:
    here = _C.cpu_device()
    isa = here.bf16_isa or here.isa
    graph, plan, scripted = planned_in_bf16()
    folder = tmp_path / "half"
    written = write_plan(graph, plan, scripted, folder, "half", [device_of(isa, here.name, 2)])
    assert written.isas == (isa,)
    build(folder)
    for threads in ("1", "2"):
        done = run_test(folder, threads)
        assert done.returncode == 0, done.stderr
        assert f"half, {isa}: the bits of the stored result" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these sets are those of x86")
def test_programs_that_multiply_in_bf16_build_anywhere(tmp_path: Path) -> None:
    graph, plan, scripted = planned_in_bf16()
    here = _C.cpu_device()
    network = program_of(_C.lower(graph, plan), graph, scripted, here, packs=True)
    folder, sets = tmp_path / "half", ("amx", "avx512bf16")
    tensors = _example(scripted, network)
    write_folder(folder, Program("half", dict.fromkeys(sets, network), True, 2, tensors))
    build(folder, "-DCMAKE_BUILD_TYPE=Debug")
    codes = {isa: run_test(folder, "1", "1", isa).returncode for isa in sets}
    assert set(codes.values()) <= {0, 77}  # 77: this processor lacks the instructions
    assert codes.get(here.bf16_isa, 0) == 0
    assert run_test(folder, "1", "1", "avx512").returncode == 77


def test_a_run_allocates_nothing_and_two_threads_may_run(built: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "count.cpp", tmp_path / "count"
    source.write_text(COUNTING)
    compile_ = ["g++", "-std=c++20", source, "-I", built, built / "build" / "libsmall.a", "-o"]
    subprocess.run([*compile_, program, "-pthread", "-Wl,--gc-sections"], check=True)
    done = subprocess.run([program, built / "weights.bin"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("0 allocations\n")


class Tiny(nn.Module):
    """A network whose kernels compile in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(3, 20, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([torch.relu(self.left(x)), self.right(x)], 1)
        return nn.functional.max_pool2d(x, 3, 2)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for this machine's set and the one of all machines, with weights of the model.

    Clang built it, and errors of memory and undefined behaviour end its program.
    """
    torch.manual_seed(0)
    overrides = {"left": "cpu.direct", "right": "cpu.im2col_gemm"}
    fast = optimized(Tiny(), torch.randn(1, 3, 32, 32), overrides=overrides)
    folder = tmp_path_factory.mktemp("several") / "sets"
    isas = dict.fromkeys(("default", _C.cpu_device().isa))
    written = torchalgo.emit(fast, folder, isa=list(isas), name="tiny")
    assert written.packed_bytes > written.weight_bytes
    # For this machine's set, the header names no tiles. Then the program computes each tile row by
    # row, and its results must not change.
    header = folder / "sets" / _C.cpu_device().isa / "cpu_algo" / "kernels" / "isa.h"
    text, count = re.subn(r"(TORCHALGO_INSTANCES) \w+, \w+,", r"\1 0, 0,", header.read_text())
    assert count == 1
    header.write_text(text)
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -Wextra"
    build(folder, "-DCMAKE_CXX_COMPILER=clang++", f"-DCMAKE_CXX_FLAGS={flags}",
          "-DCMAKE_BUILD_TYPE=Debug")  # fmt: skip
    return folder


def test_a_folder_of_several_sets_takes_the_widest(several: Path) -> None:
    program, widest = several / "build" / "tiny_test", _C.cpu_device().isa
    for isa in (None, "default", widest, "sse9"):
        arguments = [several, "2", "2", *([] if isa is None else [isa])]
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        if isa == "sse9":
            assert done.returncode == 77
            assert "lacks the instruction set" in done.stderr
            continue
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"tiny, {isa or widest}: ")
        if isa != "default":
            assert "the bits of the stored result" in done.stdout


def test_wrong_weights_of_a_model_are_refused(several: Path, tmp_path: Path) -> None:
    data = bytearray((several / "weights.bin").read_bytes())
    data[100] ^= 1
    done = run_with(several / "build" / "tiny_test", tmp_path, weights=data)
    assert done.returncode == 1
    assert "status 2" in done.stderr


BOTH = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "small.h"
#include "tiny.h"

std::vector<float> read(const char* path, int skipped, int floats) {
  std::vector<float> result(floats);
  FILE* file = std::fopen(path, "rb");
  std::fseek(file, 4 * skipped, SEEK_SET);
  if (std::fread(result.data(), 4, floats, file) != result.size()) std::abort();
  std::fclose(file);
  return result;
}

int main(int, char** arguments) {
  small_network* one = nullptr;
  tiny_network* two = nullptr;
  if (small_open(&one, arguments[1], nullptr) != SMALL_OK) return 1;
  if (tiny_open(&two, arguments[2], "default") != TINY_OK) return 2;
  constexpr int kInput = 3 * 32 * 32;
  const auto small_input = read(arguments[3], 0, kInput), small = read(arguments[3], kInput, 10);
  const auto tiny_input = read(arguments[4], 0, kInput), tiny = read(arguments[4], kInput, 9900);
  std::vector<float> results[2] = {std::vector<float>(10), std::vector<float>(9900)};
  const float* in[][1] = {{small_input.data()}, {tiny_input.data()}};
  float* out[][1] = {{results[0].data()}, {results[1].data()}};
  void* arena = std::aligned_alloc(64, SMALL_ARENA_BYTES + TINY_ARENA_BYTES);
  int wrong = small_run(one, in[0], out[0], arena, nullptr);
  wrong += tiny_run(two, in[1], out[1], arena, nullptr);
  for (int i = 0; i < 10; ++i) wrong += !(std::abs(results[0][i] - small[i]) < 1e-4f);
  for (int i = 0; i < 9900; ++i) wrong += !(std::abs(results[1][i] - tiny[i]) < 1e-4f);
  small_close(one);
  tiny_close(two);
  std::free(arena);
  return wrong > 0 ? 3 : 0;
}
"""


def test_two_networks_of_different_sets_are_one_program(
    built: Path, several: Path, tmp_path: Path
) -> None:
    source, program = tmp_path / "both.cpp", tmp_path / "both"
    source.write_text(BOTH)
    compile_ = [
        "clang++", "-std=c++20", "-fsanitize=address,undefined", source, "-I", built, "-I", several,
        built / "build" / "libsmall.a", several / "build" / "libtiny.a", "-o", program,
        "-pthread",
    ]  # fmt: skip
    subprocess.run(compile_, check=True)
    files = [f / name for name in ("weights.bin", "test.bin") for f in (built, several)]
    done = subprocess.run([program, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_programs_share_a_pool(built: Path, several: Path, tmp_path: Path) -> None:
    source = tmp_path / "both.c"
    source.write_text(
        '#include "small.h"\n#include "tiny.h"\n'
        "int both(small_network* a, tiny_network* b, const float** in, float** out, void* mem) {\n"
        "  const small_threads pool = small_pool(2);\n"
        "  return small_run(a, in, out, mem, &pool) + tiny_run(b, in, out, mem, &pool);\n}\n"
    )
    for compiler in (["gcc", "-std=c11"], ["g++", "-x", "c++"]):
        words = [*compiler, "-Wall", "-Werror", "-fsyntax-only", "-I", built, "-I", several, source]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_file_of_several_plans_has_a_program_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    sizes = [(1, 3, 8, 8), (2, 3, 8, 8)]
    both = optimized(nn.Sequential(nn.Conv2d(3, 8, 1)), torch.randn(sizes[0]), shapes=sizes)
    both.save(tmp_path / "both.pt")
    words = ["emit", str(tmp_path / "both.pt"), "-o"]
    assert main([*words, str(tmp_path / "first")]) == 0
    said = capsys.readouterr()
    assert "inputs of 1x3x8x8" in said.out
    assert "the program is for 1x3x8x8; --shape writes that for 2x3x8x8" in said.err
    assert main([*words, str(tmp_path / "other"), "--shape", "2x3x8x8"]) == 0
    said = capsys.readouterr()
    assert "inputs of 2x3x8x8" in said.out
    assert not said.err
    assert main([*words, str(tmp_path / "none"), "--shape", "3x3x8x8"]) == 1
    assert "expected one of 1x3x8x8, 2x3x8x8" in capsys.readouterr().err


def test_it_needs_no_library(built: Path) -> None:
    needs = subprocess.run(
        ["ldd", built / "build" / "small_test"], capture_output=True, text=True, check=True
    ).stdout
    names = set(re.findall(r"^\s*(lib\w+|linux-vdso|/\S+ld-linux)", needs, flags=re.MULTILINE))
    allowed = {"libstdc", "libgcc_s", "libm", "libc", "libpthread", "linux-vdso"}
    assert {name for name in names if not name.startswith("/")} <= allowed


def test_a_program_has_only_the_functions_that_it_calls(built: Path) -> None:
    files = [built / "build" / name for name in ("libsmall.a", "small_test")]
    whole, linked = (subprocess.check_output(["nm", "-C", file], text=True) for file in files)
    tiles = set(re.findall(r"run_whole<\d+, \d+, \w+>", whole))
    assert 0 < len(tiles) < 30  # of 86 with AVX-512, and four of one row
    for name in ("depthwise_bf16", "pool_bf16", "run_activation_gradient", "direct_work"):
        assert name not in linked, name


def test_names_of_layers_never_become_code(tmp_path: Path) -> None:
    model = nn.Sequential()
    for name in ("a\\", 'b"; #error', "c*/ int x;", "d??/"):
        model.add_module(name, nn.Conv2d(8, 8, 1))
    fast = optimized(model, torch.randn(1, 8, 4, 4))
    torchalgo.emit(fast, tmp_path / "int", name="int")
    isa = _C.cpu_device().isa
    source = f"int_{isa}.cpp"
    program = (tmp_path / "int" / source).read_text()
    compiled = subprocess.run(
        ["g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", source, "-I", f"sets/{isa}",
         "-I", "sources", "-I", "."],
        cwd=tmp_path / "int", capture_output=True, text=True,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    lines = [line for line in program.splitlines() if "#error" in line or "int x" in line]
    assert all(line.startswith("    // ") and not line.endswith("\\") for line in lines)


def test_what_has_no_kernel_is_refused_by_layer_and_operation(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(self.conv(x), 3)

    fast = optimized(Odd(), torch.randn(1, 8, 4, 4))
    with pytest.raises(torchalgo.Error, match=r"TA2801 emit: layer .*aten::cumsum"):
        torchalgo.emit(fast, tmp_path / "odd")
    assert not (tmp_path / "odd").exists()


def test_a_dropout_that_drops_is_not_taken_for_a_view(tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.conv(x), 0.5, training=True)

    with pytest.raises(torchalgo.Error):  # of optimize, since results differ, or of emit
        torchalgo.emit(optimized(Dropping(), torch.randn(1, 8, 4, 4)), tmp_path / "net")


def test_activations_between_linear_layers_and_means_are_computed(tmp_path: Path) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.a, self.b = nn.Conv2d(3, 8, 3), nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(self.conv(x).mean([2, 3]))))

    fast = optimized(Head(), torch.randn(2, 3, 8, 8))
    torchalgo.emit(fast, tmp_path / "net")
    program = (tmp_path / "net" / f"net_{_C.cpu_device().isa}.cpp").read_text()
    for problem in ("avgpool_f32_n2c8h6w6_p1q1", "tanh_f32_n1c1h1w32"):
        assert _C.problem_code(problem) in program


def test_a_plan_with_pytorchs_kernels_is_refused(tmp_path: Path) -> None:
    model, inputs = nn.Conv2d(8, 8, 3).eval(), (torch.randn(1, 8, 9, 9),)
    settings = torchalgo.Settings(run_untimed=True, cost_db=False, progress=False)
    fast = torchalgo.optimize(
        model, inputs, overrides={"*": "aten.conv"}, budget_s=0.01, settings=settings
    )
    assert fast.runs == "plan"
    with pytest.raises(torchalgo.Error, match=r"TA2801 .*aten\.conv.*own_kernels=True"):
        torchalgo.emit(fast, tmp_path / "net")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"isa": "sse9"}, "expected one of 'amx', 'avx512bf16', 'avx512', 'avx2', 'default'"),
        (
            {"isa": []},
            "expected one of 'amx', 'avx512bf16', 'avx512', 'avx2', 'default', or a list of them",
        ),
        ({"weights": "small"}, "expected 'plain', or 'packed' for one instruction set"),
        ({"weights": "packed", "isa": ("avx2", "default")}, "'packed' for one instruction set"),
        ({"threads": 0}, "expected a number from 1 to 128"),
        ({"threads": True}, "expected a number from 1 to 128"),
    ],
)
def test_wrong_arguments(
    fast: torchalgo.Optimized, tmp_path: Path, options: dict[str, object], text: str
) -> None:
    with pytest.raises(torchalgo.Error, match=re.escape(text)):
        torchalgo.emit(fast, tmp_path / "net", **options)  # type: ignore[arg-type]


def test_a_budget_that_is_over_at_once_still_gives_own_kernels() -> None:
    fast = torchalgo.optimize(
        Small().eval(), (torch.randn(1, 3, 32, 32),), budget_s=0.01, settings=OWN
    )
    assert fast.runs == "plan"
    assert all(_C.has_own_kernel(node.primitive) for node in fast.plan.nodes if node.primitive)


def test_a_layer_without_a_kernel_of_ours_is_an_error_that_says_so() -> None:
    model = nn.Conv3d(3, 4, 3).eval()
    with pytest.raises(torchalgo.Error, match=r"TA2301 .*own_kernels=True allows"):
        optimized(model, torch.randn(1, 3, 6, 6, 6))


def test_the_command_writes_the_same_folder(
    fast: torchalgo.Optimized, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast.save(tmp_path / "small.pt")
    torchalgo.emit(fast, tmp_path / "a" / "net")
    for _ in range(2):  # the second call replaces what the first one wrote
        args = ["emit", str(tmp_path / "small.pt"), "-o", str(tmp_path / "b" / "net")]
        assert main(args) == 0
    assert "steps for" in capsys.readouterr().out
    names = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*")]
    assert len(names) > 20
    for name in names:
        if (tmp_path / "a" / name).is_file():
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_files_of_others_are_kept(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(torchalgo.Error, match="has files that emit did not write"):
        torchalgo.emit(fast, tmp_path)
    with pytest.raises(torchalgo.Error, match="is a file"):
        torchalgo.emit(fast, tmp_path / "mine.txt")
    torchalgo.emit(fast, tmp_path / "net")
    torchalgo.emit(fast, tmp_path / "net")  # its own files are replaced


def test_only_what_runs_its_plan_is_emitted(tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match=r"expected the result of torchalgo\.optimize"):
        torchalgo.emit(nn.Conv2d(3, 3, 1), tmp_path / "net")  # type: ignore[arg-type]


def test_instruction_sets_are_those_of_the_product() -> None:
    kernels = Path(__file__).parents[2] / "csrc" / "cpu_algo" / "kernels"
    table = (kernels / "isa.h").read_text()
    rows = {name: row for name, *row in re.findall(r'X\((\w+), "(\w+)", (\w+),', table)}
    for isa in ISAS.values():
        assert [isa.capability, str(isa.has_wide_registers).lower()] == rows[isa.table_isa]
    in_bf16 = [name for name, isa in ISAS.items() if isa.table_isa != name]
    assert in_bf16 == re.findall(r"PICK_IN\((\w+), , , bf16_isa", table)
    assert all(bf16_kernels(name) for name in in_bf16)


def test_identifiers() -> None:
    assert identifier("ResNet-18") == "resnet_18"
    assert identifier("3d net") == "net_3d_net"
    assert identifier("…") == "net"


def test_random_names_become_names_and_comments_of_c() -> None:
    dice = random.Random(0)
    signs = "aZ09_ .-/\\*\"'?<>#$%;{}()\n\r\t\0\x7f\u202e\u2028\U0001f600é"
    for _ in range(3000):
        text = "".join(dice.choices(signs, k=dice.randrange(200)))
        assert re.fullmatch(r"[a-z][a-z0-9_]{,70}", identifier(text), re.ASCII)
        assert re.fullmatch(r"[A-Za-z0-9_.#+-]{,100}", in_comment(text), re.ASCII)


def test_blocks_of_one_step_never_overlap() -> None:
    dice = random.Random(0)
    for _ in range(200):
        blocks = []
        for _ in range(dice.randrange(1, 30)):
            first = dice.randrange(20)
            blocks.append(Block(dice.randrange(1, 5000), first, first + dice.randrange(6)))
        arena = place(blocks)
        assert arena.bytes >= arena.least
        for i, a in enumerate(blocks):
            assert arena.offsets[i] % ALIGNMENT == 0
            assert arena.offsets[i] + a.bytes <= arena.bytes
            for j, b in enumerate(blocks[:i]):
                if a.first <= b.last and b.first <= a.last:
                    is_before = arena.offsets[i] + a.bytes <= arena.offsets[j]
                    assert is_before or arena.offsets[j] + b.bytes <= arena.offsets[i]


CONV = "n1c32h8w9_k32r3s5_st2x1_pad1x2_dil1x2_g4"
PROBLEMS = (
    f"fwd_f32_{CONV}+bias+add+leaky_relu0.1", f"bwd_data_bf16_{CONV}+bias+clamp-1x1.5",
    "fwd_f32_n1c3d8h8w8_k4t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g1", "avgpool_f32_n1c2048h7w7_p1q1",
    "maxpool_f32_n1c64h112w112_r3s3_st2x2_pad1x1_dil1x1_ceil",
    "avgpool_f32_n1c8h9w9_r3s2_st1x2_pad1x0_exclpad", "mul_f32_n1c64h56w56_channelwise+relu",
    "sub_f32_n1c64h56w56", "elu0.5_f32_n1c64h56w56", "scaleshift_f32_n1c64h56w56+relu",
    "rmsnorm_f32_n1c96h56w56_eps1e-06", "groupnorm_f32_n1c64h56w56_g32_eps1e-05+silu",
    "concat_f32_n1c58x58h28w28_shuffle2", "slice_f32_n1c116h28w28_k58from58",
    "shuffle_f32_n1c116h28w28_g2", "pixelshuffle_f32_n1c64h56w56_x2",
    "nearest_f32_n1c64h7w7_x2x2", "bilinear_f32_n1c64h7w7_p13q9_align",
    "linear_f32_n1c2048_k1000+bias", "transform_f32_n1c64h56w56_nhwc_nChw16c",
    "chain_f32_n1c24h56w56_mul_k144r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu6"
    "_k144r3s3_st1x1_pad1x1_dil1x1_g144+bias",
)  # fmt: skip


@pytest.mark.slow
def test_programs_make_the_problems_of_their_steps(tmp_path: Path) -> None:
    sources = sources_for(())
    for path, text in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    codes = {
        text: f"[]() -> Problem {{ {_C.problem_code(text)} return problem; }}()"
        for text in PROBLEMS
    }
    made = [f'same(parse_problem("{text}"), {code})' for text, code in codes.items()]
    program = tmp_path / "main.cpp"
    program.write_text(
        '#include "ir/problem.h"\nusing namespace torchalgo;\n'
        "static int same(const Problem& one, const Problem& other) { return one == other; }\n"
        f"int main() {{ return {len(PROBLEMS)} - ({' + '.join(made)}); }}\n"
    )
    needed = [tmp_path / path for path in sources if re.fullmatch(r"(ir|base)/\w+\.cpp", path)]
    command = ["g++", "-std=c++20", "-pthread", f"-I{tmp_path}", program, *needed]
    subprocess.run([*command, "-o", tmp_path / "main"], check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0
