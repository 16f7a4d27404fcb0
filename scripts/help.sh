#!/usr/bin/env bash
# Prints the targets of the Makefile with their descriptions, and the times measured here or else the committed ones.
set -euo pipefail
cd "$(dirname "$0")/.."
touch build/times.tsv 2>/dev/null || true
awk -F'\t' '
  function pretty(s) { return s < 100 ? s " s" : int((s + 30) / 60) " min" }
  FILENAME ~ /times.tsv$/ { took[$1, $2] = pretty($3); next }
  match($0, /^[a-z-]+:.*## /) {
    name = $0; sub(/:.*/, "", name)
    time = ((name, "again") in took) ? took[name, "again"] : "-"
    if ((name, "first") in took) time = time ", first " took[name, "first"]
    line = sprintf("  make %-16s %-16s", name, time)
    words = split(substr($0, RSTART + RLENGTH), word, " ")
    for (i = 1; i <= words; i++) {
      if (length(line " " word[i]) > 110) { print line; line = sprintf("%40s", "") }
      line = line " " word[i]
    }
    print line
  }' scripts/times.tsv $([ -s build/times.tsv ] && echo build/times.tsv) Makefile
