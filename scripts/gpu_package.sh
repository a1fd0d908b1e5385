#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes build/gpu_package.tar.gz: torchalgo's libraries for the Python of a machine that shall compile nothing.
#   bash scripts/gpu_package.sh             for python3.12
#   bash scripts/gpu_package.sh python3.13  for another one; only its headers are needed, no torch
# Only _C depends on Python. So the libraries of the build in python/torchalgo are taken as they are, and _C alone is
# compiled: three minutes on two cores. benchmarks/gpu_check.py unpacks the package. The other machine needs the same
# version of torch, and a libstdc++ as new as this one.
set -euo pipefail
cd "$(dirname "$0")/.."
own=${OWN_PYTHON:-.venv/bin/python} built=python/torchalgo out=build/gpu_package
python=${1:-python3.12}
newer=$(find csrc -type f -newer $built/libtorchalgo.so)
[ -z "$newer" ] || { echo "gpu_package: the build is older than" $newer >&2; exit 1; }
paths='import sysconfig; print(sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"))'
read -r include suffix < <("$python" -c "$paths")
read -r version torch < <("$own" -c 'import torch; print(torch.__version__.split("+")[0], torch.__path__[0])')
own_version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' $built/_version.py)
rm -rf $out
mkdir -p $out
launcher=$(command -v ccache || true)
compile="$launcher g++ -std=c++20 -O2 -DNDEBUG -fPIC -Icsrc -isystem $include -isystem $torch/include
  -isystem $torch/include/torch/csrc/api/include -DTORCHALGO_BUILT_FOR_TORCH=\"$version\"
  -DTORCHALGO_VERSION=\"$own_version\""
printf '%s\n' csrc/python/*.cpp csrc/base/*.cpp |
  xargs -P "${JOBS:-2}" -I{} sh -c '$0 -c {} -o '$out'/$(basename {} .cpp).o' "$compile"
g++ -shared $out/*.o -o "$out/_C$suffix" -L$built -ltorchalgo -L"$torch/lib" -ltorch_python -ltorch_cpu -lc10 \
  '-Wl,-rpath,$ORIGIN:$ORIGIN/../torch/lib'
rm $out/*.o
cp $built/libtorchalgo*.so $built/_build_info.py $out
strip --strip-unneeded $out/*.so
tar -C $out -czf $out.tar.gz .
ls -l $out $out.tar.gz
