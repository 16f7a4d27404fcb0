# Functions that build images without a daemon and a registry. Sourced by scripts that define `refuse`, and that call the functions as root in
# a separate mount namespace. pip's variables (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT) are used in the builds, too.

install_packages() { # PACKAGES...
  local missing=() package
  for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || refuse "there is no apt-get here to install ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "${missing[@]}")
  "${install[@]}" >/dev/null 2>&1 || { apt-get update -q >/dev/null; "${install[@]}" >/dev/null; } ||
    refuse "apt-get cannot install ${missing[*]}"
}

# Configures the tools to use the folder `work`, and `store` for images, which can be kept.
configure() {
  local store=$1 processes
  processes=$(ulimit -Hu)
  [ "$processes" != unlimited ] || processes=4194304
  mkdir -p "$store" "$work/networks"
  store=$(cd "$store" && pwd)
  # The tools' caches are always here, independent of the configuration.
  mkdir -p "$work/lib" /var/lib/containers
  mount --bind "$work/lib" /var/lib/containers
  rm -rf "$store/images/libpod" # podman's database of containers whose folders have been removed
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

# Sets BASE, the base of deploy/docker's images, to a Debian from debootstrap unless it is set.
find_base() {
  [ -z "${BASE:-}" ] || return 0
  BASE=localhost/debian-python:bookworm
  podman image exists "$BASE" || { echo "== $BASE"; scripts/debian-image.sh "$BASE" >"$work/log" 2>&1; } ||
    { tail -n 20 "$work/log" >&2; refuse "there is no base"; }
}

# Builds localhost/horovod:cpu with the pip settings of this environment.
build_cpu() {
  local pip_args="" mounts=() file
  [ -z "${PIP_INDEX_URL:-}" ] || pip_args+=" --index-url $PIP_INDEX_URL"
  [ -z "${PIP_CERT:-}" ] || pip_args+=" --cert $PIP_CERT"
  if [ -n "${PIP_FIND_LINKS:-}" ]; then pip_args+=" --find-links $PIP_FIND_LINKS"
  else pip_args+=" --extra-index-url https://download.pytorch.org/whl/cpu"; fi
  for file in "${PIP_CERT:-}" "${PIP_FIND_LINKS:-}"; do [ ! -e "$file" ] || mounts+=(--volume "$file:$file:ro"); done
  build deploy/docker/Dockerfile horovod:cpu --build-arg "BASE=$BASE" --build-arg "PIP_ARGS=$pip_args" "${mounts[@]}"
}
