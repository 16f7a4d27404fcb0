#!/usr/bin/env bash
# Builds and runs the C++ unit tests: unit-tests.sh BUILD_DIR SANITIZERS   (SANITIZERS: as for -fsanitize=, or empty)
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 sanitize=$2
type=Release jobs=$(($(nproc) + 2)) # many tests wait
[ -n "$sanitize" ] && type=RelWithDebInfo jobs=$(nproc)
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=$type -DHVD_SANITIZE="$sanitize" -DHVD_WERROR=ON \
  -DHVD_BUILD_TESTS=ON -DHVD_BUILD_PYTHON=OFF >/dev/null
cmake --build "$build"
export ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1:suppressions=$PWD/tests/tsan.supp"
exec ctest --test-dir "$build" --output-on-failure --parallel "$jobs"
