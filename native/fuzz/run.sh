#!/usr/bin/env bash
# Runs every fuzzer, native and Python, for FUZZ_SECONDS each, JOBS at a time: called by `make fuzz`.
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
  if command -v clang++ >/dev/null && clang++ -fsanitize=fuzzer,address -x c++ - -o build/fuzz/probe 2>/dev/null \
      <<<'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'; then
    cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DHVD_BUILD_FUZZERS=ON -DHVD_BUILD_BINDINGS=OFF \
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=18 \
      -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -g1' >&2
    cmake --build build/fuzz --target native/fuzz/all --parallel "$jobs" >&2
    for fuzzer in native/fuzz/fuzz_*.cc; do
      name=$(basename "$fuzzer" .cc)
      corpus=build/fuzz/corpus/$name
      mkdir -p "$corpus"
      echo "$name build/fuzz/native/fuzz/$name $corpus native/fuzz/corpus/${name#fuzz_} -len_control=0 -max_len=2000"
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
