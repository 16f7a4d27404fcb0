#!/usr/bin/env bash
# Records the time of a target for `make help`:  record-time.sh TARGET START first|again
# START: seconds since 1970. "first": the environment did not exist at the start. Writes to build/times.tsv or the file TIMES; committed
# times are in scripts/times.tsv.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${TIMES:-build/times.tsv}
mkdir -p "$(dirname "$file")" && touch "$file"
kept=$(awk -F'\t' -v t="$1" -v w="$3" '!($1 == t && $2 == w)' "$file")
{
  [ -z "$kept" ] || echo "$kept"
  printf '%s\t%s\t%d\t%d\n' "$1" "$3" $(($(date +%s) - $2)) "$(nproc)"
} | sort >"$file.new"
mv "$file.new" "$file"
