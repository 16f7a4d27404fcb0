#!/usr/bin/env bash
# Builds the native part and installs the package into the active environment: install.sh [--editable]
# Without build isolation, with a build folder that stays: the second build compiles only what has changed.
# The wheel is built first, because an installation keeps all others into the same environment waiting.
set -euo pipefail
cd "$(dirname "$0")/.."
# Editable, with warnings as errors: the C++ unit tests use the library that is compiled here.
hook=build_wheel errors=
[ "${1:-}" = --editable ] && hook=build_editable errors=", 'cmake.define.HVD_WERROR': 'ON'"
# Measured: up to 160 s of processor time; one file alone, the engine's, takes 20 s.
[ -e build/python/CMakeCache.txt ] || echo "Compiling the extension: about $((160 / $(nproc) + 20)) s at most on the $(nproc) processors of this machine."
rm -rf build/installed
mkdir -p build/installed
log=build/installed/log.txt
python -c "from scikit_build_core.build import $hook as build
build('build/installed', {'build-dir': 'build/python'$errors})" >$log 2>&1 || { cat $log >&2; exit 1; }
exec python -m tools.packages install --no-deps --force-reinstall build/installed/*.whl
