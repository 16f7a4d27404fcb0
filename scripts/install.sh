#!/usr/bin/env bash
# Builds the native part and installs the package into the active environment: install.sh [--editable]
# Without build isolation, with a build folder that stays: the second build compiles only what has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=(.)
[ "${1:-}" = --editable ] && target=(--editable .)
# Measured: up to 160 s of processor time; one file alone, the engine's, takes 20 s.
[ -e build/python/CMakeCache.txt ] || echo "Compiling the extension: about $((160 / $(nproc) + 20)) s at most on the $(nproc) processors of this machine."
exec python -m tools.packages install --no-deps --no-build-isolation --force-reinstall --config-settings=build-dir=build/python "${target[@]}"
