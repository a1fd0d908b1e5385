#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the C++ example against the installed torchalgo and compares what it prints with Python's result
# on the copy that it wrote.
#   bash examples/cpp_deploy/run.sh [python] [optimized.pt] [1x3x24x24]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${1:-python3}
model=${2:-$root/tests/golden/small_0.1.0.pt}
sizes=${3:-1x3x24x24}
package=$("$python" -c 'import pathlib, torchalgo; print(pathlib.Path(torchalgo.__file__).parent)')
build=${TORCHALGO_EXAMPLE_BUILD:-$root/build/cpp_deploy}
cmake -S "$here" -B "$build" -DCMAKE_BUILD_TYPE=Release \
  -Dtorchalgo_DIR="$package/share/cmake/torchalgo" >/dev/null
cmake --build "$build" -j 2
from_cpp=$("$build/cpp_deploy" "$model" "$sizes" "$build/copy.pt")
from_python=$("$python" - "$build/copy.pt" "$sizes" <<'PY'
import sys
from math import prod

import torch
import torchalgo

sizes = [int(size) for size in sys.argv[2].split("x")]
with torch.inference_mode():
    y = torchalgo.load(sys.argv[1])(torch.linspace(-1, 1, prod(sizes)).reshape(sizes)).flatten()
bits = (y.view(torch.int32).long() * torch.arange(1, y.numel() + 1)).sum().item()
print(f"elements {y.numel()}, sum {y.sum().item():.6f}, bits {bits}")
PY
)
echo "C++:    $from_cpp"
echo "Python: $from_python"
[ "$from_cpp" = "$from_python" ]
