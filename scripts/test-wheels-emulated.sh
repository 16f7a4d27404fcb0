#!/usr/bin/env bash
# Runs a job of two ranks with the aarch64 wheel for Python 3.11 in dist/, emulated on a machine with another CPU. Debian 12's Python for
# aarch64 is installed into a folder, and qemu-aarch64-static (apt-get install qemu-user-static) runs it; horovodrun is this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$PWD/dist job=$PWD/tests/wheels/job.py place=$PWD/build/test-wheels-emulated
wheel=$(ls "$dist"/horovod-*-cp311-cp311-*_aarch64.whl) || { echo 'make wheels WHEELS="--arch x86_64 aarch64" first' >&2; exit 1; }
for program in qemu-aarch64-static apt-get horovodrun; do
  command -v $program >/dev/null || { echo "there is no $program here" >&2; exit 1; }
done
rm -rf "$place" && mkdir -p "$place"/{lists/partial,cache/archives/partial,debs,root,wheels,site-packages} && cd "$place"
echo "deb http://deb.debian.org/debian bookworm main" >sources.list && touch status
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=-
  -o "Dir::State::lists=$PWD/lists" -o "Dir::State::status=$PWD/status" -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update >/dev/null
# libstdc++6 is for NumPy and pyzmq; the wheel contains its own.
(cd debs && "${apt[@]}" download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libexpat1 zlib1g libssl3 \
  libffi8 libbz2-1.0 liblzma5 libuuid1 libstdc++6 >/dev/null)
for package in debs/*.deb; do dpkg -x "$package" root; done
python3 -m pip download -qq --only-binary :all: --python-version 3.11 --implementation cp --abi cp311 \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 -d wheels cloudpickle msgspec numpy pyyaml pyzmq
for file in wheels/*.whl "$wheel"; do python3 -m zipfile -e "$file" site-packages; done
cat >python <<PY
#!/bin/sh
exec qemu-aarch64-static -L "$place/root" -E "PYTHONPATH=$place/site-packages" "$place/root/usr/bin/python3.11" "\$@"
PY
chmod +x python
timeout 300 horovodrun -np 2 ./python "$job"
