#!/usr/bin/env bash
# Signs dist/SHA256SUMS, and so every file of a release, with a key of OpenSSH: writes dist/SHA256SUMS.sig, and checks it.
#
#   wheels/sign.sh PRIVATE_KEY
#
# Who has the public key as a line "release@horovod KEY" of a file allowed_signers checks what was downloaded by
#
#   ssh-keygen -Y verify -f allowed_signers -I release@horovod -n horovod-release -s SHA256SUMS.sig < SHA256SUMS
#   sha256sum --check --ignore-missing SHA256SUMS
set -euo pipefail
key=$(realpath "${1:?usage: wheels/sign.sh PRIVATE_KEY}")
cd "$(dirname "$0")/../dist"
sha256sum --check --quiet SHA256SUMS  # what is signed is what lies here
rm -f SHA256SUMS.sig
ssh-keygen -q -Y sign -f "$key" -n horovod-release SHA256SUMS
signers=$(mktemp)
trap 'rm "$signers"' EXIT
echo "release@horovod $(ssh-keygen -y -f "$key")" > "$signers"
ssh-keygen -Y verify -f "$signers" -I release@horovod -n horovod-release -s SHA256SUMS.sig < SHA256SUMS
