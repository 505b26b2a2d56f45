#!/usr/bin/env bash
# Unpacks packages of Debian, of another suite or architecture than this machine has, into a folder: nothing is installed.
#
#   wheels/debian.sh packages FOLDER SUITE ARCHITECTURE PACKAGE...   with all that they depend on
#   wheels/debian.sh source FOLDER SUITE PACKAGE                     the source of one, without Debian's changes
#
# Wants apt, and asks the server that apt is set up for.
set -euo pipefail
kind=${1:?kind} folder=$(realpath -m "${2:?folder}") suite=${3:?suite}
case $kind in
  packages) architecture=$4; shift 4 ;;
  source) architecture=$(dpkg --print-architecture); shift 3 ;;
  *) echo "$kind is neither packages nor source" >&2; exit 1 ;;
esac

server=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' |
  awk '$2 !~ /-/ { print $1; exit }')
[ -n "$server" ] || { echo 'apt of this machine has no server of Debian in its sources' >&2; exit 1; }

# Its own lists and states, in which nothing is installed yet.
mkdir -p "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial"
: > "$folder/apt/status"
options=(-qq -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o APT::Install-Recommends=false
  -o "Dir::State=$folder/apt/state" -o "Dir::State::status=$folder/apt/status" -o "Dir::Cache=$folder/apt/cache"
  -o "Dir::Etc::SourceList=$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Debug::NoLocking=true -o Acquire::Languages=none -o APT::Sandbox::User=root)
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
if [ "$kind" = source ]; then
  echo "deb-src $signed $server $suite main" > "$folder/apt/sources.list"
  apt-get "${options[@]}" update
  cd "$folder"
  apt-get "${options[@]}" --download-only source "$1"
  find . -maxdepth 1 -name "$1_*.orig.tar.*" ! -name '*.asc' -exec tar --strip-components 1 -xf {} \;
else
  echo "deb $signed $server $suite main" > "$folder/apt/sources.list"
  apt-get "${options[@]}" update
  apt-get "${options[@]}" --yes --download-only install "$@"
  # Where /lib and others are links, and where packages from before that bring them as folders.
  mkdir -p "$folder"/usr/{lib,bin,sbin}
  for each in lib bin sbin; do ln -sfn "usr/$each" "$folder/$each"; done
  for package in "$folder"/apt/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$folder"
  done
fi
rm -rf "$folder/apt"
