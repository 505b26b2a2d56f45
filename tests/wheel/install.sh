#!/usr/bin/env bash
# Installs wheels in every CPython at hand, where there is no compiler, and runs jobs of two ranks with them; with
# frameworks in the Python on the PATH, whose packages it borrows.
#
#   tests/wheel/install.sh dist
set -euo pipefail
wheels=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$here/../../src/horovod/__init__.py")
mapfile -t pythons < <("$here/../../wheels/pythons.sh")
frameworks=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
with_frameworks=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# Which pip would take on the oldest system that they are for, whatever this one is.
for architecture in $(printf '%s\n' "$wheels"/*.whl | sed 's/.*manylinux_2_[0-9]*_//; s/\.whl//' | sort -u); do
  for minor in 10 11 12 13 14; do
    python -m pip install -q --disable-pip-version-check --dry-run --target nowhere --no-deps --no-index --find-links "$wheels" \
      --only-binary :all: --platform "manylinux_2_28_$architecture" --platform "manylinux_2_27_$architecture" \
      --python-version "3.$minor" "horovod==$version" ||
      { echo "dist/ has no wheel for CPython 3.$minor on $architecture" >&2; exit 1; }
  done
done

# Only what a shell script needs, and no c++, cc, gcc, clang or cmake.
mkdir bin
for tool in bash cat env rm sh; do ln -s "$(command -v "$tool")" bin/; done
for python in "${pythons[@]}"; do
  number=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -m venv "$number"
  (
    export PATH="$folder/$number/bin:$folder/bin"
    for tool in c++ cc gcc g++ clang cmake ninja make; do
      if command -v "$tool" >/dev/null; then echo "$tool is on the PATH" >&2; exit 1; fi
    done
    python -m pip install -qq --disable-pip-version-check --only-binary :all: --find-links "$wheels" "horovod==$version"
    horovodrun -np 2 python "$here/ranks.py"
    if [ "$number" = "$with_frameworks" ]; then
      echo "import site; site.addsitedir('$frameworks')" > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/frameworks.pth"
      TF_CPP_MIN_LOG_LEVEL=2 horovodrun -np 2 python "$here/frameworks.py"
    fi
  )
  echo "CPython $number: horovod $version works from its wheel, without a compiler"
done
