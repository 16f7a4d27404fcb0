#!/usr/bin/env bash
# Runs jobs on a real Kubernetes cluster: test-kubernetes.sh [arguments of pytest]
#
# KUBECONFIG=FILE IMAGE=IMAGE   on that cluster, with an image that its nodes can pull, which has this version and NumPy; NAMESPACE=default
# without                       on clusters of one and of two nodes, created by tools/kubernetes_bed; needs root, on Debian 12
# CRDS=FOLDER                   with Kubeflow's definitions as JSON, for its kinds of jobs; BED_LOGS=FOLDER keeps the logs of the cluster's programs
set -euo pipefail
cd "$(dirname "$0")/.."
tests=tests/runner/kubernetes
pytest=(python -m pytest -p no:cacheprovider -n 0)

if [ -n "${KUBECONFIG:-}" ]; then
  [ -n "${IMAGE:-}" ] || { echo "test-kubernetes.sh: KUBECONFIG is given and IMAGE is not: which image are the jobs to run?" >&2; exit 1; }
  export HVD_TEST_KUBECONFIG=$KUBECONFIG HVD_TEST_IMAGE=$IMAGE HVD_TEST_NAMESPACE=${NAMESPACE:-default}
  exec "${pytest[@]}" "$tests/test_real.py" "$@"
fi
unset KUBECONFIG
export HVD_TEST_CRDS=${CRDS:-${HVD_TEST_CRDS:-}}
bed() { # NODES COMMAND...
  local nodes=$1
  shift
  python -m tools.kubernetes_bed --nodes "$nodes" ${BED_LOGS:+--logs "$BED_LOGS/$nodes"} -- "$@"
}
bed 1 "${pytest[@]}" "$tests/test_real.py" "$tests/test_bed.py" "$tests/test_operators.py" -k "not two_nodes" "$@"
bed 2 "${pytest[@]}" "$tests/test_real.py" "$tests/test_bed.py" "$tests/test_operators.py" -k "two_nodes or trains or drained" "$@"
