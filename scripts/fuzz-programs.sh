#!/usr/bin/env bash
# Random programs on whole engines, for MINUTES: fuzz-programs.sh MINUTES BUILD_DIR   (see tests/core/engine/programs_test.cc)
# A hang or a wrong result ends it and shows the seed; HVD_PROGRAM_SEED=seed plays that program again, HVD_PROGRAMS says how many after it.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1 build=$2
scripts/unit-tests.sh --build test_engine "$build" ""
export HVD_PROGRAM_MINUTES=$minutes HVD_PROGRAM_SEED=${HVD_PROGRAM_SEED:-$(date +%s)000}
echo "from seed $HVD_PROGRAM_SEED on"
exec "$build/tests/core/test_engine" -tc='random programs with threads*' -d
