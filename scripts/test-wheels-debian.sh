#!/usr/bin/env bash
# Runs a job of two ranks with the wheel in dist/ that pip chooses on another release of Debian, with its Python and glibc:
# test-wheels-debian.sh [SUITE...]   (default: forky with Python 3.14, and trixie with glibc 2.41)
# Needs root; debootstrap creates the systems once in build/.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$PWD/dist job=$PWD/tests/wheels/job.py place=$PWD/build/test-wheels-debian
export PATH=$PATH:/usr/sbin:/sbin
sdist=$(ls "$dist"/horovod-*.tar.gz) || { echo "make wheels first" >&2; exit 1; }
version=$(basename "$sdist" .tar.gz) && version=${version#horovod-}
[ "$(id -u)" = 0 ] || { echo "test-wheels-debian.sh: only root can make another Debian's root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "there is no debootstrap here: apt-get install debootstrap" >&2; exit 1; }
scripts=/usr/share/debootstrap/scripts

[ $# -gt 0 ] || set -- forky trixie
for suite in "$@"; do
  root=$place/$suite
  if [ ! -e "$root.ready" ]; then
    rm -rf "$root" && mkdir -p "$root"
    script=$scripts/$suite
    [ -e "$script" ] || script=$scripts/sid # this debootstrap does not know the suite
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" \
      "${MIRROR:-http://deb.debian.org/debian}" "$script" >"$root.log" 2>&1 || { tail -3 "$root.log" >&2; exit 1; }
    touch "$root.ready"
  fi
  mkdir -p "$root/wheels"
  cp "$job" "$root/wheels/job.py"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  # The namespaces end all mounts and processes.
  timeout 600 unshare --mount --pid --fork --kill-child bash -euc '
    mkdir -p "$1/dist" && mount --bind "$2" "$1/dist"
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm"
    exec chroot "$1" /usr/bin/env -i PATH=/venv/bin:/usr/bin:/bin HOME=/root PIP_CERT=/etc/ssl/certs/ca-certificates.crt bash -euc "
      python3 -c \"import platform as p; print(\\\"--\\\", \\\"$3\\\", \\\"Python\\\", p.python_version(), *p.libc_ver())\"
      rm -rf /venv && python3 -m venv /venv
      pip install -qq --find-links /dist --only-binary horovod \"horovod[numpy]==$4\"
      horovodrun -np 2 python /wheels/job.py"
  ' - "$root" "$dist" "$suite" "$version" | sed 's/^\([^-]\)/   \1/'
done
