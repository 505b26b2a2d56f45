#!/usr/bin/env bash
# Prints what CMake needs to build the fuzzers, and all else with AddressSanitizer beside them, with clang; fails where
# there is no clang++ with libFuzzer (apt: clang, libclang-rt-dev).
set -euo pipefail
probe=$(mktemp)
trap 'rm -f "$probe"' EXIT
clang++ -fsanitize=fuzzer,address -x c++ - -o "$probe" 2>/dev/null \
  <<<'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
echo '-DCMAKE_CXX_COMPILER=clang++ -DHVD_BUILD_FUZZERS=ON -DHVD_SANITIZE=fuzzer-no-link,address,undefined'
