#!/usr/bin/env bash
# Builds the test cluster's images as archives that containerd imports: image.sh FOLDER
#
#     FOLDER/app.tar     localhost/horovod:bed: horovod:cpu and horovod:cpu-ssh from deploy/docker, on a Debian from debootstrap (or on
#                        BASE=IMAGE), with the Python files of this clone. The libraries are compiled again if their sources have changed
#     FOLDER/pause.tar   localhost/pause:1, the process that holds a pod's namespaces
#
# Layers are kept in FOLDER/images, so a later build compiles only changes. Must run as root.
set -euo pipefail
cd "$(dirname "$0")/../.."

refuse() { echo "image.sh: $1" >&2; exit 1; }
. scripts/image-building.sh

outside() {
  [ "$(id -u)" = 0 ] || refuse "user $(id -u) may make no containers of this kind; run it as root"
  install_packages buildah debootstrap netavark podman runc gcc libc6-dev
  mkdir -p "$1"
  exec 9>"$1/lock"
  flock 9
  work=$(mktemp -d)
  trap 'rm -rf --one-file-system "$work"' EXIT
  # The namespaces end all its processes and mounts in every case.
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc tools/kubernetes_bed/image.sh --inside "$(realpath "$1")" "$work" 9>&-
}

# Image of the pause process.
pause() {
  mkdir "$work/pause"
  gcc -static -O1 -o "$work/pause/pause" tools/kubernetes_bed/pause.c
  printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >"$work/pause/Dockerfile"
  (cd "$work/pause" && build Dockerfile pause:1)
}

inside() { # FOLDER WORK
  work=$2
  configure "$1"
  find_base
  local sources name id
  sources=$(find CMakeLists.txt pyproject.toml core bindings deploy/docker -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
  if [ "$sources" != "$(cat "$1/sources" 2>/dev/null)" ] || ! podman image exists localhost/horovod:cpu; then
    build_cpu
    echo "$sources" >"$1/sources"
  fi
  build deploy/docker/ssh.Dockerfile horovod:cpu-ssh
  build tools/kubernetes_bed/Dockerfile horovod:bed
  pause
  for name in app=horovod:bed pause=pause:1; do
    id=$(podman image inspect --format '{{.Id}}' "localhost/${name#*=}")
    [ "$(cat "$1/${name%%=*}.id" 2>/dev/null)" != "$id" ] || [ ! -e "$1/${name%%=*}.tar" ] || continue
    echo "== ${name%%=*}.tar"
    rm -f "$1/${name%%=*}.tar"
    podman save -q --format docker-archive -o "$1/${name%%=*}.tar" "localhost/${name#*=}"
    echo "$id" >"$1/${name%%=*}.id"
  done
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
else
  [ $# = 1 ] || refuse "one argument is expected: the folder for the archives"
  outside "$@"
fi
