#!/usr/bin/env bash
# Runs random programs on complete engines: fuzz-programs.sh MINUTES BUILD_DIR   (see tests/core/engine/programs_test.cc)
# It stops at a hang or a wrong result and prints the seed. HVD_PROGRAM_SEED=seed repeats that program; HVD_PROGRAMS is the number of programs.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1 build=$2
scripts/unit-tests.sh --build test_engine "$build" ""
export HVD_PROGRAM_MINUTES=$minutes HVD_PROGRAM_SEED=${HVD_PROGRAM_SEED:-$(date +%s)000}
echo "from seed $HVD_PROGRAM_SEED on"
exec "$build/tests/core/test_engine" -tc='random programs with threads*' -d
