#!/usr/bin/env bash
# Builds wheels into dist/ for the interpreters named, or for all at hand: one for each version below 3.12, and one
# for 3.12 and all later ones. They work on every Linux of this machine's architecture with glibc 2.28 or newer.
#
#   wheels/build.sh [python3.10 python3.12 ...]
#
# Wants ziglang, auditwheel, cmake and ninja on the PATH: requirements/wheel.txt, requirements/build.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then mapfile -t pythons < <(wheels/pythons.sh); else pythons=("$@"); fi
[ ${#pythons[@]} -gt 0 ] || { echo 'There is no CPython 3.10 or newer with pip; name one: PYTHONS=...' >&2; exit 1; }

rm -rf build/wheel dist
mkdir -p build/wheel
# Of the build requirements, those that the interpreter itself has to import.
grep -E '^(scikit-build-core|nanobind)==' requirements/build.txt > build/wheel/requirements.txt
stable=  # the interpreter whose wheel serves all from 3.12 on
for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ "${version#3.}" -ge 12 ]; then
    if [ -n "$stable" ]; then echo "CPython $version: the wheel for $stable serves it"; continue; fi
    stable=$version
  fi
  echo "CPython $version: compiling (minutes the first time) ..."
  environment=build/wheel/$version
  "$python" -m venv "$environment"
  pip=("$environment/bin/python" -m pip --disable-pip-version-check)
  "${pip[@]}" install -qq -r build/wheel/requirements.txt
  "${pip[@]}" wheel -qq --no-build-isolation --no-deps --wheel-dir "build/wheel/raw-$version" . \
    --config-settings build-dir="build/wheel/cmake-$version" \
    --config-settings cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/wheels/manylinux.cmake"
  # Refuses a wheel that wants anything newer; another shared library it would pack into it.
  auditwheel repair --only-plat --plat "manylinux_2_28_$(uname -m)" --wheel-dir dist "build/wheel/raw-$version"/*.whl
done
echo 'In dist/, for every Linux with glibc 2.28 or newer:'
for wheel in dist/*.whl; do printf '  %s, %d KiB\n' "${wheel#dist/}" $(($(stat -c %s "$wheel") / 1024)); done
