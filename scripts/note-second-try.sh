#!/usr/bin/env bash
# Notes tests that passed only in a second try:  note-second-try.sh < NAMES, a line each
# They are printed, and appended with the date to build/second-tries.txt, which keeps those of all runs.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
echo "needed a second try:"
while read -r name; do
  echo "  $name"
  echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $name" >>build/second-tries.txt
done
