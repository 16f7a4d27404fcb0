#!/usr/bin/env bash
# The sdist, the wheels and their bill of materials in dist/, checked: build-wheels.sh [words for python -m tools.wheels].
# The tools for it, at the versions of tools/wheels/requirements.txt, get an environment of their own.
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
