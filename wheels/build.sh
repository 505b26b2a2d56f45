#!/usr/bin/env bash
# Builds wheels into dist/, or DIST, for the interpreters named, or for all at hand: one for each version below 3.12, and
# one for 3.12 and all later ones; one for each free-threaded version. They work on Linux with glibc 2.28 or newer.
#
#   wheels/build.sh [python3.10 python3.12 ...]
#   ARCHITECTURES="x86_64 aarch64" wheels/build.sh    for these processors, in place of that of this machine
#
# Wants ziglang, auditwheel, cmake and ninja on the PATH: requirements/wheel.txt, requirements/build.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
. wheels/epoch.sh
if [ $# = 0 ]; then mapfile -t pythons < <(wheels/pythons.sh); else pythons=("$@"); fi
[ ${#pythons[@]} -gt 0 ] || { echo 'There is no CPython 3.10 or newer with pip; name one: PYTHONS=...' >&2; exit 1; }

dist=${DIST:-dist}
rm -rf build/wheel/raw-* "$dist"
mkdir -p build/wheel
# Of the build requirements, those that the interpreter itself has to import.
grep -E '^(scikit-build-core|nanobind)==' requirements/build.txt > build/wheel/requirements.txt

# build PYTHON TAG ARCHITECTURE: the version that it has, and of the machine
build() {
  local environment=build/wheel/$2 folder=build/wheel/cmake-$3 raw=build/wheel/raw-$2-$3 toolchain=manylinux
  local pip=("$environment/bin/python" -m pip --disable-pip-version-check)
  [ -d "$environment" ] || "$1" -m venv "$environment"
  "${pip[@]}" install -qq -r build/wheel/requirements.txt
  local target=()
  if [ "$3" != "$(uname -m)" ]; then
    # Python's headers are the same for all processors of 64 bits, but for what only Python itself is compiled with.
    toolchain=manylinux-$3
    target=(env "_PYTHON_HOST_PLATFORM=linux-$3" "SETUPTOOLS_EXT_SUFFIX=.cpython-${2/./}-$3-linux-gnu.so")
  fi
  # What knows nothing of Python is compiled once for all; what CMake found out about one Python is wrong for the next.
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  "${target[@]}" "${pip[@]}" wheel -qq --no-build-isolation --no-deps --wheel-dir "$raw" . \
    --config-settings build-dir="$folder" --config-settings install.strip=false \
    --config-settings cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/wheels/$toolchain.cmake"
  # Refuses a wheel that wants anything newer; another shared library it would pack into it. For another processor
  # auditwheel takes no name, but finds the oldest glibc with which the wheel works.
  local platform=auto
  [ "$3" != "$(uname -m)" ] || platform=manylinux_2_28_$3
  auditwheel repair --only-plat --plat "$platform" --wheel-dir "$dist" "$raw"/*.whl
  local newer
  newer=$(printf '%s\n' "$dist"/*.whl | awk -F_ '/manylinux/ { split($0, part, "manylinux_2_"); if (part[2] + 0 > 28) print }')
  [ -z "$newer" ] || { echo "wants a glibc newer than 2.28: $newer" >&2; exit 1; }
}

for architecture in ${ARCHITECTURES:-$(uname -m)}; do
  stable=  # the version whose wheel serves all from 3.12 on
  for python in "${pythons[@]}"; do
    tag=$("$python" -c 'import sys, sysconfig; print("%d.%d%s" % (*sys.version_info[:2], sysconfig.get_config_var("abiflags")))')
    if [[ $tag =~ ^3\.(1[2-9]|[2-9][0-9])$ ]]; then
      if [ -n "$stable" ]; then echo "CPython $tag, $architecture: the wheel for $stable serves it"; continue; fi
      stable=$tag
    fi
    echo "CPython $tag, $architecture: compiling (minutes the first time) ..."
    build "$python" "$tag" "$architecture"
  done
done
echo "In $dist/, for every Linux with glibc 2.28 or newer:"
for wheel in "$dist"/*.whl; do printf '  %s, %d KiB\n' "${wheel##*/}" $(($(stat -c %s "$wheel") / 1024)); done
