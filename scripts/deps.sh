#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Checks for what the build needs from the system. As root it installs what is missing (Debian, Ubuntu);
# otherwise it says in one line what to type.
set -euo pipefail
python=${1:-python3}
missing=()
have() { command -v "$1" >/dev/null 2>&1; }
have make || missing+=(make)
have g++ || missing+=(g++)
have git || missing+=(git)
if ! have "$python"; then
  missing+=(python3 python3-venv python3-dev)
else
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
  [ -e "$header" ] || missing+=(python3-dev)
fi
[ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
# ccache is not needed, so only root gets it.
[ "$(id -u)" -ne 0 ] || have ccache || missing+=(ccache)
if [ ${#missing[@]} -eq 0 ]; then
  version=$(g++ -dumpversion | cut -d. -f1)
  if [ "$version" -lt 12 ]; then
    echo "torchalgo needs g++ >= 12, found $version: install g++-12 and set CXX=g++-12" >&2
    [ -n "${CXX:-}" ] || exit 1
  fi
  exit 0
fi
if [ "$(id -u)" -eq 0 ] && have apt-get; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}"
else
  echo "missing packages; as root type: apt-get install -y ${missing[*]}" >&2
  exit 1
fi
