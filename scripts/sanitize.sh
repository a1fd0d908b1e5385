#!/bin/sh
# The C++ tests of the CPU's rows under GCC's AddressSanitizer and UndefinedBehaviorSanitizer: bounds,
# lifetimes, undefined behaviour. cmake/Sanitize.cmake says what is instrumented; torch is not. Builds in
# build/sanitize; needs ninja and an hour of two cores.
set -eu
cd "$(dirname "$0")/.."
# Torch keeps memory until the end; classes registered with it are known by address only.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0
export UBSAN_OPTIONS=print_stacktrace=1
build=build/sanitize
targets="ir_test provider_test cpu_algo_test layout_algo_test view_algo_test"
mkdir -p build
cmake -S . -B "$build" -G Ninja -DTORCHALGO_TESTS=ON -DTORCHALGO_SANITIZE=address,undefined \
  >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
# shellcheck disable=SC2086  # a list of words
ninja -C "$build" $targets
for t in $targets; do
  echo "== $t"
  # Instrumented objects define symbols of the sanitizer.
  "$build/tests/cpp/$t" --gtest_filter=-'*KernelObjects*'
done
