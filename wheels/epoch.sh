# Sourced by what builds: the time that files in a release have, that of the commit.
if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) ||
    { echo 'There is no commit to take the time from; name one: SOURCE_DATE_EPOCH=...' >&2; exit 1; }
fi
export SOURCE_DATE_EPOCH
