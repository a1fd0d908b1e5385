#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Builds the fuzzers of the C++ parsers with libFuzzer and sanitizers; only the files that they need.
#   tests/fuzz/cpp/build.sh FOLDER FMT_INCLUDE    (torch's include folder has fmt)
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd) fmt=$2
cd "$(dirname "$0")/../../.."
flags="-std=c++20 -O1 -g -DFMT_HEADER_ONLY=1 -Icsrc -fsanitize=fuzzer,address,undefined
  -fno-sanitize-recover=undefined"
compile() {  # a source and an object, which is made again if the source is newer
  [ "$2" -nt "$1" ] || clang++ ${flags} -isystem "$fmt" -c "$1" -o "$2"
}
objects_of() {
  for source in "$@"; do
    object=$folder/$(echo "$source" | tr / _).o
    compile "$source" "$object"
    echo "$object"
  done
}
build() {
  name=$1
  shift
  clang++ -fsanitize=fuzzer,address,undefined $(objects_of "tests/fuzz/cpp/${name}_fuzz.cpp" "$@") \
    -o "$folder/$name"
}
ir="csrc/ir/arithmetic.cpp csrc/ir/layout.cpp csrc/ir/problem.cpp csrc/ir/problem_text.cpp csrc/ir/primitive.cpp
  csrc/ir/graph.cpp csrc/ir/graph_text.cpp csrc/ir/view.cpp"
build problem $ir
build graph $ir
build choice $ir csrc/ops/choice.cpp
build pbqp csrc/pbqp/*.cpp
