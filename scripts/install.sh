#!/usr/bin/env bash
# Builds the native libraries and installs the package into the active environment: install.sh [--editable]
# The build folder is kept and there is no build isolation, so later builds compile only changes.
# The wheel is built before the installation, because installations into one environment wait for each other.
set -euo pipefail
cd "$(dirname "$0")/.."
# Editable builds treat warnings as errors; the C++ unit tests use the library that is compiled here.
hook=build_wheel errors=
[ "${1:-}" = --editable ] && hook=build_editable errors=", 'cmake.define.HVD_WERROR': 'ON'"
rm -rf build/installed
mkdir -p build/installed
log=build/installed/log.txt
python -c "from scikit_build_core.build import $hook as build
build('build/installed', {'build-dir': 'build/python'$errors})" 2>&1 | tee $log |
  { grep --line-buffered -o 'Compiling the extension:.*' || true; } || { cat $log >&2; exit 1; } # CMake's estimate, at the first build
exec python -m tools.packages install --no-deps --force-reinstall build/installed/*.whl
