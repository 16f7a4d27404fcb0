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
failed=$build/Testing/Temporary/LastTestsFailed.log
rm -f "$failed"
ctest --test-dir "$build" --output-on-failure --parallel "$jobs" && exit
# As in python-tests.sh: a few that fail among the others have another try, alone. What a sanitizer has found is found.
[ -z "$sanitize" ] && [ -s "$failed" ] && [ "$(wc -l <"$failed")" -le 8 ] || exit 1
cp "$failed" "$build/failed-among-others"
echo "unit-tests.sh: once more, alone:"
ctest --test-dir "$build" --output-on-failure --rerun-failed
sed "s/^[0-9]*:/C++: /" "$build/failed-among-others" | scripts/note-second-try.sh
