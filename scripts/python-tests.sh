#!/usr/bin/env bash
# Python tests side by side:  python-tests.sh [PYTEST_ARGS...]
# A few that fail are run once more, one after another, and named: hundreds of real processes on two cores now and then keep one waiting
# longer than its test allows. What fails again has failed.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=build/pytest-cache most=8
rm -rf "$cache"
code=0
python -m pytest -o cache_dir="$cache" "$@" || code=$?
[ "$code" = 1 ] || exit "$code" # 1: tests have failed; more: pytest itself, or skips that tests/skips.txt does not know
[ -s "$cache/v/cache/lastfailed" ] || exit 1
failed=$(python -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))))' "$cache/v/cache/lastfailed")
[ "$(wc -l <<<"$failed")" -le "$most" ] || exit 1
echo "python-tests.sh: once more, alone:"
python -m pytest -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$@" -n 0 || exit 1
echo "python-tests.sh: these failed among the others and passed alone:"
echo "$failed"
