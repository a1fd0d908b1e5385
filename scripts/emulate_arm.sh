#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds kernels and emitted networks for AArch64, and runs them under qemu. No time is measured.
#   bash scripts/emulate_arm.sh            installs what is missing, and runs the tests
#   bash scripts/emulate_arm.sh install    installs only
set -euo pipefail
cd "$(dirname "$0")/.."
missing=()
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing packages; as root type: apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
[ "${1:-}" = install ] || .venv/bin/python -m pytest -q tests/python/test_aarch64.py
