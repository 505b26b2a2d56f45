#!/usr/bin/env bash
# Builds all wheels of a release into dist/: for CPython 3.10, 3.11, 3.12 and later, and free-threaded 3.14 if it is at
# hand; for x86-64 and aarch64. Asks uv for the interpreters that are missing.
#
#   wheels/all.sh
#
# Wants what wheels/build.sh wants, and uv: requirements/install.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
at_hand() { grep -qE "/python($1)\$" <<< "$(wheels/pythons.sh)"; }
for versions in '3.10' '3.11' '3.12|3.13|3.14'; do
  at_hand "$versions" || uv python install "${versions%%|*}" ||
    { echo "CPython ${versions%%|*} is not at hand: put a python${versions%%|*} on the PATH" >&2; exit 1; }
done
at_hand 3.14t || uv python install -q 3.14t ||
  echo 'CPython 3.14t is not at hand: there will be no wheel for it. Put a python3.14t on the PATH' >&2
ARCHITECTURES='aarch64 x86_64' wheels/build.sh
