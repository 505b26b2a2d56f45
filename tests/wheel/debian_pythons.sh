#!/usr/bin/env bash
# Installs wheels in CPythons of Debian that this machine cannot install: newer ones, which bring their own C library, and
# those of another processor, in an emulator of it. Then runs a job of two ranks with each.
#
#   tests/wheel/debian_pythons.sh dist [ARCHITECTURE:SUITE:VERSION ...]
#
# Wants apt, qemu-user, and uv or pip on the PATH. Pythons stay in build/debian.
set -euo pipefail
wheels=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../..")
shift
[ $# -gt 0 ] || set -- x86_64:forky:3.14 aarch64:bookworm:3.11 aarch64:trixie:3.13 aarch64:forky:3.14
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$root/src/horovod/__init__.py")
unset PYTHONPATH PYTHONDONTWRITEBYTECODE  # an emulated Python that compiles all modules each time is 5 times slower

# qemu does not know all that a launcher asks of the system: this machine's own, from its wheel, starts emulated ranks.
own=$root/build/debian/launcher
python -m venv --clear "$own"
python "$root/requirements/install.py" "$own/bin/python" --only-binary :all: --find-links "$wheels" "horovod==$version"

declare -A debian=([x86_64]=amd64 [aarch64]=arm64) loader=([x86_64]=ld-linux-x86-64.so.2 [aarch64]=ld-linux-aarch64.so.1)

# environment FOLDER ARCHITECTURE VERSION: python in a folder of its own, which starts the one that lies unpacked beside it
environment() {
  local base=$1/../python start
  rm -rf "$1"
  mkdir -p "$1/bin" "$1/lib/python$3/site-packages"
  base=$(realpath "$base")
  if [ "$2" = "$(uname -m)" ]; then
    start="$base/usr/lib/$2-linux-gnu/${loader[$2]} --library-path $base/usr/lib/$2-linux-gnu --argv0 \"\$0\""
  else
    start="qemu-$2 -L $base -0 \"\$0\""
  fi
  printf '#!/bin/sh\nexec %s %s/usr/bin/python%s "$@"\n' "$start" "$base" "$3" > "$1/bin/python"
  chmod +x "$1/bin/python"
  printf 'home = %s/usr/bin\ninclude-system-site-packages = false\n' "$base" > "$1/pyvenv.cfg"
}

for each in "$@"; do
  IFS=: read -r architecture suite number <<< "$each"
  folder=$root/build/debian/$architecture-$number
  if [ ! -e "$folder/python/usr/bin/python$number" ]; then
    mkdir -p "$folder"
    "$root/wheels/debian.sh" packages "$folder/python" "$suite" "${debian[$architecture]}" "python$number-minimal" \
      "libpython$number-stdlib" libgcc-s1 libstdc++6
  fi
  environment "$folder/environment" "$architecture" "$number"
  python "$root/requirements/install.py" "$folder/environment/bin/python" --only-binary :all: --find-links "$wheels" "horovod==$version"
  (
    export PATH="$folder/environment/bin:$PATH"
    cd "$folder"
    python -c 'import platform, sys, horovod._native as native; print(platform.machine(), *platform.libc_ver(), sys.version, native.__file__)'
    [ "$architecture" = "$(uname -m)" ] || PATH=$own/bin:$PATH
    horovodrun -np 2 --start-timeout 300 "$folder/environment/bin/python" "$here/ranks.py"  # an emulator is slow
  )
  echo "CPython $number of Debian $suite, $architecture: horovod $version works from its wheel"
done
