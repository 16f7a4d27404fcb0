#!/usr/bin/env bash
# Runs Python tests:  python-tests.sh [PYTEST_ARGS...]
# PART: name of this part if several run at once, which have separate pytest caches.
# If a few tests fail, they are run again one after another: with hundreds of processes on two cores, a process may wait longer than its
# test allows. Tests that fail again have failed. Those that pass are printed and recorded in build/second-tries.txt, to be corrected.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=build/pytest-cache${PART:+-$PART} most=8
failed() { # prints the tests that failed in the last run
  [ ! -s "$cache/v/cache/lastfailed" ] || python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed"
}
rm -rf "$cache"
code=0
python -m pytest -o cache_dir="$cache" "$@" || code=$?
[ "$code" = 5 ] && [ -n "${PART:-}" ] && exit 0 # a part without tests, because their requirements are not installed
[ "$code" = 1 ] || exit "$code" # 1: tests have failed; above: pytest itself has failed, or tests/skips.txt lacks a skipped test
first=$(failed)
[ -n "$first" ] && [ "$(wc -l <<<"$first")" -le "$most" ] || exit 1
echo "python-tests.sh: once more, alone:"
code=0
python -m pytest -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$@" -n 0 || code=1
passed=$(grep -vxFf <(failed) <<<"$first" || true)
[ -z "$passed" ] || scripts/note-second-try.sh <<<"$passed"
exit "$code"
