#!/bin/sh
# The C++ tests of the CPU's rows under GCC's sanitizers; cmake/Sanitize.cmake says what is instrumented;
# torch is not. Needs ninja and an hour of two cores for each of
#   scripts/sanitize.sh          AddressSanitizer and UndefinedBehaviorSanitizer: bounds, lifetimes,
#                                undefined behaviour; builds in build/sanitize
#   scripts/sanitize.sh thread   ThreadSanitizer: data races, with std::thread in place of OpenMP;
#                                builds in build/sanitize_thread
set -eu
cd "$(dirname "$0")/.."
# Torch keeps memory until the end; classes registered with it are known by address only. Its own OpenMP
# threads look like races to ThreadSanitizer.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
case "${1-}" in
  "") build=build/sanitize sanitizers=address,undefined ;;
  thread) build=build/sanitize_thread sanitizers=thread ;;
  *) echo "usage: $0 [thread]" >&2; exit 2 ;;
esac
all="ir_test pbqp_test planner_test provider_test cpu_algo_test layout_algo_test view_algo_test cudnn_algo_test"
all="$all profiler_test ops_test runner_test training_test"
targets="${TARGETS:-$all}"
mkdir -p build
cmake -S . -B "$build" -G Ninja -DTORCHALGO_TESTS=ON -DTORCHALGO_SANITIZE="$sanitizers" \
  >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
# shellcheck disable=SC2086  # a list of words
ninja -C "$build" $targets
for t in $targets; do
  echo "== $t"
  # Instrumented objects define symbols of the sanitizer, and those with std::thread none of OpenMP.
  "$build/tests/cpp/$t" --gtest_filter=-'*KernelObjects*:RowObjects*'
done
