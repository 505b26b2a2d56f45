#!/usr/bin/env bash
# Runs every fuzzer, native and Python, for FUZZ_SECONDS each, JOBS at a time: called by `make fuzz`, which has configured
# the native ones in build/asan if there is a clang for them.
# The seed is fixed, so that a change is judged by what it changes; FUZZ_SEED=$RANDOM looks elsewhere.
# An input that fails lies in build/fuzz/found; give it to the fuzzer as its only argument to see it again.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-60}
seed=${FUZZ_SEED:-1}
jobs=${JOBS:-$(nproc)}
found=$PWD/build/fuzz/found
mkdir -p "$found"

# One fuzzer: its name, then its command. Says one line, or all that it said if it failed.
run_one() {
  local name=$1 log
  shift
  log=$found/$name.log
  if ASAN_OPTIONS=allocator_may_return_null=1 "$@" -seed="$seed" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 \
      -artifact_prefix="$found/$name-" >"$log" 2>&1; then
    echo "ok   $name: $(grep -E '^(Done|INFO: exiting)|skipped' "$log" | tail -1)"
  else
    tail -60 "$log"
    echo "FAILED $name: see $log" >&2
    return 1
  fi
}
export -f run_one
export found seconds seed

{
  if [ -d build/asan/native/fuzz ]; then
    cmake --build build/asan --target fuzzers --parallel "$jobs" >&2
    for fuzzer in native/fuzz/fuzz_*.cc; do
      name=$(basename "$fuzzer" .cc)
      corpus=build/fuzz/corpus/$name
      mkdir -p "$corpus"
      echo "$name build/asan/native/fuzz/$name $corpus native/fuzz/corpus/${name#fuzz_} -len_control=0 -max_len=2000"
    done
  else
    echo 'native fuzzers are skipped: there is no clang++ with libFuzzer (apt: clang, libclang-rt-dev)' >&2
  fi
  if python -c 'import atheris' 2>/dev/null; then
    for target in $(python tests/property/fuzz_decoders.py 2>/dev/null); do
      echo "python_$target python tests/property/fuzz_decoders.py $target"
    done
  else
    echo 'fuzzers of Python decoders are skipped: there is no atheris for this Python (pip install atheris)' >&2
  fi
} | xargs -r -P "$jobs" -I{} bash -c 'set -eu; run_one {}'
