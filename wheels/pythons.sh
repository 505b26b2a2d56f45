#!/usr/bin/env bash
# Prints the interpreters of CPython at hand, one for each version from 3.10 on, the free-threaded ones as versions of
# their own: those on the PATH, then those of pyenv, then those of uv.
set -euo pipefail
uv=${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}
for version in 3.10 3.11 3.12 3.13 3.14 3.14t; do
  name=python$version
  for python in "$(command -v "$name" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"${version%t}".*/bin/"$name" \
    "$uv"/cpython-"${version%t}".*/bin/"$name"; do
    # The command of pyenv is there for versions that are switched off, too. One without pip makes no environment.
    if "$python" -c 'import ensurepip' 2>/dev/null; then echo "$python"; break; fi
  done
done
