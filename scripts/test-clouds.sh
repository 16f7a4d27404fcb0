#!/usr/bin/env bash
# Runs the tests that need Azure ML's SDK, MLflow or boto3, which are large, in the environment .venv-clouds, which also sees the packages
# of .venv. Arguments are passed to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$PWD/.venv-clouds
if ! [ "$place/ready" -nt scripts/test-clouds.sh ]; then
  rm -rf "$place"
  python -m venv "$place"
  shared=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "import site; site.addsitedir('$shared')" > "$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
  "$place/bin/python" -m tools.packages install 'azure-ai-ml>=1.20' 'boto3>=1.34' 'mlflow>=3'
  touch "$place/ready"
fi
export VIRTUAL_ENV=$place PATH=$place/bin:$PATH
unset PYTHONPATH
exec python -m pytest --disable-warnings tests/clouds tests/examples/test_mlflow.py "$@"
