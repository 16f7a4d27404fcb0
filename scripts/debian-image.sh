#!/usr/bin/env bash
# debian-image.sh NAME: imports a small Debian with Python as an image, for builds without access to a registry:
#   buildah build --build-arg BASE=NAME ...
# Needs root, debootstrap and podman. MIRROR and SUITE select another mirror and release.
set -euo pipefail
[ $# = 1 ] || { echo "usage: debian-image.sh NAME, such as localhost/debian-python:bookworm" >&2; exit 2; }
root=$(mktemp -d)
# debootstrap mounts the kernel's file systems there, which must not be deleted.
trap 'rm -rf --one-file-system "$root"' EXIT
# The namespaces end all its mounts and processes in every case.
unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
  "${SUITE:-bookworm}" "$root" "${MIRROR:-http://deb.debian.org/debian}"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | podman import - "$1"
