#!/usr/bin/env bash
# Installs Debian packages that some tests need:  install-system-packages.sh [first|more]   (a tier of tests; default: both)
# They are programs that simulate hosts with namespaces, and ssh to reach them; shells whose completion is tested; Java for Spark; and for the
# second tier Slurm and a browser.
# Installs only missing packages. Never fails: if some are missing, the tests are skipped with the reason.
set -uo pipefail

# Lines of a program (or a file) and the package that contains it.
first() {
  cat <<'LIST'
ip iproute2
unshare util-linux
nsenter util-linux
ssh openssh-client
ssh-keygen openssh-client
sshd openssh-server
nft nftables
iptables iptables
ps procps
zsh zsh
fish fish
java openjdk-17-jre-headless
LIST
}
more() {
  cat <<'LIST'
slurmctld slurmctld
slurmd slurmd
srun slurm-client
munged munge
chromium chromium
LIST
}

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
packages=()
while read -r program package; do
  if [[ $program == /* ]]; then [ -e "$program" ] || packages+=("$package"); continue; fi
  command -v "$program" >/dev/null || packages+=("$package")
done < <(case ${1:-both} in first) first ;; more) more ;; *) first && more ;; esac)
[ ${#packages[@]} -gt 0 ] || exit 0
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)

give_up() { echo "$1; tests that need ${packages[*]} will be skipped" >&2; exit 0; }
command -v apt-get >/dev/null || give_up "there is no apt-get here"
# These tests need root. On a machine with running services, do not install an ssh server that would start with the machine.
[ "$(id -u)" = 0 ] || give_up "not root"
[ ! -d /run/systemd/system ] || give_up "this machine runs services: install ${packages[*]} yourself"
# Do not start the server now either, because tests start their own. invoke-rc.d checks this file.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
  trap 'rm -f $policy' EXIT
fi
log=$(mktemp)
install() {
  env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "${packages[@]}" >"$log" 2>&1
}
install || { apt-get update -q >/dev/null 2>&1; install; } || { tail -n 5 "$log" >&2; rm -f "$log"; give_up "apt-get failed"; }
rm -f "$log"
