#!/usr/bin/env bash
# Builds and checks sdist, wheels and their bill of materials in dist/: build-wheels.sh [arguments of python -m tools.wheels].
# The build tools, in the versions of tools/wheels/requirements.txt, are installed into a separate environment.
set -euo pipefail
cd "$(dirname "$0")/.."
place=.venv-wheels
requirements=tools/wheels/requirements.txt
if ! cmp -s $requirements $place/requirements.txt; then
  rm -rf $place
  "${PYTHON:-python3}" -m venv $place
  $place/bin/python -m tools.packages install -r $requirements
  cp $requirements $place/requirements.txt
fi
exec $place/bin/python -m tools.wheels "$@"
