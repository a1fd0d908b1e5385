# SPDX-License-Identifier: BSD-3-Clause
"""Fail on an #include or an import against the direction of the flow.

csrc/CMakeLists.txt says which folders each folder DEPENDS on; a file may include its own folder,
those, and what those depend on in turn. FLOW lists the packages of Python; a module may import
its own package and those before it. No modules may import each other in a circle, and neither
may those of benchmarks/. SATELLITES lists what the satellites of the core may import.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
KERNELS = "cpu_algo/kernels"
NO_TORCH = {"base", "ir", "planner", "cpu_algo"}
STD_ONLY = {"pbqp", KERNELS}  # besides their own folder
MACROS_ONLY = {"ir/activations.h"}  # which any folder may include
STD = re.compile(r"[a-z_]+|(cpuid|[ix]mmintrin)\.h")  # and the compiler's own
TORCH = re.compile(r"(ATen|torch|c10|pybind11)/")


PYTHON = ROOT / "python" / "torchalgo"
API = ROOT / "docs" / "api.md"
BENCHMARKS = ROOT / "benchmarks"
# The packages of torchalgo in the order of the flow; modules of the package itself by their names.
FLOW = (
    "_version", "_build_info", "_base", "_ir", "_onnx_ops", "_onnx", "_caffe", "_predict",
    "_report", "_lint", "_emit", "_capture", "_db", "verify", "_measure", "_plan", "_refine",
    "_run", "_train", "backends", "functional", "nn", "pbqp", "_api", "_dynamo", "dynamo",
    "_distributed", "tune", "_cli", "__init__", "__main__",
)  # fmt: skip
# Satellites only read a model or a plan. Each imports the public names of docs/api.md, SHARED, its
# own package, and the packages that are listed here: decision 55.
SATELLITES = {
    "_onnx_ops": (), "_onnx": ("_onnx_ops",), "_caffe": ("_onnx_ops",), "_lint": (),
    "_report": ("_ir", "_C"), "_predict": ("_ir", "_C"), "_distributed": (),
    "_emit": ("_C",),
}  # fmt: skip
# Tools that know nothing of models and plans.
SHARED = ("_base", "_ir.plan.text_table")
# Imports that the rule forbids and a satellite still has, with the reason. The list may only become
# shorter.
EXCEPTIONS = {
    ("_distributed", "_C"): "the spelling of primitives in messages, and the work of a problem",
    ("_distributed", "_ir.costs"): "costs in messages between ranks",
    ("_distributed", "_measure.process_bench"): "the spelling of primitives in messages",
    ("_distributed", "_measure.sampling"): "its benches and samplers replace those of the core",
}


def folder_dependencies() -> dict[str, set[str]]:
    """Direct dependencies of each folder, as the CMake file states them."""
    text = (CSRC / "CMakeLists.txt").read_text()
    folders: dict[str, set[str]] = {KERNELS: set()}
    for body in re.findall(r"^torchalgo_folder\(([^)]*)\)", text, flags=re.MULTILINE):
        words = body.split()
        depends: set[str] = set()
        section = ""
        for word in words[1:]:
            if word in ("HEADERS", "BATCH", "DEPENDS"):
                section = word
            elif section == "DEPENDS":
                depends.add(word)
        folders[words[0]] = depends
    # all_algorithms.cpp joins the lists: the one file that knows every provider.
    folders["all_algorithms"] = {name for name in folders if name.endswith("_algo")} | {"provider"}
    folders["python"] = set(folders)  # the bindings
    return folders


def closure(folders: dict[str, set[str]], name: str) -> set[str]:
    """`name` and all that it depends on."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        folder = todo.pop()
        if folder in seen:
            continue
        if folder not in folders:
            raise SystemExit(
                f"check_includes: {name} depends on {folder}, which is no folder of csrc"
            )
        seen.add(folder)
        todo += folders[folder]
    return seen


def folder_of(path: str) -> str:
    """The folder that owns an include path below csrc."""
    if path.startswith(KERNELS + "/"):
        return KERNELS
    return path.split("/")[0] if "/" in path else Path(path).stem


def violations() -> list[str]:
    """One line for each include that no edge of the flow allows."""
    folders = folder_dependencies()
    found = []
    for source in sorted(CSRC.rglob("*.*")):
        if source.suffix not in (".h", ".cpp", ".cu") or source.parent == CSRC:
            continue
        name = source.relative_to(CSRC).as_posix()
        folder = folder_of(name)
        allowed = closure(folders, folder) | (set() if folder in STD_ONLY else {"base"})
        for number, line in enumerate(source.read_text().splitlines(), start=1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if not match:
                continue
            quote, path = match.groups()
            if quote == '"' and path not in MACROS_ONLY and folder_of(path) not in allowed:
                found.append(f"csrc/{name}:{number}: {folder} may not include {path}")
            if folder in NO_TORCH and TORCH.match(path):
                found.append(f"csrc/{name}:{number}: {folder} may not include torch ({path})")
            if folder in STD_ONLY and quote == "<" and not STD.fullmatch(path):
                found.append(f"csrc/{name}:{number}: {folder} includes nothing but std ({path})")
    return found


def python_modules() -> dict[str, Path]:
    """The modules by their names below torchalgo; a package has the name of its folder."""
    modules = {}
    for path in sorted(PYTHON.rglob("*.py")):
        parts = path.relative_to(PYTHON).with_suffix("").parts
        is_package = len(parts) > 1 and parts[-1] == "__init__"
        modules[".".join(parts[:-1] if is_package else parts)] = path
    return modules


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """Returns the name of the module from which a file imports, also if it is relative."""
    if not node.level:
        return node.module or ""
    folder = path.relative_to(PYTHON.parent).parts[: -node.level]
    return ".".join([*folder, *([node.module] if node.module else [])])


def imported_by(path: Path, modules: dict[str, Path]) -> list[tuple[int, str, bool]]:
    """Returns the line and the name of each import of torchalgo's own modules in a file.

    The third part is true if the import runs when the file itself is imported. It is false for an
    import in a function, which runs later. What only a type checker imports is left out.
    """
    tree = ast.parse(path.read_text())
    types, later = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            types |= {id(inner) for part in node.body for inner in ast.walk(part)}
        if isinstance(node, ast.FunctionDef):
            later |= {id(inner) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or id(node) in types:
            continue
        names = []
        if isinstance(node, ast.ImportFrom):
            module = absolute(path, node)
            if module.split(".")[0] == "torchalgo":
                names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("torchalgo.")]
        for name in names:
            below = name.partition(".")[2]
            while below and below not in modules:
                below = below.rpartition(".")[0]
            if below:
                found.append((node.lineno, below, id(node) not in later))
    return found


def python_violations() -> list[str]:
    """One line for each import against FLOW, and one for a circle of modules."""
    modules = python_modules()
    rank = {package: i for i, package in enumerate(FLOW)}
    found, edges = [], {}
    for name, path in modules.items():
        own = name.split(".")[0]
        imported = imported_by(path, modules)
        edges[name] = {other for _, other, is_at_once in imported if is_at_once and other != name}
        if own not in rank:
            found.append(f"python/torchalgo: {own} is not in FLOW of scripts/check_includes.py")
            continue
        for line, other, _ in imported:
            if rank.get(other.split(".")[0], -1) > rank[own]:
                place = path.relative_to(ROOT).as_posix()
                found.append(f"{place}:{line}: {own} may not import torchalgo.{other}")
    circle = find_circle(edges)
    if circle:
        found.append(f"python/torchalgo: imports in a circle: {' -> '.join(circle)}")
    return found


def public_names() -> set[str]:
    """Returns the names of docs/api.md, without "torchalgo."."""
    rows = [line for line in API.read_text().splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`torchalgo\.(\w+)", row.split(" | ")[0])}


def satellite_violations(
    satellites: Mapping[str, Sequence[str]] = SATELLITES,
    exceptions: Collection[tuple[str, str]] = EXCEPTIONS,
) -> list[str]:
    """Returns a line for each import that a satellite may not have, and for each idle exception."""
    public, found, used = public_names(), [], set()
    for own, packages in satellites.items():
        allowed = (own, *packages, *SHARED)
        for path in sorted((PYTHON / own).rglob("*.py")):
            for line, name in imported_names(path):
                if name in public or any(f"{name}.".startswith(f"{each}.") for each in allowed):
                    continue
                excepted = [e for e in exceptions if e[0] == own and name.startswith(e[1])]
                used.update(excepted)
                if not excepted:
                    place = path.relative_to(ROOT).as_posix()
                    found.append(f"{place}:{line}: a satellite may not import torchalgo.{name}")
    idle = sorted(set(exceptions) - used)
    return found + [f"EXCEPTIONS: {own} no longer imports {name}" for own, name in idle]


def imported_names(path: Path) -> list[tuple[int, str]]:
    """Returns the line and the name, without "torchalgo.", of each import of torchalgo in a file.

    It lists imports for type checkers too: a satellite may not know other types either.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            start = f"{absolute(path, node)}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{start}{alias.name}".partition(".") for alias in node.names]
            found += [(node.lineno, name) for root, _, name in names if root == PYTHON.name]
    return found


def find_circle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one twice; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, stack: list[str]) -> list[str]:
        if name in stack:
            return [*stack[stack.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges[name]):
            circle = walk(other, [*stack, name])
            if circle:
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(edges) if (circle := walk(name, []))), [])


def benchmark_violations() -> list[str]:
    """One line if modules of benchmarks/ import each other in a circle, also in functions."""
    edges: dict[str, set[str]] = {}
    for path in sorted(BENCHMARKS.glob("*.py")):
        names = edges.setdefault(path.stem, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    circle = find_circle({name: edges.keys() & found for name, found in edges.items()})
    return [f"benchmarks: imports in a circle: {' -> '.join(circle)}"] if circle else []


def main() -> int:
    """Print the violations; exit status 1 if there are any."""
    found = [
        *violations(), *python_violations(), *satellite_violations(), *benchmark_violations(),
    ]  # fmt: skip
    print("\n".join(found) if found else "directions of includes and imports: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
