#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the C++ example against the installed torchalgo and compares what it prints with Python's
# result. Without a file, it optimizes a small network and saves it.
#   bash examples/cpp_pt2/run.sh [python] [optimized.pt2] [1x3x24x24]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${1:-python3}
build=${TORCHALGO_EXAMPLE_BUILD:-$root/build/cpp_pt2}
model=${2:-$build/small.pt2}
sizes=${3:-1x3x24x24}
package=$("$python" -c 'import pathlib, torchalgo; print(pathlib.Path(torchalgo.__file__).parent)')
cmake -S "$here" -B "$build" -DCMAKE_BUILD_TYPE=Release \
  -Dtorchalgo_DIR="$package/share/cmake/torchalgo" >/dev/null
cmake --build "$build" -j 2
if [ $# -lt 2 ]; then
  "$python" - "$model" <<'PY'
import sys

import torch
from torch import nn

import torchalgo

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.Flatten(), nn.Linear(4608, 10)
)
settings = torchalgo.Settings(progress=False, run_untimed=True)
torchalgo.optimize(net.eval(), torch.rand(1, 3, 24, 24), settings=settings).save(sys.argv[1])
PY
fi
from_cpp=$("$build/cpp_pt2" "$model" "$sizes")
from_python=$("$python" - "$model" "$sizes" <<'PY'
import sys
from math import prod

import torch

import torchalgo  # noqa: F401  the op of the file

sizes = [int(size) for size in sys.argv[2].split("x")]
with torch.inference_mode():
    model = torch.export.load(sys.argv[1]).module()
    y = model(torch.linspace(-1, 1, prod(sizes)).reshape(sizes)).flatten()
bits = (y.view(torch.int32).long() * torch.arange(1, y.numel() + 1)).sum().item()
print(f"elements {y.numel()}, sum {y.sum().item():.6f}, bits {bits}")
PY
)
echo "C++:    $from_cpp"
echo "Python: $from_python"
[ "$from_cpp" = "$from_python" ]
