#!/usr/bin/env bash
# Records tests that passed only at the second attempt:  note-second-try.sh < NAMES, one per line
# Prints them, and appends them with the date to build/second-tries.txt, which contains those of all runs.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
echo "needed a second try:"
while read -r name; do
  echo "  $name"
  echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $name" >>build/second-tries.txt
done
