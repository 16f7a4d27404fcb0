#!/usr/bin/env bash
# Python tests:  python-tests.sh [PYTEST_ARGS...]
# PART: a name for those that run beside others, which keeps apart what pytest remembers.
# A few that fail are run once more, one after another: hundreds of real processes on two cores now and then keep one waiting longer
# than its test allows. What fails again has failed; what passes then is printed and noted in build/second-tries.txt, to be mended.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=build/pytest-cache${PART:+-$PART} most=8
failed() { # tests that have failed in the last run
  [ ! -s "$cache/v/cache/lastfailed" ] || python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed"
}
rm -rf "$cache"
code=0
python -m pytest -o cache_dir="$cache" "$@" || code=$?
[ "$code" = 5 ] && [ -n "${PART:-}" ] && exit 0 # a part without tests: what they need is not installed
[ "$code" = 1 ] || exit "$code" # 1: tests have failed; more: pytest itself, or skips that tests/skips.txt does not know
first=$(failed)
[ -n "$first" ] && [ "$(wc -l <<<"$first")" -le "$most" ] || exit 1
echo "python-tests.sh: once more, alone:"
code=0
python -m pytest -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$@" -n 0 || code=1
passed=$(grep -vxFf <(failed) <<<"$first" || true)
[ -z "$passed" ] || scripts/note-second-try.sh <<<"$passed"
exit "$code"
