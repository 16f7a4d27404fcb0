#!/usr/bin/env bash
# Installs doctest for the C++ tests with apt, unless the system has it. There is no pip package.
set -euo pipefail
have() { echo '#include <doctest/doctest.h>' | "${CXX:-c++}" -x c++ -fsyntax-only - 2>/dev/null; }
have && exit 0
command -v apt-get >/dev/null || { echo "doctest is missing: install doctest/doctest.h (https://github.com/doctest/doctest)" >&2; exit 1; }
sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "doctest is missing: install the package doctest-dev as root" >&2; exit 1; }
  sudo=(sudo)
fi
install() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends doctest-dev >/dev/null; }
install || { "${sudo[@]}" apt-get update -q >/dev/null; install; }
have || { echo "doctest-dev is installed, but ${CXX:-c++} does not find doctest/doctest.h" >&2; exit 1; }
