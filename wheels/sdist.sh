#!/usr/bin/env bash
# Writes into dist/ the source distribution and the list of what it contains and needs, checks them, and writes the
# checksums of all files in dist/. Of one commit, they are the same bytes each time.
#
#   wheels/sdist.sh
#
# Wants scikit-build-core, twine and cyclonedx-python-lib: requirements/release.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
. wheels/epoch.sh
changed=$(git status --porcelain) || changed=
[ -z "$changed" ] || printf 'Not of a commit, but with these changes:\n%s\n' "$changed" >&2
mkdir -p dist
rm -f dist/*.tar.gz dist/*.cdx.json
name=$(python -c 'import scikit_build_core.build as build; print(build.build_sdist("dist"))' | tail -n 1)
twine check --strict "dist/$name"
python wheels/sbom.py "dist/$name"
(cd dist && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%f\n' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS)
echo 'dist/SHA256SUMS has the checksums; docs/releasing.md says how to sign it'
