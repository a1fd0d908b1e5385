# SPDX-License-Identifier: BSD-3-Clause
"""Fail on an #include against the direction of the flow.

csrc/CMakeLists.txt says which folders each folder DEPENDS on; a file may include its own folder,
those, and what those depend on in turn.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
KERNELS = "cpu_algo/kernels"
NO_TORCH = {"base", "cuda", "ir", "planner", "standalone"}
STD_ONLY = {"pbqp", KERNELS}  # besides their own folder
STD = re.compile(r"[a-z_]+|(cpuid|[ix]mmintrin)\.h")  # and the compiler's own
TORCH = re.compile(r"(ATen|torch|c10|pybind11)/")


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
            if quote == '"' and folder_of(path) not in allowed:
                found.append(f"csrc/{name}:{number}: {folder} may not include {path}")
            if folder in NO_TORCH and TORCH.match(path):
                found.append(f"csrc/{name}:{number}: {folder} may not include torch ({path})")
            if folder in STD_ONLY and quote == "<" and not STD.fullmatch(path):
                found.append(f"csrc/{name}:{number}: {folder} includes nothing but std ({path})")
    return found


def main() -> int:
    """Print the violations; exit status 1 if there are any."""
    found = violations()
    print("\n".join(found) if found else "include directions: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
