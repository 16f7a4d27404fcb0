#!/usr/bin/env bash
# Runs tests/mxnet in the separate environment .venv-mxnet. MXNet 1.9.1 is the last release of a retired project, and does not work with
# versions after NumPy 1.23 and Python 3.11. PYTHON=python3.11 PYTEST_ARGS=... test-mxnet.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
place=$PWD/.venv-mxnet
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))'; then
  echo "make test-mxnet needs Python 3.10 or 3.11, which $python is not; give one: make test-mxnet MXNET_PYTHON=python3.11" >&2
  exit 1
fi
export VIRTUAL_ENV=$place PATH=$place/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH

if ! [ "$place/ready" -nt scripts/test-mxnet.sh ]; then
  rm -rf "$place"
  "$python" -m venv "$place"
  # scikit-learn has the example's data, and ml_dtypes bfloat16 for the conformance tests; these versions work with this NumPy.
  python -m tools.packages install mxnet==1.9.1 numpy==1.23.5 'scikit-learn==1.2.*' 'ml_dtypes==0.4.*' 'pytest>=8' 'pytest-timeout>=2.3'
  python -m tools.packages install cmake ninja nanobind scikit-build-core cloudpickle msgspec pyyaml pyzmq
  touch "$place/ready"
fi
# Like scripts/install.sh, with a separate build folder for this Python.
python -m tools.packages install --no-deps --no-build-isolation --force-reinstall --config-settings=build-dir=build/mxnet --editable .
# Warnings are disabled because MXNet causes many in NumPy.
# shellcheck disable=SC2086
exec python -m pytest -q -m "not heavy and not long" --disable-warnings ${PYTEST_ARGS:-tests/mxnet tests/test_api.py tests/common/test_without_mxnet.py}
