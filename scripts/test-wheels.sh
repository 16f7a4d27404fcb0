#!/usr/bin/env bash
# Installs the wheels of dist/ (make wheels) with pip in an empty environment of each Python, runs a job of two workers there, and checks the
# errors for wheels that do not fit: test-wheels.sh [PYTHON...]   (default: those on the PATH and of pyenv)
# For Pythons without a wheel (free-threaded ones) pip builds the sdist. With SDIST=1, it is also built for the first of the others.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
  for minor in 10 11 12 13 14 15; do
    for python in python3.$minor "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.$minor.*/bin/python; do
      "$python" -c '' 2>/dev/null && set -- "$@" "$(command -v "$python")" && break # a shim of pyenv may exist but not run
    done
  done
fi
[ $# -gt 0 ] || { echo "there is no Python here to try the wheels with: test-wheels.sh python3.12 ..." >&2; exit 1; }
dist=$PWD/dist job=$PWD/tests/wheels/job.py place=$PWD/build/test-wheels
sdist=$(ls "$dist"/horovod-*.tar.gz) || { echo "make wheels first" >&2; exit 1; }
version=$(basename "$sdist" .tar.gz) && version=${version#horovod-}
unset PYTHONPATH VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "$place" && mkdir -p "$place/empty"
cd "$place/empty" # not in the checkout, which would be imported

say() { echo "-- $*"; }
have() { # FILE TEXT: checks that the file contains the text
  grep -q -- "$2" "$1" || { echo "missing: $2; got: $(cat "$1")" >&2; exit 1; }
}
environment() { # PYTHON NAME
  "$1" -m venv "$place/$2"
  "$place/$2/bin/pip" install -qq --upgrade pip
}
run() { # NAME: runs a job of two workers
  PATH=$place/$1/bin:$PATH timeout 120 horovodrun -np 2 python "$job" | sed 's/^/   /'
}

for python in "$@"; do
  name=$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}")')
  say "$name ($python)"
  environment "$python" "$name"
  only=(--only-binary horovod)
  case $name in *t) only=() ;; esac
  "$place/$name/bin/pip" install -qq --find-links "$dist" "${only[@]}" "horovod[numpy]==$version"
  run "$name"
done

if [ "${SDIST:-0}" = 1 ]; then
  say "the sdist, built by pip"
  environment "$1" sdist
  "$place/sdist/bin/pip" install -qq --find-links "$dist" --no-binary horovod "horovod[numpy]==$version"
  run sdist
fi

say "a wheel of another Python: what pip says, and what Python says where it is forced"
tag=$("$1" -c 'import sys; print("310" if sys.version_info[1] != 10 else "311")')
pip=$(ls -d "$place"/python*/bin/pip | head -1)
wheel=$(ls "$dist/horovod-$version-cp$tag-cp$tag"-*"$(uname -m)".whl)
! "$pip" install --no-deps --target forced "$wheel" >output 2>&1 || { echo "pip took $wheel" >&2; exit 1; }
have output "is not a supported wheel on this platform"
"$pip" install -qq --no-deps --target forced --only-binary :all: --python-version "$tag" "$wheel"
"$(dirname "$pip")/python" - >output 2>&1 <<'PY' || true
import sys
sys.path.insert(0, "forced")
from horovod import _core
PY
have output "Horovod's native part does not fit this Python"
tail -1 output | sed 's/^/   /'

say "glibc 2.17: what pip says; and 2.28, for which it takes the same wheel"
for glibc in 2_28 2_17; do
  options=(--no-deps --target "glibc$glibc" --only-binary :all: --python-version "$tag" --platform "manylinux_${glibc}_$(uname -m)")
  if "$pip" install -qq "${options[@]}" "$wheel" >output 2>&1; then took=2_28; else took=none; fi
  [ $glibc = 2_28 ] && [ $took != 2_28 ] && { cat output >&2; exit 1; }
done
[ $took = none ] || { echo "pip took $wheel for glibc 2.17" >&2; exit 1; }
have output "is not a supported wheel on this platform"
echo "wheels: all as they should be"
