#!/usr/bin/env bash
# Runs tests/tensorflow and tests/keras in an environment for each given version of TensorFlow: test-tf-matrix.sh VERSION...
# All environments install the same wheel: WHEEL=FILE, or that of make wheel. PYTEST_ARGS has further arguments of pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
wheel=$(realpath "${WHEEL:-$(ls build/one-wheel/horovod-*.whl)}") || exit 1

# Copy the tests to another folder, because in the checkout "import horovod" would find the sources instead of the wheel.
stage=build/tf-matrix
rm -rf $stage && mkdir -p $stage
cp -r tests pyproject.toml examples $stage/

environment() { # version: sets up .venv-tf-VERSION unless that has been done as it is now
  local version=$1 place=.venv-tf-$1
  [ "$place/ready" -nt scripts/test-tf-matrix.sh ] && return
  rm -rf "$place"
  "$python" -m venv "$place" || return
  "$place/bin/python" -m tools.packages install "tensorflow-cpu==$version" 'pytest>=8' 'pytest-timeout>=2.3' scikit-learn cloudpickle msgspec pyzmq || return
  # Since 2.16, tf.keras is Keras 3, and tf_keras is Keras 2. Install it without dependencies, which would add TensorFlow again.
  case $version in
    2.13.* | 2.14.* | 2.15.*) ;;
    *) "$place/bin/python" -m tools.packages install --no-deps "tf_keras==${version%.*}.*" || return ;;
  esac
  touch "$place/ready"
}

failed=()
for version in "$@"; do
  echo "== TensorFlow $version"
  if environment "$version" &&
    ".venv-tf-$version/bin/python" -m tools.packages install --no-deps --force-reinstall "$wheel" &&
    (cd $stage && PATH="$root/.venv-tf-$version/bin:$PATH" python -m pytest -q -m "not heavy and not long" ${PYTEST_ARGS:-tests/tensorflow tests/keras}); then
    continue
  fi
  failed+=("$version")
done
[ ${#failed[@]} = 0 ] && echo "TensorFlow $*: all passed" && exit
echo "failed with TensorFlow: ${failed[*]}" >&2
exit 1
