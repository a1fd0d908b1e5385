#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds and tests torchalgo against other versions of torch, each in a virtual environment of its own:
#   bash scripts/check_torch_versions.sh 2.11.0 2.15.0
# Long (a download of about 3 GB and a build per version), so not part of `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 2.11.0 2.15.0
for version in "$@"; do
  home=${TORCHALGO_VERSIONS_DIR:-build/versions}/$version
  echo "== torch $version in $home"
  [ -x "$home/venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$home/venv"
  python=$PWD/$home/venv/bin/python
  case $home in /*) python=$home/venv/bin/python ;; esac
  "$python" -m pip install -q "torch==$version" platformdirs numpy pytest "setuptools>=77,<82" cmake==3.31.10 ninja==1.13.2
  source=$(mktemp -d)
  git archive HEAD | tar -x -C "$source"
  PATH=$(dirname "$python"):$PATH "$python" -m pip install -q --no-build-isolation --no-deps --force-reinstall "$source"
  # The tests run beside the installed package, not the sources; those that need a torchvision for this
  # torch, which may not exist yet, stay out.
  (cd "$source/tests/python" && "$python" -m pytest -q -c ../../pyproject.toml --rootdir ../.. -p no:cacheprovider \
    --ignore=test_import.py --ignore=test_networks.py --ignore=test_readme.py .)
  rm -rf "$source"
  echo "== torch $version: ok"
done
