#!/usr/bin/env bash
# Prints the interpreters of CPython at hand, one for each version from 3.10 on: those on the PATH, then those of pyenv.
set -euo pipefail
for minor in 10 11 12 13 14; do
  name=python3.$minor
  for python in "$(command -v "$name" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/"$name"; do
    # The command of pyenv is there for versions that are switched off, too. One without pip makes no environment.
    if "$python" -c 'import ensurepip' 2>/dev/null; then echo "$python"; break; fi
  done
done
