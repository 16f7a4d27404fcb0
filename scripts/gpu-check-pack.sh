#!/usr/bin/env bash
# Collects the files that scripts/gpu-check.sh needs on a machine with a GPU and without a network: gpu-check-pack.sh [VERSION]   (VERSION
# of Python on that machine, default 3.12). Run it on a machine with a network, and copy .gpu-pack (5 MB; ignored by git) with the checkout.
# The machine with the GPU must have CMake, Ninja and a C++ compiler; with ALL=1, CMake and Ninja are packed, too (30 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-3.12}
pack=.gpu-pack
rm -rf "$pack"
mkdir -p "$pack/wheels" "$pack/include/doctest"
packages=(cloudpickle msgspec pyyaml pyzmq nanobind scikit-build-core pathspec packaging pytest pytest-timeout iniconfig pluggy pygments tqdm)
[ -z "${ALL:-}" ] || packages+=(cmake ninja)
platforms=()
for platform in manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_26_x86_64 manylinux_2_24_x86_64 manylinux_2_17_x86_64 \
  manylinux2014_x86_64 manylinux_2_12_x86_64 manylinux2010_x86_64 manylinux1_x86_64; do platforms+=(--platform "$platform"); done
# Download all packages in one call, so that there is one version of each.
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp --abi "cp${version/./}" \
  --abi abi3 --abi none "${platforms[@]}" -d "$pack/wheels" "${packages[@]}"
header=$(printf '#include <doctest/doctest.h>\n' | "${CXX:-c++}" -x c++ -M - | tr ' \\' '\n\n' | grep -m1 '/doctest/doctest\.h$') ||
  { echo "doctest/doctest.h is not here: scripts/install-doctest.sh" >&2; exit 1; }
cp "$header" "$pack/include/doctest/"
du -sh "$pack"
