#!/bin/sh
# The C++ tests of the CPU's rows under GCC's sanitizers:
#   scripts/sanitize.sh address    bounds, lifetimes and undefined behaviour
#   scripts/sanitize.sh thread     races, with std::thread in place of OpenMP around every kernel
# cmake/Sanitize.cmake says what is instrumented; torch is not. Builds in build/sanitize-*; needs ninja
# and half an hour.
set -eu
cd "$(dirname "$0")/.."
case "${1-}" in
  address)
    flags=address,undefined
    tests="ir provider cpu_algo layout_algo view_algo"
    # Torch keeps memory until the end; classes registered with it are known by address only.
    export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0
    export UBSAN_OPTIONS=print_stacktrace=1
    ;;
  thread)
    flags=thread
    tests="cpu_algo layout_algo"
    export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
    ;;
  *)
    echo "usage: $0 address|thread" >&2
    exit 2
    ;;
esac
build=build/sanitize-$1
mkdir -p build
targets=$(for t in $tests; do echo "${t}_test"; done)
cmake -S . -B "$build" -G Ninja -DTORCHALGO_TESTS=ON -DTORCHALGO_SANITIZE="$flags" >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; exit 1; }
ninja -C "$build" $targets
for t in $targets; do
  echo "== $t"
  "$build/tests/cpp/$t" --gtest_brief=1
done
