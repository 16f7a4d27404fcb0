#!/usr/bin/env bash
# Installs NVRTC, which compiles the device kernels without a GPU, into a separate folder of the environment, where no other program finds it.
# Never fails: if it is missing, the test that compiles the kernels is skipped with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(python -c 'import sys; print(sys.prefix)')/nvrtc
[ -e "$folder/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" ] && exit 0
python -m tools.packages install --no-deps --target "$folder" nvidia-cuda-nvrtc-cu12==12.1.105 && exit 0
echo "NVRTC cannot be installed; the test that compiles the kernels again will be skipped" >&2
rm -rf "$folder"
exit 0
