#!/usr/bin/env bash
# Runs the tests of this folder on a module _native that a sanitizer watches: sanitized.sh asan|tsan FOLDER
# FOLDER is the build for that sanitizer; `make build-sanitized` makes both.
set -euo pipefail
cd "$(dirname "$0")/../.."
sanitizer=$1 folder=$2

# The package as it is in src, but for its module.
rm -rf "$folder/python"
mkdir -p "$folder/python/horovod"
for path in "$PWD"/src/horovod/*; do
  [[ $path == *.so ]] || ln -s "$path" "$folder/python/horovod/"
done
ln -s "$PWD/$folder"/native/bindings/_native.*.so "$folder/python/horovod/"

# Python keeps memory and threads until the process ends.
export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="report_thread_leaks=0 suppressions=$PWD/tests/threads/tsan.supp"
export PYTHONPATH=$PWD/$folder/python PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
# The runtime looks up what throws exceptions when it starts, and Python brings no library of C++. What it finds goes to
# the console, as it ends the process, with all that pytest holds back.
cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$folder/CMakeCache.txt")
# The path of the first of these libraries that the compiler has: those of clang, then that of g++.
for name in "libclang_rt.$sanitizer.so" "libclang_rt.$sanitizer-$(uname -m).so" "lib$sanitizer.so"; do
  runtime=$("$cxx" -print-file-name="$name")
  if [[ $runtime == */* ]]; then break; fi
done
LD_PRELOAD="$runtime $("$cxx" -print-file-name=libstdc++.so)" \
  python -m pytest tests/threads -q --capture=sys
