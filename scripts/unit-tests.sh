#!/usr/bin/env bash
# Builds and runs the C++ unit tests: unit-tests.sh [--tier first|more | --build TARGET] BUILD_DIR SANITIZERS
# (SANITIZERS: value of -fsanitize=, or empty)
# first: all tests except long cases and, unless they or the core have changed since they last passed, tests over simulated libraries.
# more: the tests that the first tier omits. Without a tier: all tests. --build: build only this target, without running tests.
# Without sanitizers, the core is not compiled again: tests use the library of the extension's build, build/python.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=all only=
[ "${1:-}" = --tier ] && tier=$2 && shift 2
[ "${1:-}" = --build ] && only=$2 && shift 2
build=$1 sanitize=$2
passed=$build/simulated-passed # checksum of the sources with which the tests over simulated libraries last passed
sources=$(find CMakeLists.txt core tests/core tests/simulated -type f | LC_ALL=C sort | xargs sha256sum | sha256sum)
target=all choice=()
case $tier in
  first) if [ ! -e "$passed" ] || [ "$(cat "$passed")" = "$sources" ]; then target=unit_first choice=(-LE more); else tier=all; fi ;;
  more) choice=(-L more) ;;
  all) ;;
  *) echo "unit-tests.sh: the tier must be first or more, got $tier" >&2; exit 2 ;;
esac
type=Release jobs=$(($(nproc) + 2)) # many tests wait
[ -n "$sanitize" ] && type=RelWithDebInfo jobs=$(nproc)
library=
if [ -z "$sanitize" ]; then
  library=$PWD/build/python/core/libhvd_core.a
  [ -e build/python/build.ninja ] || { echo "unit-tests.sh: the extension must be built first: make unit, or scripts/install.sh --editable" >&2; exit 1; }
  cmake --build build/python --target hvd_core # compile changes since then
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=$type -DHVD_SANITIZE="$sanitize" -DHVD_WERROR=ON \
  -DHVD_BUILD_TESTS=ON -DHVD_BUILD_PYTHON=OFF -DHVD_CORE_LIBRARY="$library" >/dev/null
# The lock is that of tests/simulated/libraries.py: Python tests that run meanwhile build a few of the targets.
flock "$build/.simulated.lock" cmake --build "$build" --target "${only:-$target}"
[ -z "$only" ] || exit 0
export ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1:suppressions=$PWD/tests/tsan.supp"
failed=$build/Testing/Temporary/LastTestsFailed.log
rm -f "$failed"
note_passed() { [ $tier = first ] || echo "$sources" >"$passed"; }
ctest --test-dir "$build" --output-on-failure --parallel "$jobs" "${choice[@]}" && note_passed && exit
# Like python-tests.sh, run a few failed tests again, alone, but not under a sanitizer, whose findings are real.
[ -z "$sanitize" ] && [ -s "$failed" ] && [ "$(wc -l <"$failed")" -le 8 ] || exit 1
cp "$failed" "$build/failed-among-others"
echo "unit-tests.sh: once more, alone:"
ctest --test-dir "$build" --output-on-failure --rerun-failed
note_passed
sed "s/^[0-9]*:/C++: /" "$build/failed-among-others" | scripts/note-second-try.sh
