#!/usr/bin/env bash
# Checks what lies in dist/ as an index and a user would: metadata, tags of wheels, the stable ABI, checksums, and that
# pip and uv find packages for each extra. Installs nothing.
#
#   wheels/check.sh
#
# Wants auditwheel and what is in requirements/release.txt, and uv: requirements/install.txt.
set -euo pipefail
cd "$(dirname "$0")/../dist"
shopt -s nullglob
sdists=(*.tar.gz) wheels=(*.whl) stable=(*-abi3-*.whl)
[ ${#sdists[@]} = 1 ] || { echo "dist/ has ${#sdists[@]} source distributions, not one: make sdist" >&2; exit 1; }
[ ${#wheels[@]} -gt 0 ] || echo 'dist/ has no wheels, so none is checked: make wheel' >&2

sha256sum --check --quiet SHA256SUMS
twine check --strict "${sdists[@]}" "${wheels[@]}"
for wheel in "${wheels[@]}"; do auditwheel show "$wheel"; done
if [ ${#stable[@]} -gt 0 ]; then abi3audit --strict "${stable[@]}"; fi

from="file://$(realpath "${sdists[0]}")"
extras=$(tar -xOzf "${sdists[0]}" --wildcards '*/PKG-INFO' | sed -n 's/^Provides-Extra: //p')
for extra in $extras; do
  printf 'horovod[%s]: ' "$extra"
  uv pip compile -q - <<<"horovod[$extra] @ $from" | grep -c == | tr '\n' ' '
  python -m pip install -qq --disable-pip-version-check --dry-run --ignore-installed "horovod[$extra] @ $from"
  echo 'packages, found by uv and by pip'
done
