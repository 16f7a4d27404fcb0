#!/usr/bin/env bash
# Prints the C and C++ files of the repository, for clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
find core bindings tests fuzz benchmarks \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' \) -not -path '*/build/*'
